"""The queues of a search as lanes that merge by the time of storing. Pure.

A lane holds the messages that were found in one queue and are not taken yet. The lane whose first message is the oldest
gives the next message of the page. If the lanes hold too many bytes, a lane drops its messages; it remembers the time of
the first one and is read again when its turn comes. So a search over hundreds of queues with large messages has a limit.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from services.gateway.usecases.reading.messages import ReadMessage

OFFSET_DIGITS_MAX: Final = 19

Positions = Mapping[tuple[str, int], int]
"""Broker and queue id → the first offset that no page has shown."""


class Lane:
    """The messages of one queue that a search has found and that are not taken yet.

    Attributes:
        queue: The queue.
        next_offset: The first offset that is not read yet.
        end: The offset after the last one of the search.
        head_ms: The store time of the first message that is not taken; None if it is unknown or there is none.
    """

    __slots__ = ("_found", "end", "head_ms", "next_offset", "queue", "size_bytes")

    def __init__(self, queue: MessageQueue, next_offset: int, end: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.end = end
        self.head_ms: int | None = None
        self.size_bytes = 0
        self._found: deque[ReadMessage] = deque()

    @property
    def is_finished(self) -> bool:
        """Whether the lane has no message and its queue has been read to the end."""
        return self.head_ms is None and self.next_offset >= self.end

    def needs_read(self) -> bool:
        """Return whether the next message, or whether there is one, is unknown until the queue is read."""
        return not self._found and self.next_offset < self.end

    @property
    def position(self) -> int:
        """The first offset that is not taken."""
        return self._found[0].record.queue_offset if self._found else self.next_offset

    def add(self, messages: Iterable[ReadMessage], next_offset: int) -> None:
        """Add the messages of a read, in the order of the queue. The read ended before `next_offset`."""
        assert not self._found, "a lane is read only when it is empty"
        self._found.extend(messages)
        self.next_offset = next_offset
        self.size_bytes = sum(_size_of(message) for message in self._found)
        self.head_ms = self._found[0].record.stored_at_ms if self._found else None

    def take(self) -> ReadMessage:
        """Take the first message."""
        message = self._found.popleft()
        self.size_bytes -= _size_of(message)
        self.head_ms = self._found[0].record.stored_at_ms if self._found else None
        return message

    def drop(self) -> None:
        """Drop the messages. The lane keeps the time of the first one and is read again from it."""
        self.next_offset = self.position
        self._found.clear()
        self.size_bytes = 0


class LaneHeap:
    """The lanes that have a message, the one with the oldest message first."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._heap = [(*_rank(lane), lane) for lane in lanes if lane.head_ms is not None]
        heapify(self._heap)

    def first(self) -> Lane | None:
        """Return the lane with the oldest message; None if no lane has one."""
        return self._heap[0][-1] if self._heap else None

    def update_first(self) -> None:
        """Put the first lane in its new place, after its messages have changed. A lane without a message leaves."""
        lane = self._heap[0][-1]
        if lane.head_ms is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (*_rank(lane), lane))


def encode_positions(positions: Positions) -> str:
    """Return positions as text: `broker:offset,offset;broker:…`. An offset stands in the place of its queue id."""
    brokers: dict[str, dict[int, int]] = {}
    for (broker, queue_id), offset in positions.items():
        brokers.setdefault(broker, {})[queue_id] = offset
    return ";".join(
        f"{broker}:" + ",".join(str(offsets.get(queue_id, "")) for queue_id in range(max(offsets) + 1))
        for broker, offsets in sorted(brokers.items())
    )


def decode_positions(text: str) -> Positions:
    """Return the positions in a text. Raises InvalidValueError if it is not one of `encode_positions`."""
    positions: dict[tuple[str, int], int] = {}
    for part in text.split(";"):
        broker, _, offsets = part.rpartition(":")
        for queue_id, digits in enumerate(offsets.split(",")):
            if digits.isdecimal() and digits.isascii() and len(digits) <= OFFSET_DIGITS_MAX:
                positions[broker, queue_id] = int(digits)
    if not positions or encode_positions(positions) != text:
        raise InvalidValueError("cursor", text, "is not a cursor of this list")
    return positions


def _rank(lane: Lane) -> tuple[int, str, int]:
    assert lane.head_ms is not None, "only a lane with a message has a rank"
    return lane.head_ms, lane.queue.broker_name, lane.queue.queue_id


def _size_of(message: ReadMessage) -> int:
    return max(message.record.size_bytes, len(message.body))
