"""Parses the properties of thousands of records to columns, as `gantry.model.message` does for one record.

Arrow's kernels split all texts. The meaning of a name is looked up once for each distinct name, not once for each pair.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gantry.model.message import KEY_SEPARATOR, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from gantry.model.propertyname import PropertyName, is_reserved_property
from spark.datasource.columns.bytecolumns import Int64s

# Each name is one bit of a 64-bit number. The sign bit is not used.
_BITS: Final = 62
_LIST: Final = pa.list_(pa.field("element", pa.string(), nullable=False))


class PropertyColumns(NamedTuple):
    """The properties of records as Arrow arrays, one row for each record."""

    tag: Any
    """string, null if there is none."""
    unique_key: Any
    """string, null if there is none."""
    keys: Any
    """list<string>."""
    user_names: Any
    """The names of the users' own properties, of all rows one after the other."""
    user_values: Any
    """The values that belong to `user_names`."""
    user_offsets: Int64s
    """The start of each row in `user_names` and `user_values`, and the end of the last row."""


def split_properties(texts: Any) -> PropertyColumns:
    """Return the columns of property texts: a string array without nulls and without the records' checksums."""
    rows = len(texts)
    pairs_of = pc.split_pattern(texts, PROPERTY_SEPARATOR)
    row_of = np.repeat(np.arange(rows), np.diff(pairs_of.offsets.to_numpy()))
    halves_of = pc.split_pattern(pairs_of.flatten(), NAME_VALUE_SEPARATOR, max_splits=1)
    starts, halves = halves_of.offsets.to_numpy(), halves_of.flatten()
    lengths = pc.binary_length(halves).to_numpy()
    first = starts[:-1].astype(np.int64)
    pairs = np.flatnonzero(np.diff(starts) == 2)
    # A pair without a name or without a value is ignored, as in every RocketMQ reader.
    pairs = pairs[(lengths[first[pairs]] > 0) & (lengths[first[pairs] + 1] > 0)]
    row_of, name_at = row_of[pairs], first[pairs]
    encoded = halves.take(pa.array(name_at)).dictionary_encode()
    codes, names = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
    value_at = name_at + 1
    if _has_duplicates(row_of, codes, len(names)):
        # A message of a RocketMQ batch has its own properties and then those of the batch. The last value of a name
        # counts, at the place of the first.
        firsts, lasts = _first_and_last(row_of * len(names) + codes)
        row_of, codes, name_at, value_at = row_of[firsts], codes[firsts], name_at[firsts], value_at[lasts]

    def column(name: str) -> Any:
        """Return the value of one property in each row."""
        at = np.full(rows, -1, np.int64)
        if name in names:
            chosen = codes == names.index(name)
            at[row_of[chosen]] = value_at[chosen]
        return halves.take(pa.array(at, mask=at < 0))

    is_user = ~np.array([is_reserved_property(name) for name in names], bool)[codes] if names else np.zeros(0, bool)
    return PropertyColumns(
        tag=column(PropertyName.TAGS),
        unique_key=column(PropertyName.UNIQ_KEY),
        keys=split_keys_column(column(PropertyName.KEYS)),
        user_names=halves.take(pa.array(name_at[is_user])),
        user_values=halves.take(pa.array(value_at[is_user])),
        user_offsets=_offsets(np.bincount(row_of[is_user], minlength=rows)),
    )


def split_keys_column(texts: Any) -> Any:
    """Return the keys of KEYS texts (a string array with nulls) as list<string>."""
    words_of = pc.split_pattern(pc.fill_null(texts, ""), KEY_SEPARATOR)
    words = words_of.flatten()
    is_key = pc.binary_length(words).to_numpy() > 0
    row_of = np.repeat(np.arange(len(texts)), np.diff(words_of.offsets.to_numpy()))
    offsets = _offsets(np.bincount(row_of[is_key], minlength=len(texts)))
    keys = words.filter(pa.array(is_key))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), keys, type=_LIST)


def _has_duplicates(row_of: npt.NDArray[np.intp], codes: Int64s, names_count: int) -> bool:
    """Return whether a row has a name twice."""
    if not len(codes):
        return False
    if names_count > _BITS:
        return len(np.unique(row_of * names_count + codes)) != len(codes)
    row_starts = np.flatnonzero(np.diff(row_of, prepend=-1))
    bits = np.left_shift(1, codes)
    # If a row has a bit twice, the sum carries and differs from the bitwise or.
    return not np.array_equal(np.add.reduceat(bits, row_starts), np.bitwise_or.reduceat(bits, row_starts))


def _first_and_last(values: Int64s) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the index of each value's first occurrence, in ascending order, and of the same value's last one."""
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.diff(values[order], append=-1))
    firsts, lasts = order[np.concatenate([[0], ends[:-1] + 1])], order[ends]
    by_place = np.argsort(firsts)
    return firsts[by_place], lasts[by_place]


def _offsets(counts: npt.NDArray[np.intp]) -> Int64s:
    """Return the start of each row's items, and the end of the last row's items."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
