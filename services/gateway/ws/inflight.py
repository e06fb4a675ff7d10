"""The in-flight window of one queue: what was sent and not acked, and how far the group's offset may move.

Messages are kept by batches, as they were sent: a batch that is acked whole costs one step however long it is, and
only one that is acked piecemeal remembers which of its messages are done. Pure.

Invariant: every batch in the window has at least one message that is not settled, batches do not overlap and stand in
the order of their offsets. So the commit point is the first unsettled message of the first batch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Batch:
    """Messages that were sent in one frame.

    Attributes:
        offsets: Their queue offsets, ascending; filtered ones are missing.
        sizes: Their sizes in bytes, in the same order.
        sent_at_ms: Monotonic time of the last sending.
        done: Offsets already settled, or None while there are none.
        is_settled: All of them are; the batch is no longer in the window.
    """

    offsets: Sequence[int]
    sizes: Sequence[int]
    sent_at_ms: int
    done: set[int] | None = None
    is_settled: bool = False

    @property
    def first(self) -> int:
        """Return the first message's offset."""
        return self.offsets[0]

    @property
    def last(self) -> int:
        """Return the last message's offset."""
        return self.offsets[-1]

    def unsettled(self) -> list[int]:
        """Return the offsets that are not settled."""
        done = self.done
        return list(self.offsets) if done is None else [offset for offset in self.offsets if offset not in done]


@dataclass(frozen=True, slots=True)
class Settled:
    """What an ack took out of the window."""

    messages: int
    bytes: int


NOTHING = Settled(0, 0)


class Window:
    """The in-flight window of one queue of one subscription."""

    __slots__ = ("_batches", "_firsts", "messages", "position")

    def __init__(self, position: int) -> None:
        self._batches: list[Batch] = []
        self._firsts: list[int] = []
        self.messages = 0
        # All messages before this offset were sent or need not be; the commit point when nothing is in flight.
        self.position = position

    def add(self, offsets: Sequence[int], sizes: Sequence[int], *, now_ms: int) -> None:
        """Take in a batch that is being sent; its offsets lie behind everything sent before."""
        assert offsets, "a frame without messages is never sent"
        assert offsets[0] >= self.position, f"queue offset {offsets[0]} was sent before {self.position}"
        self._batches.append(Batch(offsets, sizes, now_ms))
        self._firsts.append(offsets[0])
        self.messages += len(offsets)
        self.position = offsets[-1] + 1

    def settle(self, offset: int) -> Settled:
        """Settle one message; NOTHING if it is not in flight."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return NOTHING
        batch = self._batches[at]
        index = bisect_right(batch.offsets, offset) - 1
        if batch.offsets[index] != offset or (batch.done is not None and offset in batch.done):
            return NOTHING
        if batch.done is None:
            batch.done = set()
        batch.done.add(offset)
        self.messages -= 1
        if len(batch.done) == len(batch.offsets):
            self._remove(at)
        return Settled(1, batch.sizes[index])

    def settle_batch(self, first: int, last: int) -> Settled:
        """Settle what is left of the batch that was sent with these ends; NOTHING if it is not in flight."""
        at = bisect_right(self._firsts, first) - 1
        if at < 0:
            return NOTHING
        batch = self._batches[at]
        if batch.first != first or batch.last != last:
            return NOTHING
        self._remove(at)
        done = batch.done
        if done is None:
            settled = Settled(len(batch.offsets), sum(batch.sizes))
        else:
            left = [size for offset, size in zip(batch.offsets, batch.sizes, strict=True) if offset not in done]
            settled = Settled(len(left), sum(left))
        self.messages -= settled.messages
        return settled

    def clear(self, position: int) -> Settled:
        """Forget everything in flight and go on at another offset."""
        left = [self.settle_batch(batch.first, batch.last) for batch in list(self._batches)]
        assert self.messages == 0, f"{self.messages} messages are left in an empty window"
        self.position = position
        return Settled(sum(each.messages for each in left), sum(each.bytes for each in left))

    def commit_point(self) -> int:
        """Return the offset the group may be committed to: everything before it is settled."""
        if not self._batches:
            return self.position
        batch = self._batches[0]
        if batch.done is None:
            return batch.first
        return next(offset for offset in batch.offsets if offset not in batch.done)

    def find_overdue(self, *, sent_before_ms: int) -> Batch | None:
        """Return the first batch that was sent at this time or earlier, or None. Looks at all of them."""
        return next((batch for batch in self._batches if batch.sent_at_ms <= sent_before_ms), None)

    def _remove(self, at: int) -> None:
        self._batches[at].is_settled = True
        del self._batches[at]
        del self._firsts[at]
