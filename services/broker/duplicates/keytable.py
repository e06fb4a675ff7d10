"""The keys of one duplicate window in little memory: about 56 bytes a key; pure.

Theory of operation. The table is a linear hash table: buckets of about eight entries, each bucket one bytes object of
less than 512 bytes, which Python's allocator packs without gaps. An entry has a fixed size. New entries go to the end of their bucket, so the entries of a bucket are in the order in which
their messages were stored. A search is one `find` for the 16 bytes of the key's digest, which runs in C. When the table
grows, one bucket is split at a time, so no call takes long.

    bucket   entry (oldest) │ entry │ … │ entry (newest)
    entry    digest 16 │ physical offset 8 │ queue offset 8 │ stored at 4 │ queue id 2 │ delivery second 4

The store time is in ms modulo 2^32 (49 days). A key ends when its message is as old as the window, or when `keys_max`
newer keys are known. The ends of the second kind are counted in groups of keys (1/64 of the limit), so the table knows at
least `keys_max` keys, and at most 2 % more. A search ignores ended keys. `sweep` removes them.

Concurrency: one thread.
"""

import struct
from collections import deque
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 16
_ENTRY = struct.Struct("<16sQQIHI")
_ENTRY_BYTES: Final = _ENTRY.size
_STORED_AT = struct.Struct("<32xI")
_BUCKET_COUNT: Final = 8
"""Average number of entries of a bucket. More take longer to search, fewer need more memory."""
_TIME_MASK: Final = 0xFFFF_FFFF
_GROUPS: Final = 64
QUEUE_ID_MAX: Final = 0xFFFF
HALF_SECOND: Final = 0xFFFF_FFFF
"""The delivery second of the half message of a transaction."""
assert _ENTRY_BYTES == 42


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


class KeyTable:
    """Digests of keys and the places of their messages.

    Attributes:
        window_ms: Time for which a key is known.
        keys_max: Number of newest keys that are known in any case, if they are within the window.
        count: Number of entries, also of those that have ended and are not removed yet.
        forgotten: Number of keys that ended before the window did, because newer ones needed the room.
    """

    __slots__ = (
        "_buckets",
        "_cursor",
        "_groups",
        "_kept_from_ms",
        "_last_count",
        "_last_max",
        "_mask",
        "_newest_ms",
        "_removed",
        "_split_above",
        "count",
        "forgotten",
        "keys_max",
        "window_ms",
    )

    def __init__(self, window_ms: int, keys_max: int) -> None:
        assert 0 < window_ms <= _TIME_MASK // 2, f"a window of {window_ms} ms"
        assert keys_max > 0, f"a window of {keys_max} keys"
        self.window_ms = window_ms
        self.count = self.forgotten = self._removed = 0
        self._newest_ms = 0
        self._kept_from_ms = 0
        self.clear()
        self.limit(keys_max)

    def clear(self) -> None:
        """Remove all keys."""
        self._removed += self.count
        self.count = 0
        self._buckets = [b""]
        self._mask = 1
        self._split_above = _BUCKET_COUNT
        self._cursor = 0
        # Groups of keys in the order of their store times: time of the first key, number of keys. The last group grows.
        self._groups: deque[tuple[int, int]] = deque()
        self._last_count = 0

    def limit(self, keys_max: int) -> None:
        """Change the limit."""
        self.keys_max = keys_max
        self._last_max = max(1, keys_max // _GROUPS)

    @property
    def known_from_ms(self) -> int:
        """The store time from which on the table knows all keys; 0 if only the window limits it."""
        return self._kept_from_ms

    def may_have(self, digest: bytes) -> bool:
        """Return False if a key is certainly not known. This is all that most sends need."""
        buckets = self._buckets
        number = hash(digest) & self._mask
        if number >= len(buckets):
            number &= self._mask >> 1
        return digest in buckets[number]

    def find(self, digest: bytes, now_ms: int) -> Place | None:
        """Return the place of the first message with a key, or None if the key is not known, or has ended.

        Args:
            digest: The digest of the key.
            now_ms: The current wall time.
        """
        buckets = self._buckets
        number = hash(digest) & self._mask
        if number >= len(buckets):
            number &= self._mask >> 1
        bucket = buckets[number]
        at = bucket.find(digest)
        return None if at < 0 else self._find_valid(bucket, digest, at, now_ms)

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
        buckets = self._buckets
        number = hash(digest) & self._mask
        if number >= len(buckets):
            number &= self._mask >> 1
        buckets[number] += _ENTRY.pack(
            digest, physical_offset, queue_offset, stored_at_ms & _TIME_MASK, queue_id, delivery_second
        )
        self.count += 1
        if self._last_count >= self._last_max or not self._groups:
            self._begin_group(stored_at_ms)
        self._last_count += 1
        if self.count > self._split_above:
            self._split()

    def remove(self, digest: bytes, last_offset: int, delivery_second: int) -> bool:
        """Remove a key, so that it can be used again. Return whether the table had it.

        Args:
            digest: The digest of the key.
            last_offset: A message whose record starts after this physical offset keeps the key.
            delivery_second: As in Place; a message of another second keeps the key.
        """
        number = self._number(digest)
        bucket = self._buckets[number]
        at = bucket.find(digest)
        while at >= 0:
            if at % _ENTRY_BYTES == 0:
                _, physical_offset, _, _, _, second = _ENTRY.unpack_from(bucket, at)
                if physical_offset <= last_offset and second == delivery_second:
                    self._buckets[number] = bucket[:at] + bucket[at + _ENTRY_BYTES :]
                    self.count -= 1
                    self._removed += 1
                    return True
            at = bucket.find(digest, at + 1)
        return False

    def sweep(self, now_ms: int, buckets_max: int) -> int:
        """Remove the ended keys of some buckets, in turn. Return the number of buckets; all of them make one round."""
        now_ms = self._now(now_ms)
        self._end_groups(now_ms)
        if self.count == 0:
            if len(self._buckets) > 1:
                self.clear()
            return 1
        # In the arithmetic of _TIME_MASK, an age above this has ended.
        age_max = now_ms - max(self._kept_from_ms, now_ms - self.window_ms + 1)
        visited = min(buckets_max, len(self._buckets))
        for _ in range(visited):
            if self._cursor >= len(self._buckets):
                self._cursor = 0
            bucket = self._buckets[self._cursor]
            self._cursor += 1
            ended = 0
            while ended < len(bucket):
                (stored,) = _STORED_AT.unpack_from(bucket, ended)
                if (now_ms - stored) & _TIME_MASK <= age_max:
                    break
                ended += _ENTRY_BYTES
            if ended:
                self._buckets[self._cursor - 1] = bucket[ended:]
                self.count -= ended // _ENTRY_BYTES
                self._removed += ended // _ENTRY_BYTES
        return visited

    def added_count(self) -> int:
        """Return the number of keys that were ever added."""
        return self.count + self._removed

    def buckets_count(self) -> int:
        """Return the number of buckets."""
        return len(self._buckets)

    def known_count(self) -> int:
        """Return the number of keys that have not ended, as far as it is known: ends are counted in groups."""
        return sum(count for _, count in self._groups) + self._last_count

    def _number(self, digest: bytes) -> int:
        number = hash(digest) & self._mask
        return number if number < len(self._buckets) else number & self._mask >> 1

    def _now(self, now_ms: int) -> int:
        # Store times never go back, but the clock may. A key must not live longer for that.
        self._newest_ms = max(self._newest_ms, now_ms)
        return self._newest_ms

    def _find_valid(self, bucket: bytes, digest: bytes, at: int, now_ms: int) -> Place | None:
        now_ms = self._now(now_ms)
        from_ms = max(self._kept_from_ms, now_ms - self.window_ms + 1)
        while at >= 0:
            # The bytes may also be found across the border of two entries.
            if at % _ENTRY_BYTES == 0:
                _, physical_offset, queue_offset, stored, queue_id, second = _ENTRY.unpack_from(bucket, at)
                if now_ms - ((now_ms - stored) & _TIME_MASK) >= from_ms:
                    return Place(physical_offset, queue_id, queue_offset, second)
            at = bucket.find(digest, at + 1)
        return None

    def _split(self) -> None:
        """Divide one bucket into two."""
        buckets = self._buckets
        count = len(buckets)
        bit = 1 << count.bit_length() - 1
        old = buckets[count - bit]
        stay = move = b""
        for at in range(0, len(old), _ENTRY_BYTES):
            entry = old[at : at + _ENTRY_BYTES]
            if hash(entry[:DIGEST_BYTES]) & bit:
                move += entry
            else:
                stay += entry
        buckets[count - bit] = stay
        buckets.append(move)
        self._mask = (bit << 1) - 1
        self._split_above = (count + 1) * _BUCKET_COUNT

    def _begin_group(self, stored_at_ms: int) -> None:
        groups = self._groups
        self._newest_ms = max(self._newest_ms, stored_at_ms)
        if not groups:
            groups.append((stored_at_ms, 0))
            return
        if stored_at_ms <= groups[-1][0]:
            return  # A group begins at a time of its own.
        start_ms, _ = groups.pop()
        groups.append((start_ms, self._last_count))
        groups.append((stored_at_ms, 0))
        self._last_count = 0
        known = sum([count for _, count in groups])
        while known - groups[0][1] >= self.keys_max:
            _, count = groups.popleft()
            known -= count
            if groups[0][0] > self._newest_ms - self.window_ms:
                self.forgotten += count
            self._kept_from_ms = groups[0][0]

    def _end_groups(self, now_ms: int) -> None:
        groups = self._groups
        while len(groups) > 1 and groups[1][0] <= now_ms - self.window_ms:
            groups.popleft()
        if len(groups) == 1 and self.count == 0:
            groups.clear()
            self._last_count = 0
