"""Reads records of the CommitLog by their offset; does not wait for the disk if the pages are guarded (pages.py).

Concurrency: the store's thread only.
"""

from gantry.model.record import BLANK_BYTES_MIN, RecordHead, parse_head, peek
from gantry.storeformat.resync import examine
from services.broker.store.errors import StoreReadError
from services.broker.store.files.pages import Pages, Window
from services.broker.store.log.commitlog import CommitLog

RECORD_READ_MAX = 32 << 20
"""A unit that promises a larger record is damaged: no frame can carry one, and a read of a gigabyte would be wasted."""
_GUESSED_BYTES = 16 << 10
_BEYOND_LOG = 1 << 63
HeadedRecord = tuple[bytes, RecordHead]
"""A copy of a valid record, and its head."""


class LogReader:
    """The reading side of the CommitLog.

    Attributes:
        pages: The guard of the maps.
    """

    __slots__ = ("_first_stored", "_log", "_wrote_at_tick", "_young_offset", "pages")

    def __init__(self, commit_log: CommitLog, pages: Pages) -> None:
        self._log = commit_log
        self.pages = pages
        # All bytes from the young offset on were written within the last two ticks, so they are in memory.
        self._young_offset = self._wrote_at_tick = _BEYOND_LOG
        self._first_stored: tuple[int, int] | None = None

    def tick(self) -> None:
        """Stop treating bytes written before the last tick as young; called every 100 ms."""
        self._young_offset, self._wrote_at_tick = self._wrote_at_tick, self._log.wrote_offset

    def window(self, physical_offset: int, size: int) -> Window | None:
        """Return bytes of the log that may be read.

        Returns:
            A window that covers the range, or the part of the range within the file; None if the file is missing.

        Raises:
            NotInMemoryError: A byte of the range is not in memory, and the pages are guarded.
        """
        file = self._log.files.find(physical_offset)
        if file is None:
            return None
        if physical_offset >= self._young_offset and self.pages.is_guarded:
            return file.memory, file.start, max(file.start, self._young_offset), file.end
        try:
            return self.pages.window(file, physical_offset, min(size, RECORD_READ_MAX))
        except StoreReadError:
            # Zeros are never a valid record, so readers count this one as damaged and continue.
            return bytes(size), physical_offset, physical_offset, physical_offset + size

    def record(self, physical_offset: int) -> bytes | None:
        """Return a copy of the record at an offset, or None; see `headed_record`."""
        found = self.headed_record(physical_offset)
        return None if found is None else found[0]

    def headed_record(self, physical_offset: int) -> HeadedRecord | None:
        """Return a copy of the record at an offset and its head, or None if it is not valid or may not be read yet.

        Raises:
            NotInMemoryError: The record is not in memory, and the pages are guarded.
        """
        file = self._log.files.find(physical_offset)
        left = min(file.end, self._log.confirm_offset) - physical_offset if file is not None else 0
        if left < BLANK_BYTES_MIN:
            return None
        # The record's size is not known yet, and most records are smaller than this: one read of the disk gets them
        # whole.
        window = self.window(physical_offset, min(_GUESSED_BYTES, left))
        assert window is not None
        size, _ = peek(window[0], physical_offset - window[1])
        if size == 0 and self.pages.is_guarded:
            # Perhaps only the bytes after a small record are unreadable.
            window = self.window(physical_offset, BLANK_BYTES_MIN)
            assert window is not None
            size, _ = peek(window[0], physical_offset - window[1])
        if not 0 < size <= min(left, RECORD_READ_MAX):
            return None
        if physical_offset + size > window[3]:
            window = self.window(physical_offset, size)
            assert window is not None
        memory, origin, _, _ = window
        data = bytes(memory[physical_offset - origin : physical_offset - origin + size])
        examined = examine(data, 0, end=size, base=physical_offset, manifest=self._log.manifest)  # type: ignore[arg-type]
        return (data, examined.head) if examined.problem is None and examined.head is not None else None

    def stored_at(self, physical_offset: int, size: int) -> int | None:
        """Return the store time of the valid record at an offset with a size, or None.

        Raises:
            NotInMemoryError: The record is not in memory, and the pages are guarded.
        """
        head = self.valid_head(physical_offset, size)
        return head.stored_at_ms if head is not None else None

    def valid_head(self, physical_offset: int, size: int) -> RecordHead | None:
        """Return the head of the valid record at an offset with a size, or None; raises like `stored_at`."""
        window = self.window(physical_offset, size)
        if window is None:
            return None
        memory, origin, _, high = window
        end = min(physical_offset + size, high, self._log.confirm_offset) - origin
        examined = examine(memory, physical_offset - origin, end=end, base=origin, manifest=self._log.manifest)
        return examined.head if examined.problem is None else None

    def first_stored_at(self) -> int | None:
        """Return the store time of the oldest valid record that stands at the beginning of a file, or None.

        Raises:
            NotInMemoryError: The record is not in memory, and the pages are guarded.
        """
        first = self._first_stored
        if first is None or first[0] != self._log.min_offset:
            # A damaged first record is skipped with its whole file, because a search for the next record may take
            # seconds.
            records = ((file.start, self.record(file.start)) for file in self._log.files)
            found = next(((start, record) for start, record in records if record is not None), None)
            if found is None:
                return None
            first = found[0], parse_head(found[1]).stored_at_ms
            if first[0] == self._log.min_offset:
                self._first_stored = first
        return first[1]
