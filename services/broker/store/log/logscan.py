"""Reads the CommitLog record by record and skips damaged bytes.

After an invalid record, the scan continues at the next valid one (gantry.storeformat.resync), and reports the skipped
bytes as a lost range. The filler at a file's end is valid if it names exactly the number of bytes that are left.
"""

from collections.abc import Callable, Iterator
from typing import Final

from gantry.model.record import BLANK_BYTES_MIN, BLANK_MAGIC, RECORD_BYTES_MIN, RecordHead, peek
from gantry.runtime.files import Memory
from gantry.storeformat.mark import StoreManifest
from gantry.storeformat.resync import examine, find_next_record, is_filler
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.mappedfilequeue import MappedFileQueue

OnLost = Callable[[int, int], None]
_BLANK_MAGIC_BYTES: Final = BLANK_MAGIC.to_bytes(4)
_MAGIC_AT: Final = 4
_SEARCHED_BYTES: Final = 1 << 20
_GUESSED_BYTES: Final = 4 << 10


class LogScan:
    """One pass over the log.

    Args:
        files: The CommitLog's files.
        mark: The store's mark; it says where a record must have the whole-record checksum.
        on_lost: Called with the start and end of every range without a valid record.

    After a lost range in a part of the log that Apache RocketMQ wrote, the scan skips records stored before the last
    valid one. RocketMQ truncates its log without erasing the cut bytes, so old records may follow the end. In Gantry's
    part, nothing follows the end (recovery erases it), so a clock that was set back does no harm.

    Attributes:
        end: The end of the last record or filler that was read.
    """

    def __init__(self, files: MappedFileQueue, *, mark: StoreManifest, on_lost: OnLost) -> None:
        self._files = files
        self._mark = mark
        self._on_lost = on_lost
        self._stored_at_ms = 0
        self.end = 0

    def records(self, start: int, stop: int) -> Iterator[tuple[int, RecordHead, MappedFile]]:
        """Yield (physical offset, head, file) of every record in a range that begins at a record or at a file."""
        position = self.end = start
        while position < stop:
            file = self._files.find(position)
            if file is None:
                following = self._files.following(position)
                end = stop if following is None else min(following.start, stop)
                self._on_lost(position, end)
                position = end
                continue
            limit = min(file.end, stop)
            yield from self._in_file(file, position, limit)
            position = limit

    def _in_file(self, file: MappedFile, position: int, limit: int) -> Iterator[tuple[int, RecordHead, MappedFile]]:
        memory, base, end = file.memory, file.start, limit - file.start
        lost_from: int | None = None
        while limit - position >= BLANK_BYTES_MIN:
            at = position - base
            head, _, problem = examine(memory, at, end=end, base=base, mark=self._mark)
            if problem is not None or head is None or (lost_from is not None and self._is_stale(head)):
                if is_filler(memory, at, end=len(memory)):
                    self.end = file.end
                    break
                lost_from = position if lost_from is None else lost_from
                position = self._next(file, at, end)
                continue
            if lost_from is not None:
                self._on_lost(lost_from, position)
                lost_from = None
            self._stored_at_ms = head.stored_at_ms
            self.end = position + head.size_bytes
            yield position, head, file
            position = self.end
        else:
            # No filler, and too few bytes for one: but the last record of a full file always leaves at least 8 bytes.
            lost_from = position if lost_from is None else lost_from
            position = limit
        if lost_from is not None and lost_from < position:
            self._on_lost(lost_from, position)

    def _is_stale(self, head: RecordHead) -> bool:
        return head.stored_at_ms < self._stored_at_ms and not self._mark.demands_record_crc(head.physical_offset)

    def _next(self, file: MappedFile, at: int, end: int) -> int:
        """Return the start of the next record or of the file's filler, or else the end of the readable bytes."""
        memory, base = file.memory, file.start
        # Space that was allocated and never written need not be read.
        data_end = min(end, file.file.data_end(at))
        record = find_next_record(memory, at + 1, end=data_end, base=base, mark=self._mark)
        if record is not None:
            return base + record
        filler = _find_filler(memory, at + 1, data_end) if end == len(memory) else None
        return base + (end if filler is None else filler)


def _find_filler(memory: Memory, at: int, stop: int) -> int | None:
    """Return the start of the file's filler, if its first 8 bytes lie before `stop`; its other bytes are unwritten."""
    while at < stop:
        found = bytes(memory[at : min(at + _SEARCHED_BYTES, stop)]).find(_BLANK_MAGIC_BYTES, _MAGIC_AT)
        if found < 0:
            at += _SEARCHED_BYTES - _MAGIC_AT - len(_BLANK_MAGIC_BYTES)
        elif is_filler(memory, at + found - _MAGIC_AT, end=len(memory)):
            return at + found - _MAGIC_AT
        else:
            at += found - _MAGIC_AT + 1
    return None


def find_head(file: MappedFile, at: int, mark: StoreManifest) -> RecordHead | None:
    """Return the head of the record at a position in a file; None if there is no valid record.

    This reads by position, because a start calls it for positions that the disk may not be able to read.

    Raises:
        OSError: The operating system rejected the read.
    """
    end = file.end - file.start
    data = file.try_read(at, min(_GUESSED_BYTES, end - at))
    if data is None or len(data) < RECORD_BYTES_MIN:
        return None
    size, _ = peek(data, 0)
    if len(data) < size <= end - at:
        data = file.try_read(at, size)
        if data is None:
            return None
    examined = examine(bytearray(data), 0, end=len(data), base=file.start + at, mark=mark)
    return examined.head if examined.problem is None else None
