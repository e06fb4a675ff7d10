"""The keys of one duplicate window in little memory: about 60 bytes a key; pure.

Theory of operation. The entries are in the order in which their messages were stored, so the oldest ones always end
first. Each has a number, and `first` is the number of the oldest entry that is known. The entries of 256 numbers in a
row are a chunk: one bytearray, which has its full size from the beginning. One that grows would be copied, to fresh pages,
again and again.

    entry    digest 16 │ physical offset 8 │ queue offset 8 │ stored at 8 │ queue id 2 │ delivery second 4

A hash table finds them. A slot has the number of its newest entry. A chunk has a link for each of its entries: the
number of the next older entry of the same slot. A number below `first` ends such a chain, so nothing has to be removed
from the table when entries end. Most slots have no known entry. This is why a search for a new key is one read.

    heads    slot → number of the newest entry
    links    entry → number of the next older entry of its slot

A key ends when its message is as old as the window, or when `keys_max` newer keys are known. The ends of the second
kind are counted in steps (1/64 of the limit), so the table knows at least `keys_max` keys, and at most 2 % more.

When the hash table has too few slots, a second one is made with more of them. It is filled with some chunks at a time,
and takes over when it has all of them. It begins with low numbers again, and may also be smaller. No call takes
more than about 10 ms: that is how long it takes to make the largest table, 8 MiB for a million keys.

Concurrency: one thread.
"""

import struct
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 16
_ENTRY = struct.Struct("<16sQQQHI")
_pack_into: Final = _ENTRY.pack_into
_ENTRY_BYTES: Final = _ENTRY.size
_DIGEST = struct.Struct(f"<16s{_ENTRY_BYTES - DIGEST_BYTES}x")
_STORED_AT = struct.Struct("<32xQ6x")
_PHYSICAL_AT = struct.Struct("<Q")
assert (_ENTRY_BYTES, _DIGEST.size, _STORED_AT.size) == (46, 46, 46)
_FREED: Final = 2**64 - 1
"""The physical offset of an entry whose key was removed."""
_SHIFT: Final = 8
_CHUNK: Final = 1 << _SHIFT
_IN_CHUNK: Final = _CHUNK - 1
_SLOTS_MIN: Final = 1_024
_SLOTS_PER_KEY: Final = (2, 16, 64)
"""A table with fewer slots for each entry than the first number grows, one with more than the last number shrinks. A
new table has at most as many as the second number says."""
_REFILLED_AT_ONCE: Final = 8
"""Number of chunks that a new table gets for each chunk of new entries: it is complete long before it is full."""
_NUMBER_HIGH: Final = 2**31
"""A new table is made when the numbers get this high. Slots have 32 bits."""
_ENDED_AT_ONCE: Final = 1_024
_STEPS: Final = 64
QUEUE_ID_MAX: Final = 0xFFFF
HALF_SECOND: Final = 0xFFFF_FFFF
"""The delivery second of the half message of a transaction."""


class Place(NamedTuple):
    """The place of the first message with a key.

    Attributes:
        physical_offset: Start of its record.
        queue_id: Queue that its producer asked for.
        queue_offset: Offset in its queue, or in the queue where it waits for its time.
        delivery_second: For a message that waits for a set time, TIMER_OUT_MS in seconds; HALF_SECOND for a half
            message; 0 for any other message.
    """

    physical_offset: int
    queue_id: int
    queue_offset: int
    delivery_second: int


class _Chunk:
    """Entries with consecutive numbers.

    Attributes:
        data: The entries.
        links: For each entry, the number of the next older entry of its slot.
        freed: Number of entries whose key was removed.
    """

    __slots__ = ("data", "freed", "links")

    def __init__(self) -> None:
        self.data = bytearray(_CHUNK * _ENTRY_BYTES)
        self.links = array("I", (0,)) * _CHUNK
        self.freed = 0

    def count_freed(self, start: int, end: int) -> int:
        """Return how many entries from one number to another were freed."""
        ats = range((start & _IN_CHUNK) * _ENTRY_BYTES, ((end - 1 & _IN_CHUNK) + 1) * _ENTRY_BYTES, _ENTRY_BYTES)
        return sum(_PHYSICAL_AT.unpack_from(self.data, at + DIGEST_BYTES)[0] == _FREED for at in ats)


class _NewTable:
    """A hash table that is not complete yet.

    Attributes:
        heads: Its slots.
        links: The links of the chunks that it has; the first one belongs to the oldest chunk.
        ordinal: The ordinal that the oldest chunk will have.
    """

    __slots__ = ("heads", "links", "ordinal")

    def __init__(self, slots: int) -> None:
        self.heads = array("I", (0,)) * slots
        self.links: list[array[int]] = []
        self.ordinal = 1

    def add(self, data: bytearray) -> None:
        """Add the entries of the next chunk."""
        heads, mask = self.heads, len(self.heads) - 1
        links = array("I", (0,)) * _CHUNK
        number = self.ordinal + len(self.links) << _SHIFT
        for index, (digest,) in enumerate(_DIGEST.iter_unpack(data)):
            slot = hash(digest) & mask
            links[index] = heads[slot]
            heads[slot] = number + index
        self.links.append(links)

    def drop(self) -> None:
        """Drop the oldest chunk."""
        if self.links:
            del self.links[0]
            self.ordinal += 1


class KeyTable:
    """Digests of keys and the places of their messages.

    Attributes:
        window_ms: Time for which a key is known.
        keys_max: Number of newest keys that are known in any case, if they are within the window.
        forgotten: Number of keys that ended before the window did, because newer ones needed the room.
        known_from_ms: The store time from which on the table knows all keys; 0 if only the window limits it.
        heads: For each slot, the number of its newest entry.
        mask: The bits of a digest's hash that are its slot.
        first: Number of the oldest known entry. A key is certainly not known if the number in its slot is lower. This
            is all that most sends need, so `DuplicateWindow.find` compares the two without a call.
    """

    __slots__ = (
        "_chunks",
        "_freed",
        "_last",
        "_new_table",
        "_newest_ms",
        "_next",
        "_ordinal",
        "_turn",
        "first",
        "forgotten",
        "heads",
        "keys_max",
        "known_from_ms",
        "mask",
        "window_ms",
    )

    def __init__(self, window_ms: int, keys_max: int) -> None:
        assert window_ms > 0, f"a window of {window_ms} ms"
        assert keys_max > 0, f"a window of {keys_max} keys"
        self.window_ms = window_ms
        self.keys_max = keys_max
        self.forgotten = self.known_from_ms = self._newest_ms = 0
        self.clear()

    def clear(self) -> None:
        """Remove all keys."""
        self.heads = array("I", (0,)) * _SLOTS_MIN
        self.mask = _SLOTS_MIN - 1
        self._new_table: _NewTable | None = None
        self._last = _Chunk()
        self._chunks = [self._last]
        self._freed = 0
        # The ordinal of the first chunk. No entry has the number 0, which is that of an empty slot.
        self._ordinal = 1
        self.first = self._next = _CHUNK
        self._plan_turn()

    def limit(self, keys_max: int) -> None:
        """Change the limit."""
        assert keys_max > 0, f"a window of {keys_max} keys"
        self.keys_max = keys_max
        self._turn = self._next

    @property
    def count(self) -> int:
        """The number of entries, also of those that have ended and are not removed yet."""
        return self._next - self.first - self._freed

    def find(self, digest: bytes, now_ms: int) -> Place | None:
        """Return the place of the first message with a key, or None if the key is not known, or has ended.

        Args:
            digest: The digest of the key.
            now_ms: The current wall time.
        """
        number = self.heads[hash(digest) & self.mask]
        while number >= self.first:
            chunk, index = self._chunks[(number >> _SHIFT) - self._ordinal], number & _IN_CHUNK
            if chunk.data.startswith(digest, index * _ENTRY_BYTES):
                entry = _ENTRY.unpack_from(chunk.data, index * _ENTRY_BYTES)
                _, physical_offset, queue_offset, stored_at_ms, queue_id, second = entry
                if physical_offset != _FREED:
                    # An older entry with this key would have ended as well.
                    has_ended = stored_at_ms <= self._now(now_ms) - self.window_ms
                    return None if has_ended else Place(physical_offset, queue_id, queue_offset, second)
            number = chunk.links[index]
        return None

    def add(  # noqa: PLR0917 - the path of every send.
        self,
        digest: bytes,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        stored_at_ms: int,
        delivery_second: int = 0,
    ) -> None:
        """Add a key that `find` does not know. Calls come in the order of the store times."""
        number = self._next
        if number >= self._turn:
            self._take_turn(stored_at_ms)
            number = self._next
        heads, last, index = self.heads, self._last, number & _IN_CHUNK
        slot = hash(digest) & self.mask
        last.links[index] = heads[slot]
        heads[slot] = number
        at = index * _ENTRY_BYTES
        _pack_into(last.data, at, digest, physical_offset, queue_offset, stored_at_ms, queue_id, delivery_second)
        self._next = number + 1

    def remove(self, digest: bytes, last_offset: int, delivery_second: int) -> bool:
        """Remove a key, so that it can be used again. Return whether the table had it.

        Args:
            digest: The digest of the key.
            last_offset: A message whose record starts after this physical offset keeps the key.
            delivery_second: As in Place; a message of another second keeps the key.
        """
        number = self.heads[hash(digest) & self.mask]
        while number >= self.first:
            chunk, index = self._chunks[(number >> _SHIFT) - self._ordinal], number & _IN_CHUNK
            found, physical_offset, _, _, _, second = _ENTRY.unpack_from(chunk.data, index * _ENTRY_BYTES)
            if found == digest and physical_offset <= last_offset and second == delivery_second:
                _PHYSICAL_AT.pack_into(chunk.data, index * _ENTRY_BYTES + DIGEST_BYTES, _FREED)
                chunk.freed += 1
                self._freed += 1
                return True
            number = chunk.links[index]
        return False

    def sweep(self, now_ms: int) -> None:
        """Give the memory of some ended keys back."""
        ended_ms = self._now(now_ms) - self.window_ms
        self._keep_limit()
        for _ in range(_ENDED_AT_ONCE):
            if self._next == self.first:
                if self._next != _CHUNK:
                    self.clear()
                return
            end = min(self._next, _chunk_end(self.first))
            if self._stored_at_ms(end - 1) > ended_ms:
                return
            self._forget_until(end)

    def slots_count(self) -> int:
        """Return the number of slots of the hash table."""
        return len(self.heads)

    def _now(self, now_ms: int) -> int:
        # Store times never go back, but the clock may. A key must not live longer for that.
        self._newest_ms = max(self._newest_ms, now_ms)
        return self._newest_ms

    def _stored_at_ms(self, number: int) -> int:
        chunk = self._chunks[(number >> _SHIFT) - self._ordinal]
        return int(_STORED_AT.unpack_from(chunk.data, (number & _IN_CHUNK) * _ENTRY_BYTES)[0])

    def _forget_until(self, number: int) -> None:
        """Forget the entries below a number."""
        while self.first < number:
            chunk, chunk_end = self._chunks[(self.first >> _SHIFT) - self._ordinal], _chunk_end(self.first)
            end = min(number, chunk_end)
            if chunk.freed:
                passed = chunk.freed if end == chunk_end else chunk.count_freed(self.first, end)
                chunk.freed -= passed
                self._freed -= passed
            self.first = end
        while len(self._chunks) > 1 and self._ordinal < self.first >> _SHIFT:
            del self._chunks[0]
            self._ordinal += 1
            if self._new_table is not None:
                self._new_table.drop()

    def _plan_turn(self) -> None:
        """Set the number before whose entry the table looks after itself."""
        self._turn = min(_chunk_end(self._next), self._next + max(1, self.keys_max // _STEPS))

    def _take_turn(self, stored_at_ms: int) -> None:
        """Keep the limit of keys, and begin a chunk if the last one is full. The next key has the store time."""
        self._now(stored_at_ms)
        self._keep_limit()
        if self._next == self._ordinal + len(self._chunks) << _SHIFT:
            self._refill()
            self._last = _Chunk()
            self._chunks.append(self._last)
        self._plan_turn()

    def _keep_limit(self) -> None:
        first, wanted = self.first, self._next - self.keys_max
        if wanted > first:
            wanted = min(wanted, first + _ENDED_AT_ONCE * _CHUNK)
            ended_ms = self._newest_ms - self.window_ms
            self.forgotten += wanted - bisect_right(range(wanted), ended_ms, first, key=self._stored_at_ms)
            self._forget_until(wanted)
            self.known_from_ms = self._stored_at_ms(wanted)

    def _refill(self) -> None:
        """Make another table if this one has too few or too many slots, or go on with it. All chunks are full."""
        table = self._new_table
        if table is None:
            slots = wanted_slots(len(self.heads), self._next - self.first, self.keys_max)
            if slots == len(self.heads) and self._next < _NUMBER_HIGH:
                return
            table = self._new_table = _NewTable(slots)
        for chunk in self._chunks[len(table.links) :][:_REFILLED_AT_ONCE]:
            table.add(chunk.data)
        if len(table.links) == len(self._chunks):
            self._take_over(table)

    def _take_over(self, table: _NewTable) -> None:
        for chunk, links in zip(self._chunks, table.links, strict=True):
            chunk.links = links
        moved = self._ordinal - table.ordinal << _SHIFT
        self.first -= moved
        self._next -= moved
        self._ordinal = table.ordinal
        self.heads, self.mask, self._new_table = table.heads, len(table.heads) - 1, None


def wanted_slots(slots: int, known: int, keys_max: int) -> int:
    """Return the number of slots that a hash table should have: a power of two.

    Args:
        slots: The number that it has.
        known: Number of its entries.
        keys_max: Number of entries that it will have at most.
    """
    least, usual, most = _SLOTS_PER_KEY
    known = min(known, keys_max)
    if slots >= least * known and (slots <= most * known or slots == _SLOTS_MIN):
        return slots
    return max(_SLOTS_MIN, min(_power(usual * known) >> 1, _power(least * keys_max)))


def _power(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _chunk_end(number: int) -> int:
    """Return the first number after the chunk of a number."""
    return (number >> _SHIFT) + 1 << _SHIFT
