"""Going through the CommitLog record by record, over whatever is damaged.

Where a record does not prove itself the scan goes on at the next one that does (gantry.storeformat.resync); what was
skipped is told as a lost range. A filler at a file's end proves itself by naming exactly the bytes that are left.
"""

from collections.abc import Callable, Iterator
from typing import Final

from gantry.model.record import BLANK_BYTES_MIN, BLANK_MAGIC, RECORD_BYTES_MIN, RecordHead, peek
from gantry.runtime.files import Memory
from gantry.storeformat.mark import GantryMark
from gantry.storeformat.resync import examine, find_next_record, is_filler
from services.broker.store.mappedfile import MappedFile
from services.broker.store.mappedfilequeue import MappedFileQueue

OnLost = Callable[[int, int], None]
_BLANK_MAGIC_BYTES: Final = BLANK_MAGIC.to_bytes(4)
_MAGIC_AT: Final = 4
_SEARCHED_BYTES: Final = 1 << 20
_GUESSED_BYTES: Final = 4 << 10


class LogScan:
    """One way through the log.

    Args:
        files: The CommitLog's.
        mark: Says where a record must have the whole-record checksum.
        on_lost: Told the start and end of every range without a record that proves itself.

    After a lost range in a part of the log that Apache RocketMQ wrote, records stored before the last good one are
    gone over: it truncates its log without wiping what it cut off, so that records of an earlier life may follow the
    end. In our part nothing follows the end (recovery wipes it), and the clock may be set back without harm.

    Attributes:
        end: Where the last record or filler that was seen ends.
    """

    def __init__(self, files: MappedFileQueue, *, mark: GantryMark, on_lost: OnLost) -> None:
        self._files = files
        self._mark = mark
        self._on_lost = on_lost
        self._stored_at_ms = 0
        self.end = 0

    def records(self, start: int, stop: int) -> Iterator[tuple[int, RecordHead, MappedFile]]:
        """Yield (physical offset, head, file) of every record in a range that begins at a record or a file."""
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
            # No filler, and too few bytes for one: the last record of a full file leaves at least 8.
            lost_from = position if lost_from is None else lost_from
            position = limit
        if lost_from is not None and lost_from < position:
            self._on_lost(lost_from, position)

    def _is_stale(self, head: RecordHead) -> bool:
        return head.stored_at_ms < self._stored_at_ms and not self._mark.demands_record_crc(head.physical_offset)

    def _next(self, file: MappedFile, at: int, end: int) -> int:
        """Return where the next record or the file's filler starts, or the end of what may be looked at."""
        memory, base = file.memory, file.start
        # What was allocated and never written need not be read.
        data_end = min(end, file.file.data_end(at))
        record = find_next_record(memory, at + 1, end=data_end, base=base, mark=self._mark)
        if record is not None:
            return base + record
        filler = _find_filler(memory, at + 1, data_end) if end == len(memory) else None
        return base + (end if filler is None else filler)


def _find_filler(memory: Memory, at: int, stop: int) -> int | None:
    """Return where the file's filler starts, its first 8 bytes before `stop`; the rest of it is never written."""
    while at < stop:
        found = bytes(memory[at : min(at + _SEARCHED_BYTES, stop)]).find(_BLANK_MAGIC_BYTES, _MAGIC_AT)
        if found < 0:
            at += _SEARCHED_BYTES - _MAGIC_AT - len(_BLANK_MAGIC_BYTES)
        elif is_filler(memory, at + found - _MAGIC_AT, end=len(memory)):
            return at + found - _MAGIC_AT
        else:
            at += found - _MAGIC_AT + 1
    return None


def find_head(file: MappedFile, at: int, mark: GantryMark) -> RecordHead | None:
    """Return the head of the record at a position in a file; None where no record proves itself.

    Reads by position: a start calls this for places of which it does not know yet whether the disk can read them.

    Raises:
        OSError: The operating system refused to read.
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
