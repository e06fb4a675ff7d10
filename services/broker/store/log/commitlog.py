"""The CommitLog: all records of a broker in one sequence of files (docs/formats/commitlog.md), and its only writer.

A record that does not fit in the current file goes to the next one, and filler takes the rest: 8 bytes always remain
for it. A worker creates files ahead (preallocation.py). These files have all their blocks from the beginning. A file that
existed at the start may be sparse (a copy of RocketMQ's store). The log allocates its blocks in steps ahead of the
write end, where it checks for the end of the file anyway.

The offsets in order: `min_offset` ≤ `confirm_offset` ≤ `wrote_offset` ≤ `next_offset`. Appended records wait in memory
until `write_out` hands them to the operating system in one call, once per turn of the caller's loop. Until then a crash
of the process loses them, so they must not be acknowledged. Records before the confirm offset may be dispatched and
read: with SYNC_FLUSH all records on the disk, with ASYNC_FLUSH all written records, and of these only those that the
replicas have if the log waits for replicas.

The log writes with `File.write` and not through the map. If the map touches a page that a sync has just written, the
access costs a page fault, and these faults took a fifth of the time of a send. If the operating system rejects a write,
it is unknown how much was written. The log then takes no more records until the next start has read the file.

Concurrency: the store's thread writes. The flush worker reads `stored_at_ms` and then `wrote_offset`, which are set in
the opposite order. The time that the worker reports is therefore never later than the bytes that it synced.
"""

from collections.abc import Callable, Iterator, Sequence

from gantry.model.errors import InvalidMessageError
from gantry.model.record import BLANK_BYTES_MIN, RecordHead, encode_blank
from gantry.model.sysflag import STORE_HOST_V6
from gantry.runtime.failpoints import Failpoint, hit
from gantry.runtime.files import FileSystem
from gantry.runtime.workers import Worker
from gantry.storeformat.layout import COMMIT_LOG_DIR
from gantry.storeformat.manifest import StoreManifest
from services.broker.store.errors import FileNotReadyError, StoreFullError, StoreWriteError
from services.broker.store.files.allocation import allocate_ahead
from services.broker.store.files.mappedfile import MappedFile, is_gone
from services.broker.store.files.mappedfilequeue import MappedFileQueue
from services.broker.store.log.logscan import LogScan, OnLost, find_head
from services.broker.store.log.preallocation import Preallocator
from services.broker.store.settings import LOG_AHEAD_BYTES, StoreLimits, StoreSettings

_ALLOCATED_MAX = 8 << 20

UNFLUSHED_FILES_MAX = 32
"""Limit for files that are full and not flushed yet. They stay open, because only an open file learns of a failed
write-back. More of them are a sign that the disk hangs."""

UNWRITTEN_BYTES_MAX = 1 << 20
"""Limit for the bytes in memory; more are written without a call of `write_out`."""

# The file that is written, and the file that the worker creates, with its folder.
_WRITTEN_AND_MADE = 3

# No checksum covers the store time of RocketMQ's records or the checkpoint's times. If such a time is further ahead of
# the clock than clocks are set back, one of its bits has flipped, and later store times must not follow it.
AHEAD_OF_CLOCK_MS_MAX = 86_400_000


def log_descriptors(file_bytes: int) -> int:
    """Return the limit for the descriptors of a running log; it does not depend on the number of files.

    Args:
        file_bytes: Size of one file of the log.
    """
    return _WRITTEN_AND_MADE + StoreLimits().log_files_ahead(file_bytes) + UNFLUSHED_FILES_MAX


class CommitLog:
    """The CommitLog: appends records, writes them to its files, and creates the next file when one is full.

    Attributes:
        files: The log's files.
        manifest: The store's manifest; it says where every record has the whole-record checksum.
        next_offset: The offset of the next record, if it fits in the current file.
        wrote_offset: The end of the bytes that were handed to the operating system and survive the process.
        flushed_offset: The end of the bytes that are on the disk.
        appended_at_ms: The store time of the last appended record; the next record's time is not before it.
        stored_at_ms: The store time of the last written record.
        failure: The reason why the log takes no more writes, or None.
        record_checksum: Whether records get the checksum over the whole record.
        store_host: The packed address in every record; `store_flag` is its bit for the sysFlag.
    """

    __slots__ = (
        "_ahead",
        "_allocated",
        "_current",
        "_files",
        "_is_sync",
        "_left",
        "_limit",
        "_replicated_offset",
        "_store_host",
        "_unwritten",
        "appended_at_ms",
        "failure",
        "files",
        "flushed_offset",
        "manifest",
        "next_offset",
        "record_checksum",
        "store_flag",
        "stored_at_ms",
        "wrote_offset",
    )

    def __init__(
        self, files: FileSystem, settings: StoreSettings, limits: StoreLimits, worker: Worker, store_host: bytes
    ) -> None:
        self._files = files
        self._is_sync = settings.is_sync_flush
        self.record_checksum = settings.enabled_append_prop_crc
        self.files = MappedFileQueue(
            files, f"{settings.store_path_root_dir}/{COMMIT_LOG_DIR}", settings.mapped_file_size_commit_log
        )
        self.manifest = StoreManifest()
        self.next_offset = 0
        self.wrote_offset = 0
        self.flushed_offset = 0
        self.stored_at_ms = 0
        self.failure: str | None = None
        self.store_host = store_host
        self._replicated_offset: Callable[[], int] | None = None
        self._current: MappedFile | None = None
        self._left: list[MappedFile] = []
        self._allocated = 0
        self._limit = 0
        self._unwritten: list[bytes] = []
        self.appended_at_ms = 0
        count = limits.log_files_ahead(settings.mapped_file_size_commit_log)
        self._ahead = Preallocator(files, self.files, worker, count=count)

    @property
    def store_host(self) -> bytes:
        """Return the packed address that every record contains."""
        return self._store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self._store_host = packed
        self.store_flag = STORE_HOST_V6 if len(packed) > 8 else 0

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte that still exists."""
        first = self.files.first
        return first.start if first is not None else self.next_offset

    @property
    def confirm_offset(self) -> int:
        """Return the offset up to which the log may be dispatched and read."""
        offset = self.flushed_offset if self._is_sync else self.wrote_offset
        return offset if self._replicated_offset is None else min(offset, self._replicated_offset())

    def wait_for_replicas(self, replicated_offset: Callable[[], int] | None) -> None:
        """Confirm no record that the replicas do not have.

        Args:
            replicated_offset: Function that returns the offset up to which the replicas have the log; None to wait for
                none. The offset must be the end of a record, because dispatch goes on exactly there.
        """
        self._replicated_offset = replicated_offset

    @property
    def record_bytes_max(self) -> int:
        """Return the size of the largest record that fits in a file."""
        return self.files.file_size - BLANK_BYTES_MIN

    def open_at(self, end: int) -> None:
        """Set the end of the log after recovery; all bytes before it count as flushed."""
        self.next_offset = self.wrote_offset = self.flushed_offset = end
        file = self.files.find(end)
        if file is not None:
            self._use(file, allocated=end)
        else:
            self._current, self._limit = None, 0

    def open_times(self, flushed_at_ms: int, *, now_ms: int) -> None:
        """Set the earliest store time of the next record after recovery.

        Args:
            flushed_at_ms: The store time of the last record before the checkpoint's offset; recovery may have read no
                record.
            now_ms: Wall time.
        """
        last_ms = max(self.stored_at_ms, flushed_at_ms)
        if last_ms - now_ms > AHEAD_OF_CLOCK_MS_MAX and not self.manifest.demands_record_crc(self.next_offset - 1):
            last_ms = now_ms
        self.appended_at_ms = last_ms

    def _use(self, file: MappedFile, *, allocated: int) -> None:
        self._current = file
        self._allocated = allocated
        self._limit = allocated - BLANK_BYTES_MIN

    def append(self, record: bytes, stored_at_ms: int) -> bool:
        """Append a whole record, whose own physical offset must be `next_offset`.

        Returns:
            False if there was no room. There is room now, perhaps in the next file, and the caller must encode the
            record again for the new `next_offset`.

        Raises:
            InvalidMessageError: The record is larger than a file.
            StoreFullError: There is no next file, or a sparse file gets no more blocks.
            FileNotReadyError: The next file is still being created, or must wait for a flush.
            StoreWriteError: The records appended before could not be written. In all four cases the record was not
                appended.
        """
        end = self.next_offset + len(record)
        if end > self._limit:
            self._make_room(len(record))
            return False
        if end - self.wrote_offset > UNWRITTEN_BYTES_MAX:
            self.write_out()
        self._unwritten.append(record)
        self.next_offset = end
        self.appended_at_ms = stored_at_ms
        return True

    def append_batch(self, records: Sequence[bytes], stored_at_ms: int) -> bool:
        """Append records with consecutive offsets, all to one file; otherwise like `append`."""
        size = sum(map(len, records))
        if self.next_offset + size > self._limit:
            self._make_room(size)
            return False
        if self.next_offset + size - self.wrote_offset > UNWRITTEN_BYTES_MAX:
            self.write_out()
        self._unwritten += records
        self.next_offset += size
        self.appended_at_ms = stored_at_ms
        return True

    def write_out(self) -> None:
        """Hand the appended records to the operating system.

        Raises:
            StoreWriteError: The write failed, now or earlier. The records after `wrote_offset` are lost or torn.
        """
        if self.failure is not None:
            raise StoreWriteError(self.failure)
        if not self._unwritten:
            return
        current = self._current
        assert current is not None, "appended to a file"
        try:
            current.file.write(self.wrote_offset - current.start, self._unwritten)
        except OSError as error:
            self.failure = f"the CommitLog can't be written: {error.strerror or error} ({current.path})"
            raise StoreWriteError(self.failure) from error
        self._unwritten = []
        # After the bytes, because the flush worker syncs up to this offset.
        self.wrote_offset = self.next_offset
        self.stored_at_ms = self.appended_at_ms

    def _make_room(self, size: int) -> None:
        """Allocate blocks for `size` bytes in the current file if they fit there; otherwise go to the next file."""
        current, end = self._current, self.next_offset + size + BLANK_BYTES_MIN
        if current is not None and end <= current.end:
            self._extend(current, end)
        else:
            self._roll(size)

    def _extend(self, current: MappedFile, end: int) -> None:
        at = self._allocated - current.start
        allocated = allocate_ahead(current.file, at, end - current.start, step_max=_ALLOCATED_MAX)
        self._use(current, allocated=current.start + allocated)

    def _roll(self, size: int) -> None:
        """Go to the next file. The old file gets its filler only when the new file exists."""
        if size > self.record_bytes_max:
            raise InvalidMessageError("record", size, f"bytes are more than a file takes ({self.record_bytes_max})")
        hit(Failpoint.STORE_BEFORE_ROLL)
        start = self._next_start()
        self._drop_descriptors()
        if len(self._left) >= UNFLUSHED_FILES_MAX:
            reason = f"waits until one of {UNFLUSHED_FILES_MAX} full files is flushed"
            raise FileNotReadyError(self.files.path_of(start), reason)
        made = self._ahead.take(start)
        try:
            self.write_out()
        except StoreWriteError:
            made.close()
            raise
        old = self._current
        is_filled = old is not None and old.end - self.next_offset >= BLANK_BYTES_MIN
        try:
            if old is not None and is_filled and self.next_offset > self._limit:
                self._extend(old, self.next_offset + BLANK_BYTES_MIN)
        except StoreFullError:
            made.close()
            raise
        new = self.files.add_file(start, durable=True, prepared=made)
        if old is not None and is_filled:
            self._unwritten.append(encode_blank(old.end - self.next_offset))
            self.write_out()
        if old is not None:
            self._left.append(old)
        self._use(new, allocated=new.end)
        self.next_offset = self.wrote_offset = start
        self._ahead.make(self._next_start())

    @property
    def is_flush_due(self) -> bool:
        """Return whether a flush is due before its usual time, because many full files wait for it."""
        return len(self._left) > UNFLUSHED_FILES_MAX // 2

    def _drop_descriptors(self) -> None:
        """Close the descriptors of files that are full and flushed."""
        for file in self._left:
            # A file that the log has dropped belongs to the worker that removes it.
            if file.end <= self.flushed_offset and self.files.find(file.start) is file:
                file.file.drop_descriptor()
        self._left = [file for file in self._left if file.end > self.flushed_offset]

    def _next_start(self) -> int:
        """Return the start of the file after the current one; without a current one, of the first file to write."""
        if self._current is not None:
            return self._current.end
        start = self.files.start_of(self.next_offset)
        return start if start == self.next_offset else start + self.files.file_size

    def start_new_file(self) -> None:
        """Fill up the current file, also on the disk, and continue in a new one.

        Waits for the new file; part of the start.

        Raises:
            StoreFullError: There is no new file.
            StoreWriteError: The filler could not be written.
            OSError: The filler could not be synced.
        """
        old = self._current
        if old is None:
            return
        self._ahead.wait_for(self._next_start())
        self._roll(BLANK_BYTES_MIN)
        old.sync()
        self.flushed_offset = self.next_offset

    def leave_missing_file(self) -> str | None:
        """Continue in a new file if the current one was removed: its bytes would not survive the process.

        Returns:
            The path of the removed file, or None.

        Raises:
            StoreFullError: There is no new file.
            FileNotReadyError: The new file is still being created.
            StoreWriteError: The old file can no longer be written.
        """
        old = self._current
        if old is None or not is_gone(self._files, old.path):
            return None
        self._roll(BLANK_BYTES_MIN)
        return old.path

    def wait_for_room(self) -> None:
        """Wait until there is room for LOG_AHEAD_BYTES, or all files ahead exist; part of the start.

        A disk that is full now does not prevent the start: messages can be read, and there may be room later.
        """
        room = self._current.end - self.next_offset if self._current is not None else 0
        self._ahead.wait_for_room(self._next_start(), LOG_AHEAD_BYTES - room)

    def maintain_files(self) -> None:
        """Retry the creation of files that failed, and close descriptors that are not needed; called now and then."""
        self._ahead.retry(self._next_start())
        self._drop_descriptors()

    @property
    def full_reason(self) -> str | None:
        """Return why there is no next file, or None; also None while it is being created."""
        return self._ahead.full_reason(self._next_start())

    def scan(self, on_lost: OnLost) -> LogScan:
        """Return a pass over the log, see LogScan."""
        return LogScan(self.files, manifest=self.manifest, on_lost=on_lost)

    def find_head(self, offset: int) -> RecordHead | None:
        """Return the head of the record at an offset; None if there is no valid record, or the disk can't read it."""
        file = self.files.find(offset)
        return find_head(file, offset - file.start, self.manifest) if file is not None else None

    def unflushed_files(self) -> Iterator[MappedFile]:
        """Return the files with bytes between the flushed and the written offset, oldest first; for the worker."""
        flushed, wrote = self.flushed_offset, self.wrote_offset
        return iter([file for file in list(self.files) if file.end > flushed and file.start < wrote])

    def close(self) -> None:
        """Close all files, after the worker has ended; files created ahead stay on the disk, empty."""
        self._ahead.close()
        self.files.close()
