"""Clocks: wall time for stored and displayed times, monotonic time for time-outs."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Both times are in milliseconds."""

    def now_ms(self) -> int:
        """Return wall time in ms since 1970 UTC. It may jump when somebody sets the clock of the machine."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time in ms that never goes back. Only differences between two of these times are meaningful."""
        ...


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall time in ms since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in ms."""
        return time.monotonic_ns() // 1_000_000
