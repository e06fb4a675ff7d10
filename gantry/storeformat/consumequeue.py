"""Reads the ConsumeQueue files of one queue.

Reading ends at the first invalid unit, which is preallocated space. A store that crashed may have valid units after
such a hole. They are not used, because recovery rebuilds everything after the hole.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gantry.runtime.files import Memory
from gantry.storeformat.layout import UNIT, UNIT_SIZE_BYTES, ConsumeQueueUnit, decode_unit
from gantry.storeformat.resync import find_used_end


class QueueFile(NamedTuple):
    """One file of a queue."""

    path: str
    start: int
    """The position in the queue of the file's first unit, in bytes."""
    size_bytes: int


class QueueFiles(NamedTuple):
    """All files of a queue, in order."""

    topic: str
    queue_id: int
    path: str
    files: tuple[QueueFile, ...]


class PlacedUnit(NamedTuple):
    """A unit and its position."""

    queue_offset: int
    unit: ConsumeQueueUnit
    path: str
    at: int
    """The unit's position in the file, in bytes."""


class QueueScan:
    """One pass over a queue's units, without fillers. Iterate it once, then read the attributes.

    Args:
        queue: The queue's files.
        open_memory: Returns the memory map of a file, given its path.
        data_end: Takes a path and an offset; returns an offset after which the rest of the file is zeros. Most of a
            queue's last file is empty, and reading it takes a millisecond.
    """

    def __init__(
        self, queue: QueueFiles, open_memory: Callable[[str], Memory], data_end: Callable[[str, int], int]
    ) -> None:
        self._queue = queue
        self._open = open_memory
        self._data_end = data_end
        self.min_offset: int | None = None
        """The queue offset of the first unit that is not a filler; None if there is none so far."""
        self.max_offset = queue.files[0].start // UNIT_SIZE_BYTES if queue.files else 0
        """The queue offset after the last unit."""
        self.missing_bytes: tuple[int, int] | None = None
        """The start and end of a missing file's bytes in the queue; the scan ends there."""
        self.used_behind_bytes = 0
        """The number of bytes in use after the end, gaps included: units left over from recovery or from a cut."""

    def __iter__(self) -> Iterator[PlacedUnit]:
        position = self._queue.files[0].start if self._queue.files else 0
        for number, file in enumerate(self._queue.files):
            if file.start != position:
                self.missing_bytes = (position, file.start)
                return
            memory = self._open(file.path)
            whole = file.size_bytes - file.size_bytes % UNIT_SIZE_BYTES
            for at in range(0, whole, UNIT_SIZE_BYTES):
                unit = decode_unit(memory, at)
                if not unit.is_valid:
                    self._count_units_behind(number, at)
                    return
                queue_offset = (file.start + at) // UNIT_SIZE_BYTES
                self.max_offset = queue_offset + 1
                if unit.is_filler:
                    continue
                if self.min_offset is None:
                    self.min_offset = queue_offset
                yield PlacedUnit(queue_offset, unit, file.path, at)
            position = file.start + file.size_bytes

    def _count_units_behind(self, number: int, at: int) -> None:
        for file in self._queue.files[number:]:
            used_end = find_used_end(self._open(file.path), at, end=self._data_end(file.path, at))
            self.used_behind_bytes += used_end - at
            at = 0


def find_unit(queue: QueueFiles, queue_offset: int, open_memory: Callable[[str], Memory]) -> ConsumeQueueUnit | None:
    """Return the unit at a queue offset, or None if there is none."""
    position = queue_offset * UNIT_SIZE_BYTES
    for file in queue.files:
        if file.start <= position and position + UNIT_SIZE_BYTES <= file.start + file.size_bytes:
            unit = ConsumeQueueUnit._make(UNIT.unpack_from(open_memory(file.path), position - file.start))
            return unit if unit.is_valid and not unit.is_filler else None
    return None
