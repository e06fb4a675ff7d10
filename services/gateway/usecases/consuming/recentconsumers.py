"""The groups that have just consumed through this gateway.

A consumer may come, consume thousands of messages and leave between two samples. Then no broker knows it any more, and
Postgres does not know it yet.
"""

from collections import OrderedDict
from typing import Final

from gantry.runtime.clock import Clock

RECENT_MS: Final = 60_000
PAIRS_MAX: Final = 10_000
"""Limit of pairs of group and topic; the oldest are dropped."""


class RecentConsumers:
    """Notes when groups consume.

    Concurrency: the loop's thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: OrderedDict[tuple[str, str], int] = OrderedDict()

    def note(self, group: str, topic: str) -> None:
        """Note that a group consumes from a topic just now."""
        self._noted[group, topic] = self._clock.monotonic_ms()
        self._noted.move_to_end((group, topic))
        if len(self._noted) > PAIRS_MAX:
            self._noted.popitem(last=False)

    def has_consumed(self, group: str, topic: str) -> bool:
        """Return whether a group has consumed from a topic within RECENT_MS."""
        at_ms = self._noted.get((group, topic))
        return at_ms is not None and self._clock.monotonic_ms() - at_ms <= RECENT_MS
