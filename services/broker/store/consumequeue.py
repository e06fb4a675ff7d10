"""The ConsumeQueue: one queue of one topic, a unit of 20 bytes a message (docs/formats/consumequeue.md).

The index of a unit is the queue offset. `(0, 2³¹-1, 0)` is filler: it stands where there is no message, that is
before the first unit of a queue whose first file does not begin with it, and in the place of a message that was lost
to damage, so that later messages keep their offsets. Zeros are space that was never written.

Two ends are kept apart: `next_offset` is given to the next message put, `max_offset` is where the next unit goes. In
between lie messages that are in the CommitLog and not dispatched yet.
"""

from collections.abc import Iterator
from typing import Final

from gantry.model.names import check_topic
from gantry.model.record import TOPIC_BYTES_MAX_V1
from gantry.runtime.files import FileSystem, Memory
from gantry.storeformat.layout import (
    CONSUME_QUEUE_DIR,
    FILLER_SIZE,
    FILLER_UNIT,
    UNIT,
    UNIT_SIZE_BYTES,
    ConsumeQueueUnit,
    decode_unit,
)
from gantry.storeformat.resync import find_used_end
from services.broker.store.mappedfile import MappedFile
from services.broker.store.mappedfilequeue import MappedFileQueue

BLANK_UNIT: Final = bytes(UNIT_SIZE_BYTES)
TOPIC_LENGTH_MAX: Final = 255
_SEARCHED_BYTES: Final = UNIT_SIZE_BYTES << 16


class ConsumeQueue:
    """One queue.

    Attributes:
        topic: Its name; `topic_bytes` as it is encoded, `topic_field` as records carry it, length in front.
        queue_id: Within the topic.
        min_offset: The first unit whose record the CommitLog still has.
        max_offset: Where the next unit goes.
        next_offset: What the next message put gets.
        pending: Units of this round of dispatch, to be written together.
    """

    __slots__ = (
        "files",
        "flushed_offset",
        "max_offset",
        "min_offset",
        "next_offset",
        "pending",
        "pending_from",
        "queue_id",
        "skipped",
        "topic",
        "topic_bytes",
        "topic_field",
        "version",
    )

    def __init__(self, files: FileSystem, root: str, topic: str, queue_id: int, file_size: int) -> None:
        # The topic becomes a folder's name, and it may come from a damaged record.
        check_topic(topic, length_max=TOPIC_LENGTH_MAX)
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.version = 1 if len(self.topic_bytes) <= TOPIC_BYTES_MAX_V1 else 2
        self.topic_field = len(self.topic_bytes).to_bytes(self.version) + self.topic_bytes
        self.queue_id = queue_id
        self.files = MappedFileQueue(files, f"{root}/{CONSUME_QUEUE_DIR}/{topic}/{queue_id}", file_size)
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self.skipped = 0
        self.pending: list[bytes] = []
        self.pending_from = 0

    def load(self, *, thorough: bool) -> None:
        """Open the files and find the end: the first blank unit, or with `thorough` the last one that is not blank."""
        gone = self.files.load(is_derived=True)
        first, last = self.files.first, self.files.last
        if first is None or last is None:
            return
        # A file that a crash left without a byte is a hole, which recovery will fill.
        self.min_offset = min([first.start, *gone]) // UNIT_SIZE_BYTES
        if thorough:
            end = max((_end_of_units(file) for file in self.files), default=first.start)
        else:
            end = _first_blank(last)
        self.max_offset = self.next_offset = self.flushed_offset = end // UNIT_SIZE_BYTES

    def find_blank(self) -> int | None:
        """Return the first unit before the end that was never written, or whose file is missing; None if none is."""
        start = self.min_offset * UNIT_SIZE_BYTES
        end = self.max_offset * UNIT_SIZE_BYTES
        while start < end:
            file = self.files.find(start)
            if file is None:
                return start // UNIT_SIZE_BYTES
            found = _find_blank(file.memory, start - file.start, min(end, file.end) - file.start)
            if found is not None:
                return (file.start + found) // UNIT_SIZE_BYTES
            start = file.end
        return None

    def unit(self, index: int) -> ConsumeQueueUnit:
        """Return a unit; one that was never written, or whose file is missing, is not valid."""
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            return ConsumeQueueUnit(0, 0, 0)
        return decode_unit(file.memory, position - file.start)

    def units(self, index: int, count: int) -> bytes:
        """Return up to `count` units from `index` on, those that lie in one file and before the end."""
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            # A hole is read as blank units, as far as it reaches.
            following = self.files.following(position)
            end = self.max_offset if following is None else min(following.start // UNIT_SIZE_BYTES, self.max_offset)
            return BLANK_UNIT * min(count, end - index)
        at = position - file.start
        end = min(at + count * UNIT_SIZE_BYTES, self.max_offset * UNIT_SIZE_BYTES - file.start, len(file.memory))
        return bytes(file.memory[at:end])

    def first_sound(self, index: int, end: int) -> tuple[int, ConsumeQueueUnit] | None:
        """Return the first unit from `index` on and before `end` that stands for a message, with its index."""
        while index < end:
            data = self.units(index, min(end - index, 4096))
            for position, (physical_offset, size, tags_code) in enumerate(UNIT.iter_unpack(data)):
                if is_message_unit(physical_offset, size):
                    return index + position, ConsumeQueueUnit(physical_offset, size, tags_code)
            index += len(data) // UNIT_SIZE_BYTES
        return None

    def append(self, index: int, units: bytes) -> None:
        """Write units that follow each other; what lies between the end and `index` becomes filler.

        Raises:
            StoreFullError: A file can't be made; nothing was written.
        """
        if index > self.max_offset:
            index = self._fill_to(index)
        count = len(units) // UNIT_SIZE_BYTES
        self._make_files(index, index + count)
        self.files.write(index * UNIT_SIZE_BYTES, units)
        if index + count > self.max_offset:
            self.max_offset = index + count
            self.next_offset = max(self.next_offset, self.max_offset)

    def _fill_to(self, index: int) -> int:
        if len(self.files) == 0:
            # A queue that begins late: RocketMQ's filler up to the first unit, in the file that holds it.
            start = self.files.start_of(index * UNIT_SIZE_BYTES) // UNIT_SIZE_BYTES
            self.min_offset = index
        else:
            start = self.max_offset
            self.skipped += index - start
        self._make_files(start, index)
        self.files.write(start * UNIT_SIZE_BYTES, FILLER_UNIT * (index - start))
        self.max_offset = index
        return index

    def _make_files(self, index: int, end: int) -> None:
        size = self.files.file_size
        start = self.files.start_of(index * UNIT_SIZE_BYTES)
        last = self.files.last
        if last is not None and last.end >= end * UNIT_SIZE_BYTES:
            return
        start = start if last is None else last.end
        while start < end * UNIT_SIZE_BYTES:
            self.files.add_file(start)
            start += size

    def put_right(self, index: int, unit: bytes) -> bool:
        """Make a unit what the CommitLog says; True where it was something else."""
        if index >= self.max_offset:
            self.append(index, unit)
            return True
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            file = self.files.add_file(self.files.start_of(position))
        at = position - file.start
        if file.memory[at : at + UNIT_SIZE_BYTES] == unit:
            return False
        file.write(at, unit)
        return True

    def cut(self, index: int) -> list[MappedFile]:
        """Make `index` the end: wipe the units from there on, and return the files that are no longer needed."""
        dropped = self.files.drop_from(-(-index * UNIT_SIZE_BYTES // self.files.file_size) * self.files.file_size)
        last = self.files.last
        if last is not None and last.end > index * UNIT_SIZE_BYTES >= last.start:
            last.zero_from(index * UNIT_SIZE_BYTES - last.start)
        self.max_offset = self.next_offset = index
        self.min_offset = min(self.min_offset, index)
        self.flushed_offset = min(self.flushed_offset, index)
        return dropped

    def first_from(self, physical_offset: int) -> int:
        """Return the first index from which on messages lie at or behind a physical offset; the end if none does."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            found = self.first_sound(middle, high)
            if found is None or found[1].physical_offset >= physical_offset:
                high = middle
            else:
                low = found[0] + 1
        return low

    def correct_min(self, log_min_offset: int) -> None:
        """Let the queue begin with the first unit whose record the CommitLog still has."""
        first = self.files.first
        if first is None:
            return
        self.min_offset = max(self.min_offset, first.start // UNIT_SIZE_BYTES)
        low = self.first_from(log_min_offset)
        found = self.first_sound(low, self.max_offset)
        self.min_offset = found[0] if found is not None else self.max_offset

    def expired(self, log_min_offset: int) -> list[MappedFile]:
        """Forget the files whose messages are all gone, never the last one, and return them."""
        keep_from = 0
        for file in self.files:
            last = file.end // UNIT_SIZE_BYTES - 1
            if file is self.files.last or self._newest_offset(file.start // UNIT_SIZE_BYTES, last) >= log_min_offset:
                break
            keep_from = file.end
        return self.files.drop_before(keep_from, count_max=len(self.files))

    def _newest_offset(self, first: int, last: int) -> int:
        for index in range(last, first - 1, -1):
            unit = self.unit(index)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return unit.physical_offset
        return 0

    def newest_message(self) -> tuple[int, ConsumeQueueUnit] | None:
        """Return the index and unit of the last message in the queue."""
        for index in range(self.max_offset - 1, self.min_offset - 1, -1):
            unit = self.unit(index)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return index, unit
        return None

    def indexes(self) -> Iterator[int]:
        """Iterate over the readable offsets."""
        return iter(range(self.min_offset, self.max_offset))


def is_message_unit(physical_offset: int, size: int) -> bool:
    """Say whether a unit stands for a message: it is neither blank nor filler nor nonsense."""
    return 0 < size < FILLER_SIZE and physical_offset >= 0


def _end_of_units(file: MappedFile) -> int:
    end = find_used_end(file.memory, 0, end=len(file.memory))
    return file.start + -(-end // UNIT_SIZE_BYTES) * UNIT_SIZE_BYTES


def _first_blank(file: MappedFile) -> int:
    """Binary search: after an orderly stop units have no blanks between them."""
    low, high = 0, len(file.memory) // UNIT_SIZE_BYTES
    while low < high:
        middle = (low + high) // 2
        at = middle * UNIT_SIZE_BYTES
        if file.memory[at : at + UNIT_SIZE_BYTES] == BLANK_UNIT:
            high = middle
        else:
            low = middle + 1
    return file.start + low * UNIT_SIZE_BYTES


def _find_blank(memory: Memory, start: int, end: int) -> int | None:
    """Return the position of the first blank unit in a range.

    Searched in copies: in 3.11 a map's own `find` compares byte by byte, that of bytes runs at memory speed. Twenty
    zeros in a row never stand in units that follow each other, since each unit's size is not zero.
    """
    for at in range(start, end, _SEARCHED_BYTES):
        data = bytes(memory[at : min(at + _SEARCHED_BYTES, end)])
        found = data.find(BLANK_UNIT)
        while found >= 0:
            unit = -(-found // UNIT_SIZE_BYTES) * UNIT_SIZE_BYTES
            if data[unit : unit + UNIT_SIZE_BYTES] == BLANK_UNIT:
                return at + unit
            found = data.find(BLANK_UNIT, found + 1)
    return None
