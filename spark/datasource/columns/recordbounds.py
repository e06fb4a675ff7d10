"""The bounds of records in bytes, the filter for records, and the description of damaged records."""

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gantry.model.record import RECORD_BYTES_MIN, RECORD_MAGIC_V1, RECORD_MAGIC_V2
from spark.datasource.columns.bytecolumns import Int64s

Bools = npt.NDArray[np.bool_]

_PEEK: Final = struct.Struct(">iI")
_MAGICS: Final = (RECORD_MAGIC_V1, RECORD_MAGIC_V2)


class Damage(NamedTuple):
    """A record that is left out, and the reason."""

    queue_offset: int | None
    physical_offset: int | None
    reason: str


class Bounds(NamedTuple):
    """The positions and sizes of records in the bytes to decode, and facts that are known about them beforehand."""

    starts: Int64s
    sizes: Int64s
    queue_offsets: Int64s | None = None
    """The queue offset that each record must have; None if unknown. The same holds for `physical_offsets`."""
    physical_offsets: Int64s | None = None

    def take(self, rows: npt.NDArray[Any]) -> "Bounds":
        """Return the bounds that an index array or a mask selects."""
        return Bounds(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The wanted queue offsets and store times (ms), `[first, end)` each. None means no bound."""

    first: int | None = None
    end: int | None = None
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None

    def takes(self, queue_offset: int, stored_at_ms: int) -> bool:
        """Return whether a record is wanted."""
        return _is_within(queue_offset, self.first, self.end) and _is_within(
            stored_at_ms, self.stored_from_ms, self.stored_to_ms
        )

    def take_heads(self, heads: npt.NDArray[Any]) -> Bools:
        """Return for each of many record heads whether it is wanted."""
        wanted = np.ones(len(heads), bool)
        for name, first, end in (
            ("queue_offset", self.first, self.end),
            ("stored_at", self.stored_from_ms, self.stored_to_ms),
        ):
            if first is not None:
                wanted &= heads[name] >= first
            if end is not None:
                wanted &= heads[name] < end
        return wanted


EVERYTHING: Final = RowFilter()


def bounds_of(data: bytes, at: int = 0) -> tuple[Bounds, Damage | None]:
    """Return the bounds of the records in a pull's body, and the damage after the last recognized record, if any."""
    starts, sizes, end, damage = [], [], len(data), None
    peek = _PEEK.unpack_from
    while at < end:
        size, magic = peek(data, at) if end - at >= _PEEK.size else (0, 0)
        if magic not in _MAGICS or not RECORD_BYTES_MIN <= size <= end - at:
            damage = Damage(None, None, f"size {size} and magic {magic:08X} are no record's; {end - at} bytes are left")
            break
        starts.append(at)
        sizes.append(size)
        at += size
    return Bounds(np.array(starts, np.int64), np.array(sizes, np.int64)), damage


def _is_within(value: int, first: int | None, end: int | None) -> bool:
    return (first is None or value >= first) and (end is None or value < end)
