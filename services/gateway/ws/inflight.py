"""The in-flight window of one queue: what was sent and not acked, and how far the group's offset may move.

Messages are kept by batches, as they were sent: a batch that is acked whole costs one step however long it is, and
only one that is acked piecemeal remembers which of its messages are done. Pure.

Invariant: every batch in the window has at least one message that is not settled, batches do not overlap and stand in
the order of their offsets. So the commit point is the first unsettled message of the first batch.

Cost: acks come in any order, ten thousand in one frame, and a window may hold 100,000 batches of one message. So batches
are kept in blocks: what is taken out moves at most a block's worth of others.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# A removal moves half as many, 1 KB; and 100,000 batches are 400 blocks, of which a look for overdue ones sees all.
BLOCK_BATCHES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Settled:
    """What an ack took out of the window."""

    messages: int
    bytes: int


NOTHING = Settled(0, 0)


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

    def left(self) -> Settled:
        """Return what an ack of the whole batch would settle now."""
        done = self.done
        if done is None:
            return Settled(len(self.offsets), sum(self.sizes))
        left = [size for offset, size in zip(self.offsets, self.sizes, strict=True) if offset not in done]
        return Settled(len(left), sum(left))


class _Block:
    """Some consecutive batches, with what finds one of them.

    Attributes:
        batches: In the order of their offsets, none of them settled.
        firsts: The first offset of each.
        oldest_ms: None of them was sent before this time.
    """

    __slots__ = ("batches", "firsts", "oldest_ms")

    def __init__(self, now_ms: int) -> None:
        self.batches: list[Batch] = []
        self.firsts: list[int] = []
        self.oldest_ms = now_ms


class Window:
    """The in-flight window of one queue of one subscription."""

    __slots__ = ("_blocks", "_starts", "messages", "position")

    def __init__(self, position: int) -> None:
        self._blocks: list[_Block] = []
        # No offset of a block is below its start, none of the block before it at or above it.
        self._starts: list[int] = []
        self.messages = 0
        # All messages before this offset were sent or need not be; the commit point when nothing is in flight.
        self.position = position

    def add(self, offsets: Sequence[int], sizes: Sequence[int], *, now_ms: int) -> None:
        """Take in a batch that is being sent; its offsets lie behind everything sent before."""
        assert offsets, "a frame without messages is never sent"
        assert offsets[0] >= self.position, f"queue offset {offsets[0]} was sent before {self.position}"
        if not self._blocks or len(self._blocks[-1].batches) >= BLOCK_BATCHES_MAX:
            self._blocks.append(_Block(now_ms))
            self._starts.append(offsets[0])
        block = self._blocks[-1]
        block.batches.append(Batch(offsets, sizes, now_ms))
        block.firsts.append(offsets[0])
        self.messages += len(offsets)
        self.position = offsets[-1] + 1

    def settle(self, offset: int) -> Settled:
        """Settle one message; NOTHING if it is not in flight."""
        number, at = self._find(offset)
        if at < 0:
            return NOTHING
        batch = self._blocks[number].batches[at]
        index = bisect_right(batch.offsets, offset) - 1
        if batch.offsets[index] != offset or (batch.done is not None and offset in batch.done):
            return NOTHING
        if batch.done is None:
            batch.done = set()
        batch.done.add(offset)
        self.messages -= 1
        if len(batch.done) == len(batch.offsets):
            self._remove(number, at)
        return Settled(1, batch.sizes[index])

    def settle_batch(self, first: int, last: int) -> Settled:
        """Settle what is left of the batch that was sent with these ends; NOTHING if it is not in flight."""
        number, at = self._find(first)
        if at < 0:
            return NOTHING
        batch = self._blocks[number].batches[at]
        if batch.first != first or batch.last != last:
            return NOTHING
        settled = batch.left()
        self._remove(number, at)
        self.messages -= settled.messages
        return settled

    def clear(self, position: int) -> Settled:
        """Forget everything in flight and go on at another offset."""
        messages = size_bytes = 0
        for batch in self._all():
            left = batch.left()
            messages += left.messages
            size_bytes += left.bytes
            batch.is_settled = True
        assert messages == self.messages, f"{self.messages} messages were counted, {messages} are left"
        self._blocks.clear()
        self._starts.clear()
        self.messages = 0
        self.position = position
        return Settled(messages, size_bytes)

    def commit_point(self) -> int:
        """Return the offset the group may be committed to: everything before it is settled."""
        if not self._blocks:
            return self.position
        batch = self._blocks[0].batches[0]
        if batch.done is None:
            return batch.first
        return next(offset for offset in batch.offsets if offset not in batch.done)

    def find_overdue(self, *, sent_before_ms: int) -> Batch | None:
        """Return the first batch that was sent at this time or earlier, or None. Looks into blocks that may have one."""
        for block in self._blocks:
            if block.oldest_ms > sent_before_ms:
                continue
            for batch in block.batches:
                if batch.sent_at_ms <= sent_before_ms:
                    return batch
            block.oldest_ms = min(batch.sent_at_ms for batch in block.batches)
        return None

    def _all(self) -> Iterator[Batch]:
        return (batch for block in self._blocks for batch in block.batches)

    def _find(self, offset: int) -> tuple[int, int]:
        """Return the block and the place of the batch that an offset may belong to; a place below 0 where there is none."""
        number = bisect_right(self._starts, offset) - 1
        return number, (-1 if number < 0 else bisect_right(self._blocks[number].firsts, offset) - 1)

    def _remove(self, number: int, at: int) -> None:
        block = self._blocks[number]
        block.batches[at].is_settled = True
        del block.batches[at]
        del block.firsts[at]
        if not block.batches:
            del self._blocks[number]
            del self._starts[number]
