"""ProcessQueue: a consumer's in-flight messages of one queue, and the offset that it may commit (pure).

Theory of operation. A consumer pulls forward from `next_offset`. Each pull that found messages adds their offsets to
the window and moves `next_offset` behind them. Messages that the filter removes leave gaps. A message leaves the window
when it is acknowledged, in any order. The commit point is the smallest offset in the window. If the window is empty,
the commit point is `next_offset`, because all messages before it are consumed or filtered out. So after a crash, the
broker delivers every unacknowledged message again and skips none.

    pulled:     40 41 42 .. 45 46 | next_offset 47
    acked:      40    42       46
    commit point: 41. If this consumer dies now, 41 and 45 come again as they must, and 42 and 46 come again too.

Concurrency: one thread.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

# RocketMQ's pullThresholdForQueue, pullThresholdSizeForQueue and consumeConcurrentlyMaxSpan.
MESSAGES_MAX = 1_000
BYTES_MAX = 100 * 1024 * 1024
SPAN_MAX = 2_000


class ProcessQueue:
    """The window of in-flight messages on one queue."""

    __slots__ = ("_in_flight", "_order", "in_flight_bytes", "next_offset")

    def __init__(self, next_offset: int) -> None:
        """Make an empty window whose first pull is at `next_offset`."""
        assert next_offset >= 0, next_offset
        self.next_offset = next_offset
        self.in_flight_bytes = 0
        # Offset → (bytes, time of delivery). `_order` holds the same offsets in ascending order. It also holds
        # acknowledged offsets until all before them are acknowledged.
        self._in_flight: dict[int, tuple[int, int]] = {}
        self._order: deque[int] = deque()

    @property
    def in_flight_count(self) -> int:
        """Number of messages that are delivered and not acknowledged."""
        return len(self._in_flight)

    @property
    def commit_point(self) -> int:
        """Offset below which no message has to be delivered again."""
        return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest message of the window to the newest."""
        return self._order[-1] - self._order[0] if self._order else 0

    def has_room(
        self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX, span_max: int = SPAN_MAX
    ) -> bool:
        """Return whether more messages may be pulled."""
        return (
            len(self._in_flight) < messages_max and self.in_flight_bytes < bytes_max and self.span <= span_max
        )  # The span includes acknowledged messages: all of them would come again.

    def add(self, messages: Iterable[tuple[int, int]], next_offset: int, *, now_ms: int) -> None:
        """Add the messages of a pull.

        Args:
            messages: (queue offset, bytes) of each delivered message, ascending, none below the previous `next_offset`.
            next_offset: The pull's next offset.
            now_ms: Monotonic time of delivery.
        """
        at = self.next_offset
        for offset, size in messages:
            assert at <= offset < next_offset, f"offset {offset} outside [{at}, {next_offset})"
            self._in_flight[offset] = (size, now_ms)
            self._order.append(offset)
            self.in_flight_bytes += size
            at = offset + 1
        assert next_offset >= at, f"next offset {next_offset} is behind {at}"
        self.next_offset = next_offset

    def ack(self, offset: int) -> bool:
        """Acknowledge a message. Return False if it was not in flight (acknowledged before, or never delivered)."""
        held = self._in_flight.pop(offset, None)
        if held is None:
            return False
        self.in_flight_bytes -= held[0]
        order, in_flight = self._order, self._in_flight
        while order and order[0] not in in_flight:
            order.popleft()
        return True

    def holds(self, offset: int) -> bool:
        """Return whether a message is in flight."""
        return offset in self._in_flight

    def overdue(self, *, now_ms: int, timeout_ms: int) -> Sequence[int]:
        """Return the unacknowledged offsets that were delivered `timeout_ms` ago or earlier, ascending."""
        return [offset for offset in self._pending() if now_ms - self._in_flight[offset][1] >= timeout_ms]

    def redelivered(self, offset: int, *, now_ms: int) -> None:
        """Record that an in-flight message was delivered again, so that its time-out starts anew."""
        held = self._in_flight.get(offset)
        if held is not None:
            self._in_flight[offset] = (held[0], now_ms)

    def restart_at(self, next_offset: int) -> None:
        """Clear the window and continue at another offset: the old one was out of range, or somebody reset the offset."""
        self._in_flight.clear()
        self._order.clear()
        self.in_flight_bytes = 0
        self.next_offset = next_offset

    def _pending(self) -> Iterator[int]:
        return (offset for offset in self._order if offset in self._in_flight)
