"""Reads one IndexFile: hash slots, and chains of entries from the newest to the oldest.

A file's size does not determine the number of its slots. RocketMQ's default settings have four entries for each slot.
For other settings, the caller gives the number of slots (docs/formats/indexfile.md).
"""

from collections.abc import Iterator

from gantry.runtime.files import Memory
from gantry.storeformat.errors import BrokenFileError
from gantry.storeformat.layout import (
    ENTRIES_PER_SLOT,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT,
    INDEX_SLOT_BYTES,
    IndexEntry,
    IndexHeader,
    index_entry_position,
    index_slot_position,
)


class IndexReader:
    """One memory-mapped IndexFile."""

    def __init__(self, path: str, memory: Memory, *, slots: int | None = None) -> None:
        """Read the header.

        Args:
            path: The file's path, for messages.
            memory: The whole file.
            slots: The number of hash slots; None for a quarter of the entries.

        Raises:
            BrokenFileError: The file's size does not fit an IndexFile.
        """
        self.path = path
        self._memory = memory
        size = len(memory)
        if slots is None:
            group = INDEX_SLOT_BYTES + ENTRIES_PER_SLOT * INDEX_ENTRY_BYTES
            slots, rest = divmod(size - INDEX_HEADER_BYTES, group)
            if slots < 1 or rest:
                raise BrokenFileError(
                    path, f"{size} bytes fit no index file with {ENTRIES_PER_SLOT} entries a slot; say how many slots"
                )
        self.slots = slots
        self.entries, rest = divmod(size - INDEX_HEADER_BYTES - slots * INDEX_SLOT_BYTES, INDEX_ENTRY_BYTES)
        if self.entries < 1 or rest:
            raise BrokenFileError(path, f"{size} bytes fit no index file with {slots} slots")
        self.header = IndexHeader._make(INDEX_HEADER.unpack_from(memory, 0))

    @property
    def next_number(self) -> int:
        """Return the number of the next entry to be added; at least 1, since entry 0 is never used."""
        return max(self.header.index_count, 1)

    def slot(self, number: int) -> int:
        """Return the number of the newest entry in a slot, or 0 if the slot is empty."""
        newest: int = INDEX_SLOT.unpack_from(self._memory, index_slot_position(number))[0]
        return newest

    def entry(self, number: int) -> IndexEntry:
        """Return the entry with a number."""
        at = index_entry_position(self.slots, number)
        return IndexEntry._make(INDEX_ENTRY.unpack_from(self._memory, at))

    def chain(self, key_hash: int) -> Iterator[IndexEntry]:
        """Yield the entries of a hash's slot, newest first; other hashes may share the slot.

        The chain ends at a number that is outside the file or does not go backwards, so damage can't make the chain
        endless.
        """
        number = self.slot(key_hash % self.slots)
        before = self.next_number
        while 0 < number < before and number < self.entries:
            entry = self.entry(number)
            yield entry
            before, number = number, entry.previous

    def find(self, key_hash: int, *, begin_ms: int, end_ms: int) -> list[int]:
        """Return the physical offsets of a hash's entries within a range of store times, newest first."""
        begin = self.header.begin_timestamp
        return [
            entry.physical_offset
            for entry in self.chain(key_hash)
            if entry.key_hash == key_hash and begin_ms <= begin + entry.time_diff_s * 1000 <= end_ms
        ]
