"""The CommitLog: all records of a broker in one sequence of files (docs/formats/commitlog.md), and its only writer.

A record that does not fit its file goes to the next one, and a filler takes the rest: 8 bytes always remain for it.
The next file is made ahead of time by a worker, so that the change costs a pointer and not a disk's patience.

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
from concurrent.futures import Future
from typing import Any

from gantry.model.errors import InvalidMessageError
from gantry.model.record import BLANK_BYTES_MIN, encode_blank, peek
from gantry.model.sysflag import STORE_HOST_V6
from gantry.runtime.failpoints import Failpoint, hit
from gantry.runtime.files import FileSystem
from gantry.runtime.workers import Worker
from gantry.storeformat.layout import COMMIT_LOG_DIR
from gantry.storeformat.mark import GantryMark
from gantry.storeformat.resync import examine
from services.broker.store.errors import StoreFullError, StoreWriteError
from services.broker.store.logscan import LogScan, OnLost
from services.broker.store.mappedfile import MappedFile
from services.broker.store.mappedfilequeue import MappedFileQueue, create_file
from services.broker.store.settings import StoreSettings

UNWRITTEN_BYTES_MAX = 1 << 20
"""So much may gather before it is written without being asked for."""


class CommitLog:
    """The log.

    Attributes:
        files: Its files.
        mark: Says where every record has the whole-record checksum.
        next_offset: Where the next record goes, unless it has to go to the next file.
        wrote_offset: Everything before it was handed to the operating system: it survives the process.
        flushed_offset: Everything before it is on the disk.
        stored_at_ms: Store time of the last record that was written.
        failure: Why nothing will be written any more, or None.
        record_checksum: Records get the checksum over the whole record.
        store_host: Packed; put into every record, with `store_flag` in its sysFlag.
    """

    __slots__ = (
        "_appended_at_ms",
        "_current",
        "_files",
        "_is_sync",
        "_last_failure",
        "_limit",
        "_next",
        "_store_host",
        "_unwritten",
        "_worker",
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
        self._worker = worker
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
        self._limit = 0
        self._unwritten: list[bytes] = []
        self._appended_at_ms = 0
        self._next: tuple[int, Future[Any]] | None = None
        self._last_failure: StoreFullError | None = None

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
            self._use(file)
        else:
            self._current, self._limit = None, 0

    def _use(self, file: MappedFile) -> None:
        self._current = file
        self._limit = file.end - BLANK_BYTES_MIN

    def append(self, record: bytes, stored_at_ms: int) -> bool:
        """Append a whole record, which must say that it begins at `next_offset`.

        Returns:
            False if it did not fit this file: `next_offset` is in the next one now, and it must be encoded again.

        Raises:
            InvalidMessageError: It fits no file.
            StoreFullError: There is no next file.
            StoreWriteError: What was appended before it could not be written. In all three cases it was not appended.
        """
        end = self.next_offset + len(record)
        if end > self._limit:
            self._roll(len(record))
            return False
        if end - self.wrote_offset > UNWRITTEN_BYTES_MAX:
            self.write_out()
        self._unwritten.append(record)
        self.next_offset = end
        self._appended_at_ms = stored_at_ms
        return True

    def append_batch(self, records: Sequence[bytes], stored_at_ms: int) -> bool:
        """Append records that follow each other, all into one file; otherwise as `append`."""
        size = sum(map(len, records))
        if self.next_offset + size > self._limit:
            self._roll(size)
            return False
        if self.next_offset + size - self.wrote_offset > UNWRITTEN_BYTES_MAX:
            self.write_out()
        self._unwritten += records
        self.next_offset += size
        self._appended_at_ms = stored_at_ms
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
        self.stored_at_ms = self._appended_at_ms

    def _roll(self, size: int) -> None:
        """Go to the next file. The old one gets its filler only when there is a new one."""
        if size > self.record_bytes_max:
            raise InvalidMessageError("record", size, f"bytes are more than a file takes ({self.record_bytes_max})")
        hit(Failpoint.STORE_BEFORE_ROLL)
        old = self._current
        start = self.files.start_of(self.next_offset) if old is None else old.end
        if old is None and start != self.next_offset:
            start += self.files.file_size
        self.write_out()
        new = self.files.add_file(start, durable=True, prepared=self._take_next(start))
        if old is not None and self.next_offset < old.end:
            self._unwritten.append(encode_blank(old.end - self.next_offset))
            self._appended_at_ms = self.stored_at_ms
            self.write_out()
        self._use(new)
        self.next_offset = self.wrote_offset = start
        self.prepare_next()

    def prepare_next(self) -> None:
        """Have the worker make the file after the current one, unless that is done or has failed lately."""
        current = self._current
        if current is None or self._next is not None:
            return
        start = current.end
        files, path, size = self._files, self.files.path_of(start), self.files.file_size
        self._next = (start, self._worker.submit(lambda: create_file(files, path, size, durable=True)))

    def retry_next(self) -> None:
        """Forget that making the next file failed, and try again; called now and then."""
        self._last_failure = None
        if self._next is not None and self._next[1].done() and self._next[1].exception() is not None:
            self._next = None
        self.prepare_next()

    @property
    def full_reason(self) -> str | None:
        """Say why there will be no next file, or None."""
        if self._last_failure is not None:
            return str(self._last_failure)
        if self._next is not None and self._next[1].done():
            error = self._next[1].exception()
            return str(error) if error is not None else None
        return None

    def _take_next(self, start: int) -> Any:
        """Return the file made ahead, or None where there is none.

        Raises:
            StoreFullError: Making it has failed, and it is too soon to try again.
        """
        if self._last_failure is not None:
            raise self._last_failure
        if self._next is None:
            return None
        prepared_start, future = self._next
        self._next = None
        assert prepared_start == start, f"the file for {prepared_start} was made ahead, not {start}"
        try:
            return future.result()
        except StoreFullError as error:
            self._last_failure = error
            raise

    def record(self, physical_offset: int) -> bytes | None:
        """Return a copy of the record at an offset, if it is one that proves itself and may be read."""
        file = self.files.find(physical_offset)
        end = min(file.end, self.confirm_offset) if file is not None else 0
        if file is None or end - physical_offset < BLANK_BYTES_MIN:
            return None
        size, _ = peek(file.memory, physical_offset - file.start)
        if not 0 < size <= end - physical_offset:
            return None
        at = physical_offset - file.start
        data = bytes(file.memory[at : at + size])
        examined = examine(data, 0, end=size, base=physical_offset, mark=self.mark)  # type: ignore[arg-type]
        return data if examined.problem is None else None

    def stored_at(self, physical_offset: int) -> int | None:
        """Return the store time of the record at an offset, if it proves itself."""
        file = self.files.find(physical_offset)
        if file is None:
            return None
        end = min(file.end, self.confirm_offset) - file.start
        examined = examine(file.memory, physical_offset - file.start, end=end, base=file.start, mark=self.mark)
        return examined.head.stored_at_ms if examined.head is not None and examined.problem is None else None

    def first_stored_at(self) -> int | None:
        """Return the store time of the oldest record that can be read, or None."""
        for _, head, _ in self.scan(lambda start, end: None).records(self.min_offset, self.confirm_offset):
            return head.stored_at_ms
        return None

    def scan(self, on_lost: OnLost) -> LogScan:
        """Return a way through the log, see LogScan."""
        return LogScan(self.files, mark=self.mark, on_lost=on_lost)

    def unflushed_files(self) -> Iterator[MappedFile]:
        """Return the files with bytes between the flushed and the written offset, oldest first; for the worker."""
        flushed, wrote = self.flushed_offset, self.wrote_offset
        return iter([file for file in list(self.files) if file.end > flushed and file.start < wrote])

    def close(self) -> None:
        """Close all files; a file made ahead is left empty on the disk."""
        if self._next is not None:
            future = self._next[1]
            self._next = None
            if future.exception() is None:
                future.result().close()
        self.files.close()
