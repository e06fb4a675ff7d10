"""Decides which brokers to avoid for a while: those that answered late or not at all (pure).

The longer the last answer took, the longer the client avoids the broker; the table below has the durations. A failed
send counts as one that took ISOLATION_LATENCY_MS.

Source: RocketMQ 5.3 MQFaultStrategy and LatencyFaultToleranceImpl, without their probing thread.
"""

from collections.abc import Sequence

# (smallest latency, time for which the broker is then avoided), both in ms. The last step that applies counts.
LADDER: Sequence[tuple[int, int]] = (
    (50, 0),
    (100, 0),
    (550, 2_000),
    (1_800, 5_000),
    (3_000, 6_000),
    (5_000, 10_000),
    (15_000, 30_000),
)
ISOLATION_LATENCY_MS = 10_000


def fault_duration_ms(latency_ms: int, *, ladder: Sequence[tuple[int, int]] = LADDER) -> int:
    """Return the time for which to avoid a broker whose last answer took `latency_ms`."""
    for from_ms, duration_ms in reversed(ladder):
        if latency_ms >= from_ms:
            return duration_ms
    return 0


class FaultTable:
    """The moment from which each broker may be used again.

    Concurrency: one thread. Times are monotonic ms. The table holds one number for each broker name, so it needs no
    limit of its own.
    """

    __slots__ = ("_usable_from_ms",)

    def __init__(self) -> None:
        self._usable_from_ms: dict[str, int] = {}

    def record(self, broker_name: str, latency_ms: int, *, now_ms: int) -> None:
        """Record the latency of a broker's answer."""
        duration_ms = fault_duration_ms(latency_ms)
        if duration_ms:
            self._usable_from_ms[broker_name] = now_ms + duration_ms
        else:
            self._usable_from_ms.pop(broker_name, None)

    def isolate(self, broker_name: str, *, now_ms: int) -> None:
        """Record that a broker failed."""
        self.record(broker_name, ISOLATION_LATENCY_MS, now_ms=now_ms)

    def is_available(self, broker_name: str, *, now_ms: int) -> bool:
        """Return whether the broker need not be avoided."""
        usable_from_ms = self._usable_from_ms.get(broker_name)
        return usable_from_ms is None or now_ms >= usable_from_ms
