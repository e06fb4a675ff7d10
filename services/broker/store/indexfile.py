"""One IndexFile: key hash → physical offsets (docs/formats/indexfile.md).

Entries are written in the CommitLog's order, one after the other; a slot holds the number of its newest entry, and
each entry the number of the one before it in the same slot. Entry 0 is never used.

The head is kept here and written once a round of dispatch. What a crash leaves of the file is mended by `mend`:
entries that were not yet synced may be missing or torn while slots already point to them, so they go, and the chains
are drawn again from those that stay.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gantry.runtime.files import File, Memory
from gantry.storeformat.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    IndexHeader,
    index_entry_position,
    index_time_diff_s,
)
from services.broker.store.mappedfile import MappedFile

_SECONDS: Final = 1000
_INT_MAX: Final = 0x7FFF_FFFF


class IndexFile:
    """An index file, open for writing and reading.

    Attributes:
        count: The number of the next entry.
        begin_at_ms: And the following: the head's fields.
    """

    __slots__ = (
        "_entries_at",
        "_entries_max",
        "_memory",
        "_slots",
        "begin_at_ms",
        "begin_offset",
        "count",
        "end_at_ms",
        "end_offset",
        "file",
        "name",
        "slots_used",
    )

    def __init__(self, name: str, file: File, *, slots: int, entries: int) -> None:
        self.name = name
        self.file = MappedFile(0, file)
        self._memory: Memory = self.file.memory
        self._slots = slots
        self._entries_max = entries
        self._entries_at = index_entry_position(slots, 0)
        self._set_header(IndexHeader._make(INDEX_HEADER.unpack_from(self._memory, 0)))

    def _set_header(self, header: IndexHeader) -> None:
        self.begin_at_ms = header.begin_timestamp
        self.end_at_ms = header.end_timestamp
        self.begin_offset = header.begin_physical_offset
        self.end_offset = header.end_physical_offset
        self.slots_used = header.hash_slot_count
        self.count = min(max(header.index_count, 1), self._entries_max)

    @property
    def header(self) -> IndexHeader:
        """Return the head as it is now."""
        return IndexHeader(
            self.begin_at_ms, self.end_at_ms, self.begin_offset, self.end_offset, self.slots_used, self.count
        )

    def start_after(self, previous: "IndexFile") -> None:
        """Take over the end of the full file before this one, as RocketMQ does, and write the head."""
        self.begin_at_ms = self.end_at_ms = previous.end_at_ms
        self.begin_offset = self.end_offset = previous.end_offset
        self.write_header()

    @property
    def is_full(self) -> bool:
        """Say whether no entry fits any more."""
        return self.count >= self._entries_max

    @property
    def room(self) -> int:
        """Return how many entries still fit."""
        return self._entries_max - self.count

    def put(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Add entries (key hash, physical offset, store time), for which there must be room."""
        memory, slots, count, slots_used = self._memory, self._slots, self.count, self.slots_used
        begin_at_ms = self.begin_at_ms
        written: list[bytes] = []
        pack, from_bytes = INDEX_ENTRY.pack, int.from_bytes
        for key_hash, physical_offset, stored_at_ms in entries:
            at = INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES
            previous = from_bytes(memory[at : at + INDEX_SLOT_BYTES])
            if previous >= count:  # Also what Java would read as negative.
                previous = 0
            if previous == 0:
                slots_used += 1
            memory[at : at + INDEX_SLOT_BYTES] = count.to_bytes(INDEX_SLOT_BYTES)
            seconds = (stored_at_ms - begin_at_ms) // _SECONDS
            if seconds < 0 or seconds > _INT_MAX or begin_at_ms <= 0:
                seconds = index_time_diff_s(stored_at_ms, begin_at_ms)
            written.append(pack(key_hash, physical_offset, seconds, previous))
            if count == 1:
                self.begin_offset = physical_offset
                self.begin_at_ms = begin_at_ms = stored_at_ms
            count += 1
        at = self._entries_at + self.count * INDEX_ENTRY_BYTES
        memory[at : at + len(written) * INDEX_ENTRY_BYTES] = b"".join(written)
        self.count, self.slots_used = count, slots_used
        self.end_offset, self.end_at_ms = physical_offset, stored_at_ms
        self.file.is_dirty = True

    def write_header(self) -> None:
        """Write the head."""
        self.file.write(0, INDEX_HEADER.pack(*self.header))

    def keys_of_last(self) -> int:
        """Return how many entries at the end belong to the last record that has any here."""
        number = self.count - 1
        while number >= 1 and self._entry(number)[1] == self.end_offset:
            number -= 1
        return self.count - 1 - number

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of a key's messages within a time, newest first."""
        slot_at = INDEX_HEADER_BYTES + key_hash % self._slots * INDEX_SLOT_BYTES
        number = int.from_bytes(self._memory[slot_at : slot_at + INDEX_SLOT_BYTES])
        before = self.count
        while 0 < number < before:
            found_hash, physical_offset, seconds, previous = self._entry(number)
            if seconds < 0:
                return
            # The first entry's seconds count from the end of the file before; the begin time is its own.
            at_ms = self.begin_at_ms + (seconds * _SECONDS if number > 1 else 0)
            # Entries hold whole seconds, so that their time may be up to one second early.
            if found_hash == key_hash and begin_ms - _SECONDS < at_ms <= end_ms:
                yield physical_offset
            if at_ms <= begin_ms - _SECONDS:
                return
            before, number = number, previous

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        entry: tuple[int, int, int, int] = INDEX_ENTRY.unpack_from(
            self._memory, self._entries_at + number * INDEX_ENTRY_BYTES
        )
        return entry

    def mend(self, trusted_before: int, is_record: Callable[[int], bool]) -> int:
        """Drop what a crash may have left half written, and draw the chains again.

        Args:
            trusted_before: Entries of records from here on go.
            is_record: Says whether a record lies at a physical offset: a torn one may look trusted.

        Returns:
            How many entries the head promised and are gone.
        """
        promised = self.count
        kept = self._sound_entries(trusted_before)
        while kept > 1 and not is_record(self._entry(kept - 1)[1]):
            kept -= 1
        slots = array("i", bytes(self._slots * INDEX_SLOT_BYTES))
        wrong = self._draw_chains(kept, slots)
        self.slots_used = len(slots) - slots.count(0)
        self.count = kept
        if kept == 1:
            self.begin_at_ms = self.end_at_ms = self.begin_offset = self.end_offset = 0
        else:
            _, self.end_offset, seconds, _ = self._entry(kept - 1)
            if promised != kept:
                # To the second is all that is known; too late does no harm, too early would hide the last entries.
                self.end_at_ms = self.begin_at_ms + (seconds + 1) * _SECONDS - 1 if kept > 2 else self.begin_at_ms
        if sys.byteorder == "little":
            slots.byteswap()
        table = slots.tobytes()
        at = INDEX_HEADER_BYTES
        if self._memory[at : at + len(table)] != table:
            self.file.write(at, table)
        for number, entry in wrong:
            self.file.write(self._entries_at + number * INDEX_ENTRY_BYTES, entry)
        self.file.zero_from(self._entries_at + kept * INDEX_ENTRY_BYTES)
        if INDEX_HEADER.pack(*self.header) != self._memory[0:INDEX_HEADER_BYTES]:
            self.write_header()
        return promised - kept

    def _sound_entries(self, trusted_before: int) -> int:
        """Return the number of the first entry that can't be right: entries follow the log's order."""
        newest = self.begin_offset
        start = self._entries_at + INDEX_ENTRY_BYTES
        data = memoryview(self._memory)[start : self._entries_at + self.count * INDEX_ENTRY_BYTES]
        number = 1
        with data:
            for key_hash, physical_offset, seconds, _ in INDEX_ENTRY.iter_unpack(data):
                is_blank = key_hash == physical_offset == seconds == 0
                if (
                    physical_offset < newest
                    or physical_offset >= trusted_before
                    or seconds < 0
                    or key_hash < 0
                    or is_blank
                ):
                    break
                newest = physical_offset
                number += 1
        return number

    def _draw_chains(self, kept: int, slots: "array[int]") -> list[tuple[int, bytes]]:
        """Fill in the slots; return the entries whose predecessor is another one than they say."""
        wrong: list[tuple[int, bytes]] = []
        count = len(slots)
        start = self._entries_at + INDEX_ENTRY_BYTES
        data = memoryview(self._memory)[start : self._entries_at + kept * INDEX_ENTRY_BYTES]
        with data:
            for number, (key_hash, physical_offset, seconds, previous) in enumerate(INDEX_ENTRY.iter_unpack(data), 1):
                slot = key_hash % count
                if slots[slot] != previous:
                    wrong.append((number, INDEX_ENTRY.pack(key_hash, physical_offset, seconds, slots[slot])))
                slots[slot] = number
        return wrong
