"""Repairs an IndexFile after a crash: chooses the entries to keep, and rewrites slots so that the chains agree.

If the store was Gantry's, entries of records before the checkpoint's offset were synced together with their slots. Only
later entries can be missing or torn, so only those are checked one by one:

- Entries are dropped from the first one that is invalid or whose record lies at or after the offset. They are added
  again later.
- A slot that points to a dropped entry is changed to point to the newest kept entry.

In a store that Apache RocketMQ left, nothing is synced before a file is full, so everything is checked.

A file has 20 million entries, so they are read as arrays, in pieces of many entries.
"""

import sys
from array import array
from collections.abc import Iterator
from itertools import compress
from typing import Final, NamedTuple

from gantry.runtime.files import Memory
from gantry.storeformat.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES

PIECE_ENTRIES: Final = 1 << 16
PIECE_SLOTS: Final = 1 << 10  # A page.
# The positions of the fields in an entry: the hash at 0, the offset at 4, the seconds at 12. They are big-endian.
_OFFSET_AT: Final = 4
_SECONDS_AT: Final = 12
_OFFSET_BYTES: Final = 8
_SIGN: Final = 0x80
_BLANK_BYTES: Final = 16  # All fields except for the number of the previous entry.
_BLANK: Final = bytes(_BLANK_BYTES)
_INTS_PER_ENTRY: Final = INDEX_ENTRY_BYTES // 4
assert array("i").itemsize == array("I").itemsize == INDEX_SLOT_BYTES
assert array("q").itemsize == _OFFSET_BYTES


class RepairedFile(NamedTuple):
    """The content of a repaired file."""

    slots_used: int
    writes: list[tuple[int, bytes]]
    """The bytes to write, each with its position in the file."""


class IndexRepairer:
    """Checks one file; changes nothing.

    Args:
        memory: The file.
        slots: The number of the file's slots.
        is_synced: Whether entries before `trusted_before` were synced, and their slots with them.
    """

    def __init__(self, memory: Memory, *, slots: int, is_synced: bool) -> None:
        self._memory = memory
        self._slots = slots
        self._entries_at = INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES
        self._is_synced = is_synced

    def first_invalid(self, count: int, *, begin_offset: int, trusted_before: int) -> int:
        """Return the number of the first entry to drop: it is invalid, or its record is not trusted.

        Args:
            count: The number of the next entry, from the header.
            begin_offset: The physical offset of the first record in the header; no record lies before it.
            trusted_before: The physical offset from which on nothing is trusted.
        """
        pieces = list(range(1, count, PIECE_ENTRIES))
        last_valid = -1  # The last piece that is known to be valid, with all pieces before it.
        for index in reversed(range(len(pieces))) if self._is_synced else range(len(pieces)):
            is_valid = self._is_valid(pieces[index], count, begin_offset, trusted_before)
            if is_valid:
                last_valid = index
            if is_valid == self._is_synced:
                break
        if last_valid + 1 == len(pieces):
            return count
        start = pieces[last_valid + 1]
        newest = begin_offset if last_valid < 0 else self._entry(start - 1)[1]
        return self._first_invalid_from(start, min(start + PIECE_ENTRIES, count), newest, trusted_before)

    def _is_valid(self, start: int, count: int, begin_offset: int, trusted_before: int) -> bool:
        """Return whether a whole piece is certainly valid: its offsets follow the log's order."""
        data = self._entries(start, min(start + PIECE_ENTRIES, count))
        offsets = _offsets(data)
        # Offset 0 is the offset of the log's first record, and of blank entries.
        firsts = offsets.count(0)
        # A torn entry may look old, and may be the only entry of the last piece.
        before = begin_offset if start == 1 else max(begin_offset, self._entry(start - 1)[1])
        return (
            offsets[0] >= before
            and not any(
                data[at : at + _BLANK_BYTES] == _BLANK for at in range(0, firsts * INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
            )
            and offsets[-1] < trusted_before
            and sorted(offsets) == offsets
            and max(data[0::INDEX_ENTRY_BYTES]) < _SIGN
            and max(data[_SECONDS_AT::INDEX_ENTRY_BYTES]) < _SIGN
        )

    def _first_invalid_from(self, start: int, stop: int, newest: int, trusted_before: int) -> int:
        entries = INDEX_ENTRY.iter_unpack(self._entries(start, stop))
        for number, (key_hash, physical_offset, seconds, _) in enumerate(entries, start):
            is_blank = key_hash == physical_offset == seconds == 0
            is_in_order = newest <= physical_offset < trusted_before
            if not is_in_order or seconds < 0 or key_hash < 0 or is_blank:
                return number
            newest = physical_offset
        return stop

    def chains(self, kept: int) -> RepairedFile:
        """Return the bytes to write so that all chains contain only the entries before number `kept`."""
        at, size = INDEX_HEADER_BYTES, self._slots * INDEX_SLOT_BYTES
        table = _to_native("I", self._memory[at : at + size])
        writes: list[tuple[int, bytes]] = []
        if self._is_synced:
            found = self._find_newest(kept, list(_places_from(table, kept)))
        else:
            newest, writes = self._draw(kept)
            found = {slot: newest.get(slot, 0) for slot, number in enumerate(table) if number != newest.get(slot, 0)}
        for slot, number in found.items():
            table[slot] = number
        for piece in sorted({slot // PIECE_SLOTS for slot in found}):
            start = piece * PIECE_SLOTS
            values = table[start : start + PIECE_SLOTS]
            writes.append((at + start * INDEX_SLOT_BYTES, _to_native("I", values.tobytes()).tobytes()))
        return RepairedFile(self._slots - table.count(0), writes)

    def _find_newest(self, kept: int, places: list[int]) -> dict[int, int]:
        """Return the newest entry of each of some slots, 0 if it has none."""
        newest = dict.fromkeys(places, 0)
        if not newest:
            return newest
        slots, is_wanted = self._slots, bytearray(self._slots)
        for slot in places:
            is_wanted[slot] = 1
        for start, ints in self._pieces(kept):
            found = [key_hash % slots for key_hash in ints[0::_INTS_PER_ENTRY]]
            for number, slot in compress(enumerate(found, start), map(is_wanted.__getitem__, found)):
                newest[slot] = number
        return newest

    def _draw(self, kept: int) -> tuple[dict[int, int], list[tuple[int, bytes]]]:
        """Return the newest entry of every slot, and corrections for entries that name a wrong predecessor."""
        newest: dict[int, int] = {}
        wrong: list[tuple[int, bytes]] = []
        slots, previous_at = self._slots, INDEX_ENTRY_BYTES - INDEX_SLOT_BYTES
        for start, ints in self._pieces(kept):
            pairs = zip(ints[0::_INTS_PER_ENTRY], ints[_INTS_PER_ENTRY - 1 :: _INTS_PER_ENTRY], strict=True)
            for number, (key_hash, previous) in enumerate(pairs, start):
                slot = key_hash % slots
                before = newest.get(slot, 0)
                if before != previous:
                    position = self._entries_at + number * INDEX_ENTRY_BYTES + previous_at
                    wrong.append((position, before.to_bytes(INDEX_SLOT_BYTES)))
                newest[slot] = number
        return newest, wrong

    def _pieces(self, kept: int) -> "Iterator[tuple[int, array[int]]]":
        """Yield the number of each piece's first entry and the piece's fields; an offset is two fields."""
        for start in range(1, kept, PIECE_ENTRIES):
            yield start, _to_native("i", self._entries(start, min(start + PIECE_ENTRIES, kept)))

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        entry: tuple[int, int, int, int] = INDEX_ENTRY.unpack(self._entries(number, number + 1))
        return entry

    def _entries(self, start: int, stop: int) -> bytes:
        at = self._entries_at
        return bytes(self._memory[at + start * INDEX_ENTRY_BYTES : at + stop * INDEX_ENTRY_BYTES])


def _offsets(data: bytes) -> list[int]:
    packed = bytearray(len(data) // INDEX_ENTRY_BYTES * _OFFSET_BYTES)
    for index in range(_OFFSET_BYTES):
        packed[index::_OFFSET_BYTES] = data[_OFFSET_AT + index :: INDEX_ENTRY_BYTES]
    return _to_native("q", packed).tolist()


def _to_native(kind: str, data: bytes | bytearray) -> "array[int]":
    values: array[int] = array(kind)
    values.frombytes(data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


def _places_from(table: "array[int]", least: int) -> Iterator[int]:
    """Return the positions of all values that are at least `least`."""
    return compress(range(len(table)), map(least.__le__, table))
