"""Clocks: wall time for what is stored or shown, monotonic time for time-outs."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Both readings are milliseconds."""

    def now_ms(self) -> int:
        """Return wall time in ms since 1970 UTC; may jump when the machine's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time in ms that never goes back; only differences mean something."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall time in ms since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in ms."""
        return time.monotonic_ns() // 1_000_000
