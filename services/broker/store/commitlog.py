"""The CommitLog: all records of a broker in one sequence of files (docs/formats/commitlog.md), and its only writer.

A record that does not fit its file goes to the next one, and a filler takes the rest: 8 bytes always remain for it.
A worker makes files ahead (logahead.py). These files have all their blocks from the beginning. A file that was there
at the start may be sparse (a copy of RocketMQ's store); the log takes its blocks in steps ahead of the write end, where
it checks for the end of the file anyway.

Offsets, in order: `min_offset` ≤ `confirm_offset` ≤ `wrote_offset` ≤ `next_offset`. What is appended gathers until
`write_out` hands it to the operating system in one call, once a turn of the caller's loop: until then a crash of the
process loses it, so nobody may have been told. What lies before the confirm offset may be dispatched and read: with
SYNC_FLUSH that is what is on the disk, with ASYNC_FLUSH all that was written.

Written with `File.write` and not through the map: a page that a sync has just written costs a fault when the map
touches it again, and that was a fifth of a send. If the operating system refuses a write nobody knows how much of it
was done, so the log takes nothing more until the next start has read what is there.

Concurrency: the store's thread writes. The flush worker reads `stored_at_ms` and then `wrote_offset`, which are set
in the opposite order, so that the time it reports is never later than the bytes it synced.
"""

from collections.abc import Iterator, Sequence

from gantry.model.errors import InvalidMessageError
from gantry.model.record import BLANK_BYTES_MIN, RecordHead, encode_blank
from gantry.model.sysflag import STORE_HOST_V6
from gantry.runtime.failpoints import Failpoint, hit
from gantry.runtime.files import FileSystem
from gantry.runtime.workers import Worker
from gantry.storeformat.layout import COMMIT_LOG_DIR
from gantry.storeformat.mark import GantryMark
from services.broker.store.allocation import allocate_ahead
from services.broker.store.errors import FileNotReadyError, StoreFullError, StoreWriteError
from services.broker.store.logahead import FilesAhead
from services.broker.store.logscan import LogScan, OnLost, find_head
from services.broker.store.mappedfile import MappedFile, is_gone
from services.broker.store.mappedfilequeue import MappedFileQueue
from services.broker.store.settings import LOG_AHEAD_BYTES, StoreSettings

_ALLOCATED_MAX = 8 << 20

UNFLUSHED_FILES_MAX = 32
"""Files that are full and not flushed yet. They hold their descriptors, since only an open one learns of a failed
write-back. More are a sign that the disk hangs."""

UNWRITTEN_BYTES_MAX = 1 << 20
"""So much may gather before it is written without being asked for."""

# The file that is written, and the one that the worker makes with its folder.
_WRITTEN_AND_MADE = 3

# No checksum covers the store time of RocketMQ's records, or the checkpoint's times. If one is further ahead of the clock
# than clocks are set back, a bit of it has flipped, and it must not rule the times to come.
UNPROVEN_AHEAD_MS_MAX = 86_400_000


def log_descriptors(settings: StoreSettings) -> int:
    """Return how many descriptors a running log takes at most, whatever number of files it has."""
    return _WRITTEN_AND_MADE + settings.log_files_ahead + UNFLUSHED_FILES_MAX


class CommitLog:
    """The log.

    Attributes:
        files: Its files.
        mark: Says where every record has the whole-record checksum.
        next_offset: Where the next record goes, unless it has to go to the next file.
        wrote_offset: Everything before it was handed to the operating system: it survives the process.
        flushed_offset: Everything before it is on the disk.
        appended_at_ms: Store time of the last record that was appended; the next one's is not before it.
        stored_at_ms: Store time of the last record that was written.
        failure: Why nothing will be written any more, or None.
        record_checksum: Records get the checksum over the whole record.
        store_host: Packed; put into every record, with `store_flag` in its sysFlag.
    """

    __slots__ = (
        "_ahead",
        "_allocated",
        "_current",
        "_files",
        "_is_sync",
        "_left",
        "_limit",
        "_store_host",
        "_unwritten",
        "appended_at_ms",
        "failure",
        "files",
        "flushed_offset",
        "mark",
        "next_offset",
        "record_checksum",
        "store_flag",
        "stored_at_ms",
        "wrote_offset",
    )

    def __init__(self, files: FileSystem, settings: StoreSettings, worker: Worker, store_host: bytes) -> None:
        self._files = files
        self._is_sync = settings.is_sync_flush
        self.record_checksum = settings.record_checksum
        self.files = MappedFileQueue(
            files, f"{settings.root_dir}/{COMMIT_LOG_DIR}", settings.mapped_file_size_commit_log
        )
        self.mark = GantryMark()
        self.next_offset = 0
        self.wrote_offset = 0
        self.flushed_offset = 0
        self.stored_at_ms = 0
        self.failure: str | None = None
        self.store_host = store_host
        self._current: MappedFile | None = None
        self._left: list[MappedFile] = []
        self._allocated = 0
        self._limit = 0
        self._unwritten: list[bytes] = []
        self.appended_at_ms = 0
        self._ahead = FilesAhead(files, self.files, worker, count=settings.log_files_ahead)

    @property
    def store_host(self) -> bytes:
        """Return the packed address that is put into every record."""
        return self._store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self._store_host = packed
        self.store_flag = STORE_HOST_V6 if len(packed) > 8 else 0

    @property
    def min_offset(self) -> int:
        """Return the first byte that is still there."""
        first = self.files.first
        return first.start if first is not None else self.next_offset

    @property
    def confirm_offset(self) -> int:
        """Return how far the log may be dispatched and read."""
        return self.flushed_offset if self._is_sync else self.wrote_offset

    @property
    def record_bytes_max(self) -> int:
        """Return the size of the largest record that fits a file."""
        return self.files.file_size - BLANK_BYTES_MIN

    def open_at(self, end: int) -> None:
        """Say where the log ends, after recovery; everything before counts as flushed."""
        self.next_offset = self.wrote_offset = self.flushed_offset = end
        file = self.files.find(end)
        if file is not None:
            self._use(file, allocated=end)
        else:
            self._current, self._limit = None, 0

    def open_times(self, flushed_at_ms: int, *, now_ms: int) -> None:
        """Say which store time the next record's may not be before, after recovery.

        Args:
            flushed_at_ms: Of the last record before the checkpoint's offset: the scan of recovery may have met no record.
            now_ms: Wall time.
        """
        last_ms = max(self.stored_at_ms, flushed_at_ms)
        if last_ms - now_ms > UNPROVEN_AHEAD_MS_MAX and not self.mark.demands_record_crc(self.next_offset - 1):
            last_ms = now_ms
        self.appended_at_ms = last_ms

    def _use(self, file: MappedFile, *, allocated: int) -> None:
        self._current = file
        self._allocated = allocated
        self._limit = allocated - BLANK_BYTES_MIN

    def append(self, record: bytes, stored_at_ms: int) -> bool:
        """Append a whole record, which must say that it begins at `next_offset`.

        Returns:
            False if there was no room: there is some now, perhaps in the next file. The record must be encoded again for
            what `next_offset` says now.

        Raises:
            InvalidMessageError: It fits no file.
            StoreFullError: There is no next file, or a sparse one gets no more blocks.
            FileNotReadyError: The next file is still being made, or has to wait for a flush.
            StoreWriteError: The records appended before it could not be written. In all four cases it was not appended.
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
        """Append records that follow each other, all into one file; otherwise as `append`."""
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
        """Hand what was appended to the operating system.

        Raises:
            StoreWriteError: It was refused, now or earlier: what lies behind `wrote_offset` is lost, or torn.
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
        # After the bytes, since the flush worker syncs up to it.
        self.wrote_offset = self.next_offset
        self.stored_at_ms = self.appended_at_ms

    def _make_room(self, size: int) -> None:
        """Take blocks for so many bytes in the current file if they fit there, else go to the next one."""
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
        """Go to the next file. The old one gets its filler only when there is a new one."""
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
        """Say whether so many files are full and not flushed that nobody should wait for the usual time to flush."""
        return len(self._left) > UNFLUSHED_FILES_MAX // 2

    def _drop_descriptors(self) -> None:
        """Close the descriptors of files that are full and flushed."""
        for file in self._left:
            # A file that the log has forgotten belongs to the worker that removes it.
            if file.end <= self.flushed_offset and self.files.find(file.start) is file:
                file.file.drop_descriptor()
        self._left = [file for file in self._left if file.end > self.flushed_offset]

    def _next_start(self) -> int:
        """Return where the file after the current one starts; without a current one, the file that is written first."""
        if self._current is not None:
            return self._current.end
        start = self.files.start_of(self.next_offset)
        return start if start == self.next_offset else start + self.files.file_size

    def start_new_file(self) -> None:
        """Fill up the current file, on the disk too, and go on in a new one.

        Waits for the new one; part of the start.

        Raises:
            StoreFullError: There is no new one.
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
        """Go on in a new file if somebody took the current one away: nothing in it would survive the process.

        Returns:
            The path of the file that is gone, or None.

        Raises:
            StoreFullError: There is no new one.
            FileNotReadyError: It is still being made.
            StoreWriteError: The old one can't be written any more.
        """
        old = self._current
        if old is None or not is_gone(self._files, old.path):
            return None
        self._roll(BLANK_BYTES_MIN)
        return old.path

    def open_room(self) -> None:
        """Wait until there is room for LOG_AHEAD_BYTES, or all files ahead are made; part of the start.

        A disk that is full now is no reason not to start: messages can be read, and there may be room later.
        """
        room = self._current.end - self.next_offset if self._current is not None else 0
        self._ahead.wait_for_room(self._next_start(), LOG_AHEAD_BYTES - room)

    def tend_files(self) -> None:
        """Try again to make files where that failed, and close descriptors that nobody needs; called now and then."""
        self._ahead.retry(self._next_start())
        self._drop_descriptors()

    @property
    def full_reason(self) -> str | None:
        """Say why there is no next file, or None; None also while it is being made."""
        return self._ahead.full_reason(self._next_start())

    def scan(self, on_lost: OnLost) -> LogScan:
        """Return a way through the log, see LogScan."""
        return LogScan(self.files, mark=self.mark, on_lost=on_lost)

    def find_head(self, offset: int) -> RecordHead | None:
        """Return the head of the record at an offset; None where none proves itself, or the disk can't read it."""
        file = self.files.find(offset)
        return find_head(file, offset - file.start, self.mark) if file is not None else None

    def unflushed_files(self) -> Iterator[MappedFile]:
        """Return the files with bytes between the flushed and the written offset, oldest first; for the worker."""
        flushed, wrote = self.flushed_offset, self.wrote_offset
        return iter([file for file in list(self.files) if file.end > flushed and file.start < wrote])

    def close(self) -> None:
        """Close all files, after the worker has ended; files made ahead are left empty on the disk."""
        self._ahead.close()
        self.files.close()
