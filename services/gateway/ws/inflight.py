"""The in-flight window of one queue: messages sent and not acknowledged, and the offset that may be committed.

Messages are kept in the batches in which they were sent. A batch that is acknowledged as a whole costs one step,
however long it is; only a batch that is acknowledged in parts records which of its messages are done. Pure.

Invariant: every batch in the window has at least one message that is not settled; batches do not overlap and are in the
order of their offsets. So the commit point is the first unsettled message of the first batch.

Cost: acks come in any order, ten thousand in one frame, and a window may hold 100,000 batches of one message. So
batches are kept in blocks: a removal moves at most the rest of one block.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# A removal moves half of them on average, 1 KB. 100,000 batches are 400 blocks, which a search for overdue ones scans.
BLOCK_BATCHES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Settled:
    """The messages and bytes that an ack removed from the window."""

    messages: int
    bytes: int


NOTHING = Settled(0, 0)


@dataclass(slots=True)
class Batch:
    """Messages that were sent in one frame.

    Attributes:
        offsets: Queue offsets, ascending; those of filtered messages are missing.
        sizes: Sizes in bytes, in the same order.
        sent_at_ms: Monotonic time of the last sending.
        done: Offsets already settled, or None while there are none.
        is_settled: Whether all messages are settled; the batch is then no longer in the window.
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
        """Return the messages and bytes that an ack of the whole batch would settle now."""
        done = self.done
        if done is None:
            return Settled(len(self.offsets), sum(self.sizes))
        left = [size for offset, size in zip(self.offsets, self.sizes, strict=True) if offset not in done]
        return Settled(len(left), sum(left))


class _Block:
    """Consecutive batches, with keys to find one of them.

    Attributes:
        batches: Unsettled batches, in the order of their offsets.
        firsts: First offset of each batch.
        oldest_ms: Lower bound of the times at which they were sent.
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
        # For each block, a bound: its offsets are not below it, and those of the block before are.
        self._starts: list[int] = []
        self.messages = 0
        # All messages before this offset were sent or filtered out; it is the commit point when nothing is in flight.
        self.position = position

    def add(self, offsets: Sequence[int], sizes: Sequence[int], *, now_ms: int) -> None:
        """Add a batch that is being sent; its offsets are beyond everything sent before."""
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
        """Settle the rest of the batch that was sent with these ends; NOTHING if it is not in flight."""
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
        """Forget everything in flight and continue at another offset."""
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
        """Return the offset that may be committed for the group: every message before it is settled."""
        if not self._blocks:
            return self.position
        batch = self._blocks[0].batches[0]
        if batch.done is None:
            return batch.first
        return next(offset for offset in batch.offsets if offset not in batch.done)

    def find_overdue(self, *, sent_before_ms: int) -> Batch | None:
        """Return the first batch that was sent at this time or earlier, or None; blocks without one are skipped."""
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
        """Return block and index of the batch that may contain an offset; the index is negative if there is none."""
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
