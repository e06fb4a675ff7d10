"""One IndexFile: key hash → physical offsets (docs/formats/indexfile.md).

Entries are written in the CommitLog's order, one after the other. A slot holds the number of its newest entry, and each
entry holds the number of the entry before it in the same slot. Entry 0 is never used.

A file that takes entries is mapped, because each entry changes a slot anywhere in the table. Its slot table has blocks
before the first entry, and its entries get blocks ahead of the write end. No write through the map therefore meets a
hole or touches one (allocation.py).
All other files are read through the pool of descriptors and hold none.

The header is kept in memory and written once per round of dispatch. After a crash, `repair` corrects the file. Entries
that were not yet synced may be missing or torn while slots already point to them. `repair` drops such entries and
rebuilds the chains from the others.
"""

from collections.abc import Callable, Sequence
from errno import EIO
from typing import Final

from gantry.runtime.files import Memory
from gantry.runtime.openfiles import PooledFile
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
from services.broker.store.errors import StoreFullError
from services.broker.store.files.allocation import MAPPED_UNIT_BYTES, allocate_ahead
from services.broker.store.files.mappedfile import ClosableFile, MappedFile, UnmappedFile
from services.broker.store.index.indexrepair import IndexRepairer

_SECONDS: Final = 1000
_INT_MAX: Final = 0x7FFF_FFFF
_ALLOCATED_MAX: Final = 4 << 20
_READ_BYTES: Final = 1 << 20


class IndexFile:
    """An index file that can be read, and written after `make_writable` or the first `put`.

    Attributes:
        file: The mapped file while it is written, otherwise None.
        count: The number of the next entry.
        begin_at_ms: Like `end_at_ms`, `begin_offset`, `end_offset` and `slots_used` a field of the header.
    """

    __slots__ = (
        "_allocated",
        "_entries_at",
        "_entries_max",
        "_is_removed",
        "_memory",
        "_pooled",
        "_slots",
        "_unmapped",
        "begin_at_ms",
        "begin_offset",
        "count",
        "end_at_ms",
        "end_offset",
        "file",
        "name",
        "slots_used",
    )

    def __init__(self, name: str, pooled: PooledFile, *, slots: int, entries: int) -> None:
        self.name = name
        self.file: MappedFile | None = None
        self._pooled = pooled
        self._unmapped = UnmappedFile(0, pooled)
        self._memory: Memory = bytearray()
        self._allocated = 0
        self._is_removed = False
        self._slots = slots
        self._entries_max = entries
        self._entries_at = index_entry_position(slots, 0)
        self._set_header(IndexHeader._make(INDEX_HEADER.unpack(self._bytes(0, INDEX_HEADER_BYTES))))

    def _bytes(self, at: int, size: int) -> bytes:
        if self.file is not None:
            return bytes(self._memory[at : at + size])
        # A query may be between two entries of a file when the file expires; it then finds nothing more in the file.
        return self._pooled.read(at, size) if not self._is_removed else bytes(size)

    def make_writable(self, count: int = 0) -> None:
        """Map the file, and make sure that `count` more entries meet no hole.

        Raises:
            StoreFullError: The disk or the process has no resources left. Nothing was written.
        """
        end = self._entries_at + (self.count + count) * INDEX_ENTRY_BYTES
        if self._allocated == 0:
            # The header, the slots and the existing entries in one piece; a sparse file from another system has holes.
            at = self._entries_at + self.count * INDEX_ENTRY_BYTES
            allocated = allocate_ahead(self._pooled, 0, at, step_max=at, unit=MAPPED_UNIT_BYTES)
            try:
                mapped = self.file or MappedFile(0, self._pooled.open_unpooled())
            except OSError as error:
                raise StoreFullError(self._pooled.path, error, action="extended") from error
            # Dispatch reads a slot for each new entry, anywhere in the table; a slot that is not in memory would stop
            # the loop.
            mapped.file.prefetch(0, self._entries_at)
            self.file, self._memory, self._allocated = mapped, mapped.memory, allocated
        if end > self._allocated:
            # Steps grow with the entries; the size of the slot table says nothing about them.
            step = min(self._allocated - self._entries_at, _ALLOCATED_MAX)
            self._allocated = allocate_ahead(self._pooled, self._allocated, end, step_max=step, unit=MAPPED_UNIT_BYTES)

    def is_readable(self, *, is_repaired: bool) -> bool:
        """Return whether the disk can read all bytes used through the map; an unreadable page would end the process.

        Args:
            is_repaired: Whether the file will be repaired, which reads all of it. Otherwise entries are only added, which
                touches the slots and the last page.

        Raises:
            OSError: The operating system reported another error.
        """
        end = self._entries_at + self.count * INDEX_ENTRY_BYTES
        try:
            for at in range(0, end if is_repaired else self._entries_at, _READ_BYTES):
                self._pooled.read(at, min(_READ_BYTES, end - at))
            self._pooled.read(end - INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
        except OSError as error:
            if error.errno != EIO:
                raise
            return False
        return True

    def retire(self) -> ClosableFile | None:
        """Give up the map of a full, synced file; return the map, for a worker to close, or None."""
        if self.file is None or self.file.is_dirty or not self.is_full:
            return None
        mapped, self.file, self._memory, self._allocated = self.file, None, bytearray(), 0
        return mapped

    def drop(self) -> ClosableFile:
        """Close a file whose name is about to be removed; return the part that is left to close."""
        self._is_removed = True
        mapped, self.file, self._memory, self._allocated = self.file, None, bytearray(), 0
        self._pooled.close()
        return mapped or _Unmapped(self._pooled.path)

    def close(self) -> None:
        """Unmap the file."""
        if self.file is not None:
            self.file.close()
            self.file, self._memory = None, bytearray()

    def _set_header(self, header: IndexHeader) -> None:
        self.begin_at_ms = header.begin_timestamp
        self.end_at_ms = header.end_timestamp
        self.begin_offset = header.begin_physical_offset
        self.end_offset = header.end_physical_offset
        self.slots_used = header.hash_slot_count
        self.count = min(max(header.index_count, 1), self._entries_max)

    @property
    def path(self) -> str:
        """Return the file's path."""
        return self._pooled.path

    @property
    def readable(self) -> MappedFile | UnmappedFile:
        """Return the bytes for a reader that must not wait for the disk; another object once the file is retired."""
        return self.file or self._unmapped

    @property
    def header(self) -> IndexHeader:
        """Return the current header."""
        return IndexHeader(
            self.begin_at_ms, self.end_at_ms, self.begin_offset, self.end_offset, self.slots_used, self.count
        )

    def start_after(self, previous: "IndexFile") -> None:
        """Take over the end of the full file before this one, as RocketMQ does, and write the header."""
        self.begin_at_ms = self.end_at_ms = previous.end_at_ms
        self.begin_offset = self.end_offset = previous.end_offset
        self.write_header()

    @property
    def is_full(self) -> bool:
        """Return whether the file has no room for another entry."""
        return self.count >= self._entries_max

    @property
    def room(self) -> int:
        """Return how many entries still fit."""
        return self._entries_max - self.count

    def put(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Add entries (key hash, physical offset, store time), for which there must be room.

        Raises:
            StoreFullError: The disk is full; nothing was written.
        """
        if self._entries_at + (self.count + len(entries)) * INDEX_ENTRY_BYTES > self._allocated:
            self.make_writable(len(entries))
        file = self.file
        assert file is not None
        memory, slots, count, slots_used = self._memory, self._slots, self.count, self.slots_used
        begin_at_ms = self.begin_at_ms
        written: list[bytes] = []
        pack, from_bytes = INDEX_ENTRY.pack, int.from_bytes
        for key_hash, physical_offset, stored_at_ms in entries:
            at = INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES
            previous = from_bytes(memory[at : at + INDEX_SLOT_BYTES])
            if previous >= count:  # Also a number that Java would read as negative.
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
        file.is_dirty = True

    def write_header(self) -> None:
        """Write the header of a writable file."""
        assert self.file is not None, f"{self.name} is not writable"
        self.file.write(0, INDEX_HEADER.pack(*self.header))

    def keys_of_last(self) -> int:
        """Return how many entries at the end belong to the last record that has entries in this file."""
        number = self.count - 1
        while number >= 1 and self._entry(number)[1] == self.end_offset:
            number -= 1
        return self.count - 1 - number

    def slot_position(self, key_hash: int) -> int:
        """Return the position of a key's slot in the file."""
        return INDEX_HEADER_BYTES + key_hash % self._slots * INDEX_SLOT_BYTES

    def entry_position(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return self._entries_at + number * INDEX_ENTRY_BYTES

    def entry_time_ms(self, number: int, seconds: int) -> int:
        """Return an entry's time, which may be up to one second early, because entries hold whole seconds."""
        # The first entry's seconds count from the end of the previous file, but its own time is the begin time.
        return self.begin_at_ms + (seconds * _SECONDS if number > 1 else 0)

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        entry: tuple[int, int, int, int] = INDEX_ENTRY.unpack(
            self._bytes(self._entries_at + number * INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
        )
        return entry

    def repair(self, trusted_before: int, find_head: Callable[[int], object | None], *, is_synced: bool) -> int:
        """Drop entries that a crash may have left incomplete, and repair the chains (indexrepair.py), in a writable file.

        Args:
            trusted_before: The physical offset from which on the entries of records are dropped.
            find_head: Returns the head of the record at a physical offset, or None; a torn entry may look trusted.
            is_synced: Whether the entries of records before that offset are on the disk, and the slots that pointed to
                them.

        Returns:
            The number of entries that the header promised and that are gone.
        """
        assert self.file is not None, f"{self.name} is not writable"
        promised = self.count
        repairer = IndexRepairer(self._memory, slots=self._slots, is_synced=is_synced)
        kept = repairer.first_invalid(promised, begin_offset=self.begin_offset, trusted_before=trusted_before)
        while kept > 1 and find_head(self._entry(kept - 1)[1]) is None:
            kept -= 1
            if is_synced:  # The entries before were perhaps trusted because of this one.
                kept = repairer.first_invalid(kept, begin_offset=self.begin_offset, trusted_before=trusted_before)
        repaired = repairer.chains(kept)
        self.slots_used = repaired.slots_used
        self.count = kept
        if kept == 1:
            self.begin_at_ms = self.end_at_ms = self.begin_offset = self.end_offset = 0
        else:
            _, self.end_offset, seconds, _ = self._entry(kept - 1)
            if promised != kept:
                # The time is known only to the second. A late end time does no harm; an early one would hide the last
                # entries.
                self.end_at_ms = self.begin_at_ms + (seconds + 1) * _SECONDS - 1 if kept > 2 else self.begin_at_ms
        for at, data in repaired.writes:
            self.file.write(at, data)
        self.file.zero_from(self._entries_at + kept * INDEX_ENTRY_BYTES)
        if INDEX_HEADER.pack(*self.header) != self._memory[0:INDEX_HEADER_BYTES]:
            self.write_header()
        return promised - kept


class _Unmapped:
    """A removed file that holds no resources."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def close(self) -> bool:
        """Return True: the map is not in use."""
        return True
