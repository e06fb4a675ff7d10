"""Builds the feature "duplicate windows": it reads the windows after the start, and its timers and figures.

The sends themselves ask the windows (send.py).
"""

from collections.abc import Mapping
from typing import Final

from gantry.remoting.aio.channel import Handler
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReadsBusyError
from services.broker.duplicates.loading import WindowLoader
from services.broker.metrics import Figure
from services.broker.store.errors import StoreReadError

INTERVAL_MS: Final = 100
RETRY_MS: Final = 5_000

log = logger("broker.duplicates")


class DuplicatesFeature:
    """Duplicate windows. The feature answers no requests of its own."""

    def __init__(self, broker: Broker) -> None:
        self._windows = windows = broker.windows
        self._loader = WindowLoader(windows, broker.store, broker.core.cold, broker.clock)
        self._clock = broker.clock
        self._is_loaded = False
        self._rests_until_ms = 0
        broker.on_topic_changed.append(windows.topic_changed)
        broker.timers.append(("duplicates", INTERVAL_MS, self.run))
        broker.figures += (
            Figure("gantry_broker_duplicate_windows", "Topics with a duplicate window.", lambda: len(windows)),
            Figure("gantry_broker_duplicate_window_keys", "Keys that the windows know.", windows.count_keys),
            Figure(
                "gantry_broker_duplicate_window_replayed", "Messages not stored again.", windows.count_replayed, True
            ),
            Figure(
                "gantry_broker_duplicate_window_forgotten",
                "Keys forgotten before their window ended, because newer ones needed the room.",
                windows.count_forgotten,
                True,
            ),
            Figure(
                "gantry_broker_duplicate_windows_shortened",
                "Topics whose window is shorter now than it is set, because of the limit of keys.",
                windows.count_shortened,
            ),
        )

    def handlers(self) -> Mapping[int, Handler]:
        """Return no handlers."""
        return {}

    async def run(self) -> None:
        """Read the windows if that is not done, and remove ended keys."""
        if not self._is_loaded and self._clock.monotonic_ms() >= self._rests_until_ms:
            try:
                await self._loader.run()
                self._is_loaded = True
            except (ColdReadsBusyError, StoreReadError, OSError) as error:
                self._rests_until_ms = self._clock.monotonic_ms() + RETRY_MS
                log.warning("duplicate windows can't be read; their topics take no messages yet", reason=str(error))
        self._windows.tick()


def build(broker: Broker) -> DuplicatesFeature:
    """Build the feature from the broker's parts."""
    return DuplicatesFeature(broker)
