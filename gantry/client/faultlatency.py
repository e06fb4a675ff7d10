"""Which broker to avoid: one that answered late or not at all is left alone for a while (pure).

The slower the last answer, the longer the broker is avoided; the ladder below says how long. A send that failed
counts as one that took ISOLATION_LATENCY_MS.

Source: RocketMQ 5.3 MQFaultStrategy and LatencyFaultToleranceImpl, without their probing thread.
"""

from collections.abc import Sequence

# (latency from which it counts, how long the broker is then avoided), both in ms; the last step that fits is taken.
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
    """Return for how long to avoid a broker whose last answer took `latency_ms`."""
    for from_ms, duration_ms in reversed(ladder):
        if latency_ms >= from_ms:
            return duration_ms
    return 0


class FaultTable:
    """When each broker may be used again.

    Concurrency: one thread. Times are monotonic ms. Holds one number a broker name, so it needs no limit of its own.
    """

    __slots__ = ("_usable_from_ms",)

    def __init__(self) -> None:
        self._usable_from_ms: dict[str, int] = {}

    def record(self, broker_name: str, latency_ms: int, *, now_ms: int) -> None:
        """Note how long a broker's answer took."""
        duration_ms = fault_duration_ms(latency_ms)
        if duration_ms:
            self._usable_from_ms[broker_name] = now_ms + duration_ms
        else:
            self._usable_from_ms.pop(broker_name, None)

    def isolate(self, broker_name: str, *, now_ms: int) -> None:
        """Note that a broker failed."""
        self.record(broker_name, ISOLATION_LATENCY_MS, now_ms=now_ms)

    def is_available(self, broker_name: str, *, now_ms: int) -> bool:
        """Say whether the broker need not be avoided."""
        usable_from_ms = self._usable_from_ms.get(broker_name)
        return usable_from_ms is None or now_ms >= usable_from_ms
