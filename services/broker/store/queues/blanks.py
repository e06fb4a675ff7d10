"""Finds the blank units in one file of a ConsumeQueue: the end of the written units, and the first blank unit."""

from typing import Final

from gantry.storeformat.layout import UNIT_SIZE_BYTES
from services.broker.store.queues.queuefile import QueueFile

BLANK_UNIT: Final = bytes(UNIT_SIZE_BYTES)
_SEARCHED_BYTES: Final = UNIT_SIZE_BYTES << 16
_TAIL_BYTES: Final = UNIT_SIZE_BYTES * 204  # About a page.


def end_of_units(file: QueueFile) -> int:
    """Return the end of the last unit that is not blank."""
    return file.start + -(-file.used_end() // UNIT_SIZE_BYTES) * UNIT_SIZE_BYTES


def first_blank(file: QueueFile) -> int:
    """Return the end of the units after an orderly stop, when there are no blanks between units.

    The end lies within the last page that has data, if the file system knows this page. Otherwise a binary search finds
    it.
    """
    high = -(-file.file.data_end(0) // UNIT_SIZE_BYTES)
    low = max(0, high - _TAIL_BYTES // UNIT_SIZE_BYTES)
    high = min(high, file.file.size_bytes // UNIT_SIZE_BYTES)
    tail = file.read(low * UNIT_SIZE_BYTES, (high - low) * UNIT_SIZE_BYTES)
    if low > 0 and tail[:UNIT_SIZE_BYTES] == BLANK_UNIT:
        low, high, tail = 0, low, b""
    first = low
    while low < high:
        middle = (low + high) // 2
        at = (middle - first) * UNIT_SIZE_BYTES
        unit = tail[at : at + UNIT_SIZE_BYTES] if tail else file.read(middle * UNIT_SIZE_BYTES, UNIT_SIZE_BYTES)
        if unit == BLANK_UNIT:
            high = middle
        else:
            low = middle + 1
    return file.start + low * UNIT_SIZE_BYTES


def find_blank(file: QueueFile, start: int, end: int) -> int | None:
    """Return the position of the first blank unit in a range, or None.

    Consecutive units never contain twenty zeros in a row, because the size of each unit is not zero.
    """
    for at in range(start, end, _SEARCHED_BYTES):
        data = file.read(at, min(_SEARCHED_BYTES, end - at))
        found = data.find(BLANK_UNIT)
        while found >= 0:
            unit = -(-found // UNIT_SIZE_BYTES) * UNIT_SIZE_BYTES
            if data[unit : unit + UNIT_SIZE_BYTES] == BLANK_UNIT:
                return at + unit
            found = data.find(BLANK_UNIT, found + 1)
    return None
