"""ProcessQueue: what a consumer holds of one queue, and how far its offset may be committed (pure).

Theory of operation. A consumer pulls forward from `next_offset`. Each pull that found something adds its messages'
offsets to the window and moves `next_offset` behind them (filtered messages leave gaps). A message leaves the window
when it is acked, in any order. The commit point is the smallest offset still in the window; when the window is empty
it is `next_offset`, since all before it is consumed or was not wanted. So a crash delivers again what was not acked,
and never skips it.

    pulled:     40 41 42 .. 45 46 | next_offset 47
    acked:      40    42       46
    commit point: 41 — 42 and 46 come again if this consumer dies now, 41 must.

Concurrency: one thread.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

# RocketMQ's pullThresholdForQueue, pullThresholdSizeForQueue and consumeConcurrentlyMaxSpan.
MESSAGES_MAX = 1_000
BYTES_MAX = 100 * 1024 * 1024
SPAN_MAX = 2_000


class ProcessQueue:
    """The in-flight window on one queue."""

    __slots__ = ("_in_flight", "_order", "in_flight_bytes", "next_offset")

    def __init__(self, next_offset: int) -> None:
        """Make an empty window that pulls first at `next_offset`."""
        assert next_offset >= 0, next_offset
        self.next_offset = next_offset
        self.in_flight_bytes = 0
        # Offset → (bytes, when delivered). `_order` holds the same offsets ascending, and acked ones until they lead.
        self._in_flight: dict[int, tuple[int, int]] = {}
        self._order: deque[int] = deque()

    @property
    def in_flight_count(self) -> int:
        """Return how many messages are delivered and not acked."""
        return len(self._in_flight)

    @property
    def commit_point(self) -> int:
        """Return the offset below which nothing has to be delivered again."""
        return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """Return how far the newest message in flight is ahead of the oldest."""
        return self._order[-1] - self._order[0] if self._order else 0

    def has_room(
        self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX, span_max: int = SPAN_MAX
    ) -> bool:
        """Say whether more may be pulled."""
        return (
            len(self._in_flight) < messages_max and self.in_flight_bytes < bytes_max and self.span <= span_max
        )  # The span counts acked messages behind an unacked one, too: they would all come again.

    def add(self, messages: Iterable[tuple[int, int]], next_offset: int, *, now_ms: int) -> None:
        """Take in what a pull found.

        Args:
            messages: (queue offset, bytes) of each message that is delivered, ascending, none below `next_offset`
                of before.
            next_offset: Where the pull said to go on.
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
        """Note that a message is consumed; False if it was not in flight (acked before, or never delivered)."""
        held = self._in_flight.pop(offset, None)
        if held is None:
            return False
        self.in_flight_bytes -= held[0]
        order, in_flight = self._order, self._in_flight
        while order and order[0] not in in_flight:
            order.popleft()
        return True

    def holds(self, offset: int) -> bool:
        """Say whether a message is in flight."""
        return offset in self._in_flight

    def overdue(self, *, now_ms: int, timeout_ms: int) -> Sequence[int]:
        """Return the offsets that were delivered `timeout_ms` ago or earlier and are not acked, ascending."""
        return [offset for offset in self._pending() if now_ms - self._in_flight[offset][1] >= timeout_ms]

    def redelivered(self, offset: int, *, now_ms: int) -> None:
        """Note that a message in flight was delivered once more, so that its time starts anew."""
        held = self._in_flight.get(offset)
        if held is not None:
            self._in_flight[offset] = (held[0], now_ms)

    def restart_at(self, next_offset: int) -> None:
        """Forget the window and pull elsewhere: the offset was out of range, or somebody reset it."""
        self._in_flight.clear()
        self._order.clear()
        self.in_flight_bytes = 0
        self.next_offset = next_offset

    def _pending(self) -> Iterator[int]:
        return (offset for offset in self._order if offset in self._in_flight)
