"""Virtual time: an event loop that jumps over waits, and its clock.

Two hours of retries run in a millisecond, always in the same order. If everything waits and no timer is set, a real
loop would sleep for ever. This loop fails with a deadlock error instead.

Do not wait for blocking work or threads under this loop: it would jump instead of waiting.
"""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

# An arbitrary date, so that a date in a failure is known to come from the test.
EPOCH_MS = 1_700_000_000_000


class DeadlockError(AssertionError):
    """All tasks wait, and no timer or callback can wake any of them."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that adds the wait to the loop's time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise DeadlockError("every task waits and no timer is set")
        self.now_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is a number that only moves when nothing is ready to run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now_s


class VirtualClock:
    """The Clock of a virtual loop: both readings follow the loop's time; the wall time can be shifted."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, wall_ms: int = EPOCH_MS) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        """Return the virtual wall time."""
        return self._wall_ms + round(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        """Return the loop's time in ms."""
        return round(self._loop.time() * 1000)

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock, as an operator or NTP would; the monotonic time does not change."""
        self._wall_ms = wall_ms - self.monotonic_ms()


class FakeClock:
    """A Clock that a test moves by hand, for code without a loop."""

    def __init__(self, wall_ms: int = EPOCH_MS) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the wall time."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Return the ms advanced so far."""
        return self._monotonic_ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock, as an operator or NTP would; the monotonic time does not change."""
        self._wall_ms = wall_ms

    def advance(self, ms: int) -> None:
        """Let that many ms pass on both clocks."""
        self._wall_ms += ms
        self._monotonic_ms += ms


def loop_factories() -> Mapping[str, Any]:
    """Return the answer to the hook `pytest_asyncio_loop_factories` of tests/unit."""
    return {"virtual": VirtualTimeLoop}
