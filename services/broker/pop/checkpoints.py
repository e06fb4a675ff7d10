"""The check points whose messages are not all done: by receipt, by time, and by place in the revive topic.

Concurrency: the loop's thread only.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from services.broker.pop.records import CheckPointKey

CHECK_POINTS_MAX: Final = 300_000
"""Limit of unfinished check points: each takes about half a kilobyte of memory, and a start reads all of them."""
_FINISHED_KEPT: Final = 10_000


class CheckPoint:
    """The messages of one queue that one pop gave out.

    Attributes:
        key: Its identity.
        attempt_id: Attempt id of the pop, or None.
        invisible_ms: Invisible time of the pop.
        revive_queue_id: Queue of the revive topic that has its record.
        offsets: Queue offsets of its messages, ascending.
        left: Bit map of the messages that are not done, by index in `offsets`.
        is_stored: Whether its record is durable, so that its receipts may be known to clients.
        due_at_ms: Time at which its messages are given out again.
    """

    __slots__ = ("attempt_id", "due_at_ms", "invisible_ms", "is_stored", "key", "left", "offsets", "revive_queue_id")

    def __init__(
        self,
        key: CheckPointKey,
        offsets: Sequence[int],
        invisible_ms: int,
        revive_queue_id: int,
        attempt_id: str | None = None,
    ) -> None:
        self.key = key
        self.attempt_id = attempt_id
        self.invisible_ms = invisible_ms
        self.revive_queue_id = revive_queue_id
        self.offsets = tuple(offsets)
        self.left = (1 << len(self.offsets)) - 1
        self.is_stored = False
        self.due_at_ms = key.popped_at_ms + invisible_ms

    def bit(self, offset: int) -> int:
        """Return the bit of the message at an offset in `left`; 0 if it does not belong to the check point."""
        offsets = self.offsets
        index = offset - offsets[0]
        # Without a filter, the messages of a pop follow each other.
        if 0 <= index < len(offsets) and offsets[index] == offset:
            return 1 << index
        return 1 << offsets.index(offset) if offset in offsets else 0

    def has(self, offset: int) -> bool:
        """Return whether the message at an offset belongs to the check point and is not done."""
        return bool(self.left & self.bit(offset))

    def mark(self, offset: int, *, done: bool) -> None:
        """Note that a message is done, or that it is not, after all."""
        bit = self.bit(offset)
        assert bit, f"message {offset} of {self.key}"
        self.left = self.left & ~bit if done else self.left | bit

    def left_offsets(self) -> list[int]:
        """Return the queue offsets of the messages that are not done."""
        return [offset for index, offset in enumerate(self.offsets) if self.left >> index & 1]

    def __lt__(self, other: "CheckPoint") -> bool:
        """Return whether this one is due earlier."""
        return self.due_at_ms < other.due_at_ms


class CheckPointTable:
    """All unfinished check points.

    Attributes:
        in_flight: Number of messages that are not done.
    """

    def __init__(self) -> None:
        self._table: dict[CheckPointKey, CheckPoint] = {}
        self._due: list[tuple[int, CheckPoint]] = []
        self._attempts: dict[tuple[str, str], dict[CheckPointKey, CheckPoint]] = {}
        self.in_flight = 0

    def __len__(self) -> int:
        """Return the number of unfinished check points."""
        return len(self._table)

    def __iter__(self) -> Iterator[CheckPoint]:
        """Return an iterator over the check points; the table must not change meanwhile."""
        return iter(self._table.values())

    def find(self, key: CheckPointKey) -> CheckPoint | None:
        """Return an unfinished check point, or None."""
        return self._table.get(key)

    def of_attempt(self, group: str, attempt_id: str) -> Sequence[CheckPoint]:
        """Return the unfinished check points of the pop with this attempt id."""
        return list(self._attempts.get((group, attempt_id), {}).values())

    def add(self, point: CheckPoint) -> None:
        """Add a new check point with at least one message that is not done."""
        assert point.key not in self._table, f"two check points {point.key}"
        self._enter(point)
        self.in_flight += point.left.bit_count()
        if len(self._due) > 2 * len(self._table) + _FINISHED_KEPT:
            # Most of them are finished, long before their times.
            self._due = [(point.due_at_ms, point) for point in self._table.values()]
            heapq.heapify(self._due)
        else:
            heapq.heappush(self._due, (point.due_at_ms, point))

    def mark(self, point: CheckPoint, offset: int, *, done: bool = True) -> None:
        """Note that a message is done. The check point leaves the table with its last one.

        With `done` false, take that back. A check point that has left the table comes back.
        """
        assert point.has(offset) == done, f"message {offset} of {point.key}"
        point.mark(offset, done=done)
        self.in_flight += -1 if done else 1
        if not point.left:
            self._leave(point)
        elif not done and point.key not in self._table:
            self._enter(point)
            heapq.heappush(self._due, (point.due_at_ms, point))

    def take(self, point: CheckPoint, offsets: Sequence[int]) -> list[int]:
        """Note that messages of an unfinished check point are done; return those that were not done before."""
        left = point.left
        taken = []
        for offset in offsets:
            bit = point.bit(offset)
            if left & bit:
                left &= ~bit
                taken.append(offset)
        point.left = left
        self.in_flight -= len(taken)
        if taken and not left:
            self._leave(point)
        return taken

    def drop(self, point: CheckPoint) -> None:
        """Forget a check point whose topic or group is gone."""
        if point.key in self._table:
            self._leave(point)
            self.in_flight -= point.left.bit_count()
            point.left = 0

    def _enter(self, point: CheckPoint) -> None:
        self._table[point.key] = point
        if point.attempt_id is not None:
            self._attempts.setdefault((point.key.group, point.attempt_id), {})[point.key] = point

    def _leave(self, point: CheckPoint) -> None:
        del self._table[point.key]
        if point.attempt_id is not None:
            name = (point.key.group, point.attempt_id)
            members = self._attempts[name]
            del members[point.key]
            if not members:
                del self._attempts[name]

    def postpone(self, point: CheckPoint, due_at_ms: int) -> None:
        """Make a check point due again at a later time."""
        point.due_at_ms = due_at_ms
        heapq.heappush(self._due, (due_at_ms, point))

    def take_due(self, now_ms: int) -> CheckPoint | None:
        """Return a check point that is due, and don't return it again; None if there is none."""
        due = self._due
        while due and due[0][0] <= now_ms:
            at_ms, point = heapq.heappop(due)
            # It may be finished, or due at a later time.
            if point.left and at_ms == point.due_at_ms and self._table.get(point.key) is point:
                return point
        return None
