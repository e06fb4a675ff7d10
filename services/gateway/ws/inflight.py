"""The in-flight window of one queue: messages sent and not acknowledged, and the offset that may be committed.

A message is settled when the client has acknowledged it, or when it is no longer on the broker and so can't be sent
again. Messages are kept in the batches in which they were sent. A batch that is acknowledged as a whole costs one step,
however long it is; only a batch that is acknowledged in parts records which of its messages are settled. Pure.

Invariant: every batch in the window has at least one message that is not settled; batches do not overlap and are in the
order of their offsets. So the commit point is the first unsettled message of the first batch.

Cost: acks come in any order, ten thousand in one frame, and a window may hold 100,000 batches of one message. So
batches are kept in blocks: a removal moves at most the rest of one block.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# A removal moves half of a block's references on average, 1 KB. 100,000 batches make 400 blocks, and the search for
# overdue batches looks at each block.
BLOCK_BATCHES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class WindowRelease:
    """The number of messages, and their bytes, that have left the window."""

    messages: int
    bytes: int


NOTHING = WindowRelease(0, 0)
"""The result if the messages were not in flight."""


@dataclass(slots=True)
class Batch:
    """Messages that were sent in one frame.

    Attributes:
        offsets: Queue offsets, ascending; those of filtered messages are missing.
        sizes: Sizes in bytes, in the same order.
        sent_at_ms: Monotonic time of the last sending; the subscription sets it when it sends the batch again.
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

    def left(self) -> WindowRelease:
        """Return the messages, and their bytes, that are not settled."""
        done = self.done
        if done is None:
            return WindowRelease(len(self.offsets), sum(self.sizes))
        left = [size for offset, size in zip(self.offsets, self.sizes, strict=True) if offset not in done]
        return WindowRelease(len(left), sum(left))


class _Block:
    """Consecutive batches, with keys to find one of them.

    Attributes:
        batches: Unsettled batches, in the order of their offsets.
        firsts: First offset of each batch.
        oldest_ms: No batch was sent before this monotonic time. It is not exact, because batches are sent again.
    """

    __slots__ = ("batches", "firsts", "oldest_ms")

    def __init__(self, now_ms: int) -> None:
        self.batches: list[Batch] = []
        self.firsts: list[int] = []
        self.oldest_ms = now_ms


class Window:
    """The in-flight window of one queue of one subscription.

    Attributes:
        messages: Number of messages in flight: sent and not settled.
        position: All messages before this offset were sent or filtered out. It is the commit point while nothing is in
            flight. The subscription moves it over messages that a pull filtered out.
    """

    __slots__ = ("_blocks", "_starts", "messages", "position")

    def __init__(self, position: int) -> None:
        """Create an empty window; `position` is the offset of the first message that may be sent."""
        self._blocks: list[_Block] = []
        # For each block, the first offset it had when it was created. All offsets of the block before are lower.
        self._starts: list[int] = []
        self.messages = 0
        self.position = position

    def add(self, offsets: Sequence[int], sizes: Sequence[int], *, now_ms: int) -> None:
        """Add a batch that is being sent; `now_ms` is monotonic. Its offsets are at or above `position`."""
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

    def settle(self, offset: int) -> WindowRelease:
        """Settle one message; return it and its bytes, or NOTHING if it is not in flight."""
        block_index, at = self._find(offset)
        if at < 0:
            return NOTHING
        batch = self._blocks[block_index].batches[at]
        index = bisect_right(batch.offsets, offset) - 1
        if batch.offsets[index] != offset or (batch.done is not None and offset in batch.done):
            return NOTHING
        if batch.done is None:
            batch.done = set()
        batch.done.add(offset)
        self.messages -= 1
        if len(batch.done) == len(batch.offsets):
            self._remove(block_index, at)
        return WindowRelease(1, batch.sizes[index])

    def settle_batch(self, first: int, last: int) -> WindowRelease:
        """Settle the messages of a batch that are not settled yet; return them and their bytes.

        Args:
            first: Offset of the batch's first message, settled or not.
            last: Offset of its last message.

        Returns:
            NOTHING if no batch with these ends is in flight.
        """
        block_index, at = self._find(first)
        if at < 0:
            return NOTHING
        batch = self._blocks[block_index].batches[at]
        if batch.first != first or batch.last != last:
            return NOTHING
        settled = batch.left()
        self._remove(block_index, at)
        self.messages -= settled.messages
        return settled

    def clear(self, position: int) -> WindowRelease:
        """Remove everything in flight and continue at another offset; return the messages that were removed."""
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
        return WindowRelease(messages, size_bytes)

    def in_flight(self, first: int, last: int | None) -> Sequence[int]:
        """Return the offset of a message if it is in flight, or with `last`, those of a batch with these ends."""
        batch = self.batch_of(first)
        if batch is None:
            return ()
        if last is not None:
            return batch.unsettled() if batch.first == first and batch.last == last else ()
        is_settled = batch.done is not None and first in batch.done
        return (first,) if first in batch.offsets and not is_settled else ()

    def batch_of(self, offset: int) -> Batch | None:
        """Return the batch in flight that may contain an offset, or None."""
        block_index, at = self._find(offset)
        return None if at < 0 else self._blocks[block_index].batches[at]

    def first_batch(self) -> Batch | None:
        """Return the first batch in flight, or None."""
        return self._blocks[0].batches[0] if self._blocks else None

    def commit_point(self) -> int:
        """Return the offset that may be committed for the group: every message before it is settled."""
        if not self._blocks:
            return self.position
        batch = self._blocks[0].batches[0]
        if batch.done is None:
            return batch.first
        return next(offset for offset in batch.offsets if offset not in batch.done)

    def find_overdue(self, *, sent_until_ms: int) -> Batch | None:
        """Return the first batch, by offset, whose last sending was at this monotonic time or earlier, or None."""
        for block in self._blocks:
            if block.oldest_ms > sent_until_ms:
                continue
            for batch in block.batches:
                if batch.sent_at_ms <= sent_until_ms:
                    return batch
            block.oldest_ms = min(batch.sent_at_ms for batch in block.batches)
        return None

    def _all(self) -> Iterator[Batch]:
        return (batch for block in self._blocks for batch in block.batches)

    def _find(self, offset: int) -> tuple[int, int]:
        """Return the index of the block, and the index in it, of the batch that may contain an offset.

        The second index is negative if there is none.
        """
        block_index = bisect_right(self._starts, offset) - 1
        return block_index, (-1 if block_index < 0 else bisect_right(self._blocks[block_index].firsts, offset) - 1)

    def _remove(self, block_index: int, at: int) -> None:
        block = self._blocks[block_index]
        block.batches[at].is_settled = True
        del block.batches[at]
        del block.firsts[at]
        if not block.batches:
            del self._blocks[block_index]
            del self._starts[block_index]


def compact(offsets: Sequence[int]) -> Sequence[int]:
    """Return ascending offsets in little memory: nearly always they have no gap."""
    first, end = offsets[0], offsets[-1] + 1
    return range(first, end) if end - first == len(offsets) else array("q", offsets)
