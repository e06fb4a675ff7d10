"""Brokers that do not answer pops: a pull asks them last, and one pull at a time finds out whether they answer again.

A pop to a broker that hangs ends with its time-out, seconds later. If every pull took its turn there, each would wait so
long although other brokers have messages. A broker that refuses the connection fails at once, and costs nothing.
"""

from collections.abc import Sequence
from typing import Final

from gantry.client.errors import ClientError
from gantry.runtime.clock import Clock

SLOW_MS: Final = 500
"""A failure is remembered if it took at least this time."""
PAUSE_MS: Final = 3_000
"""Time between two pops to a silent broker, while others answer."""


class Silence:
    """The silent brokers, as this gateway sees them.

    Concurrency: the event loop's thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Broker → its last failure, and the time of the next pop (monotonic ms).
        self._silent: dict[str, tuple[ClientError, int]] = {}

    def note_failure(self, broker: str, error: ClientError, began_ms: int) -> None:
        """Remember a broker that did not answer a pop that began at `began_ms`."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - began_ms >= SLOW_MS:
            self._silent[broker] = (error, now_ms + PAUSE_MS)

    def note_answer(self, broker: str) -> None:
        """Forget a broker that has answered."""
        self._silent.pop(broker, None)

    def last(self, brokers: Sequence[str]) -> list[str]:
        """Return the brokers of a pull in its order, with the silent ones at the end."""
        return sorted(brokers, key=self._silent.__contains__)

    def skipped(self, broker: str, brokers: Sequence[str]) -> ClientError | None:
        """Return the last failure of a broker that a pull does not ask now; None if the pull asks it.

        If all are silent, each pull asks all.
        """
        if broker not in self._silent or all(name in self._silent for name in brokers):
            return None
        error, next_ms = self._silent[broker]
        now_ms = self._clock.monotonic_ms()
        if now_ms < next_ms:
            return error
        self._silent[broker] = (error, now_ms + PAUSE_MS)
        return None
