"""Brokers that do not answer pops: no pull asks them until they answer again, unless no other broker is left.

A pop to a broker that hangs ends with its time-out, seconds later. If every pull took its turn there, each would wait so
long although other brokers have messages. A broker that refuses the connection fails at once, and costs nothing.

A request that takes no messages finds out whether a silent broker answers again; no client waits for it.
"""

from collections.abc import Sequence
from typing import Final

from gantry.client.consumer.pop import PopConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerUnavailableError, ClientError, NoAnswerError
from gantry.model.group import SubscriptionData
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger

SLOW_MS: Final = 500
"""A failure is remembered if it took at least this time."""
PAUSE_MS: Final = 1_000
"""Time after a failure until the broker is asked again."""

log = logger("gateway.pulling")


class Silence:
    """The silent brokers, as this gateway sees them.

    Concurrency: the event loop's thread.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._clock = engine.clock
        # Broker → its last failure, and the time of the next request to it (monotonic ms); None while one is under way.
        self._silent: dict[str, tuple[ClientError, int | None]] = {}
        self._tasks = TaskSet("silence", _failed)

    def note_failure(self, broker: str, error: ClientError, began_ms: int) -> None:
        """Remember a broker that did not answer a request that began at `began_ms`."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - began_ms >= SLOW_MS:
            self._silent[broker] = (error, now_ms + PAUSE_MS)

    def note_answer(self, broker: str) -> None:
        """Forget a broker that has answered."""
        self._silent.pop(broker, None)

    def last(self, brokers: Sequence[str]) -> list[str]:
        """Return the brokers of a pull in its order, with the silent ones at the end."""
        return sorted(brokers, key=self._silent.__contains__)

    def skipped(
        self, broker: str, brokers: Sequence[str], group: str, subscription: SubscriptionData
    ) -> ClientError | None:
        """Return the last failure of a broker that a pull does not ask; None if the pull asks it.

        If all its brokers are silent, a pull asks all.
        """
        if broker not in self._silent or all(name in self._silent for name in brokers):
            return None
        error, next_ms = self._silent[broker]
        if next_ms is not None and self._clock.monotonic_ms() >= next_ms:
            self._silent[broker] = (error, None)
            self._tasks.spawn(self._ask(broker, error, group, subscription))
        return error

    async def close(self) -> None:
        """Cancel the requests that are under way."""
        await self._tasks.cancel()

    async def _ask(self, broker: str, error: ClientError, group: str, subscription: SubscriptionData) -> None:
        """Find out whether a silent broker answers."""
        popper = PopConsumer(self._engine, group)
        try:
            await popper.wait_for_message(subscription.topic, broker, poll_ms=0, expression=subscription)
        except (NoAnswerError, BrokerUnavailableError):
            self._silent[broker] = (error, self._clock.monotonic_ms() + PAUSE_MS)
            return
        except ClientError:
            pass  # It has answered.
        self.note_answer(broker)


def _failed(error: BaseException) -> None:
    log.error("a request to a silent broker failed with an internal error", exc_info=error)
