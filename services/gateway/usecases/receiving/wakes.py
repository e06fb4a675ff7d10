"""Waits at brokers for messages of a group: one wait for all clients of this gateway that want the same.

A wait is RocketMQ's NOTIFICATION: the broker answers when the group has a message, and takes none. So a client that
leaves, or a gateway that dies, loses nothing while it waits. The clients that wake pop then, and those that find nothing
wait again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.consumer.pop import PopConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.group import SubscriptionData
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.errors import OVERLOADED, ProblemError

# A wait consists of slices, so that it ends soon once no client is left, or the gateway stops.
WAIT_SLICE_MS: Final = 5_000
# A held request costs the broker and the gateway about 2 KiB; the channel to a broker has room for 10,000 requests.
HELD_WAITS_MAX: Final = 2_000
# A broker that fails, or that does not hold the request, is asked again after this time.
PAUSE_MS: Final = 500

log = logger("gateway.wakes")


@dataclass(frozen=True, slots=True)
class Place:
    """The messages that a client waits for, at one broker."""

    broker: str
    group: str
    topic: str
    expression_type: str
    expression: str
    is_orderly: bool


class Wakes:
    """Waits for messages.

    Concurrency: the event loop's thread; one task for each broker, group, topic and expression.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._waits: dict[Place, _Wait] = {}
        self._tasks = TaskSet("wakes", _failed)

    @property
    def held(self) -> int:
        """Return the number of requests that brokers hold."""
        return len(self._waits)

    async def wait(self, places: Sequence[Place], subscription: SubscriptionData, wait_ms: int) -> str | None:
        """Wait until one of the brokers has a message; return its name, or None if the time is over first.

        Raises:
            ProblemError: 503: brokers hold HELD_WAITS_MAX requests already.
        """
        joined = [self._join(place, subscription) for place in places]
        for wait in joined:
            wait.clients += 1
        try:
            arrivals = [wait.arrived for wait in joined]
            done, _ = await asyncio.wait(arrivals, timeout=wait_ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in joined:
                wait.clients -= 1
        return next((place.broker for place, arrival in zip(places, arrivals, strict=True) if arrival in done), None)

    def _join(self, place: Place, subscription: SubscriptionData) -> "_Wait":
        wait = self._waits.get(place)
        if wait is None:
            if len(self._waits) >= HELD_WAITS_MAX:
                reason = f"{HELD_WAITS_MAX} requests wait at brokers already, which is the limit"
                raise ProblemError(OVERLOADED, f"wait: {reason}; pull without `wait`", field="/wait")
            wait = self._waits[place] = _Wait()
            self._tasks.spawn(self._hold(place, wait, subscription))
        return wait

    async def _hold(self, place: Place, wait: "_Wait", subscription: SubscriptionData) -> None:
        popper = PopConsumer(self._engine, place.group)
        try:
            while wait.clients > 0 and not await self._ask(popper, place, subscription):
                pass
        finally:
            del self._waits[place]
            wait.arrived.set_result(None)

    async def _ask(self, popper: PopConsumer, place: Place, subscription: SubscriptionData) -> bool:
        """Return whether the broker has a message now, or within a slice."""
        began_ms = self._engine.clock.monotonic_ms()
        try:
            has_message = await popper.wait_for_message(
                place.topic, place.broker, poll_ms=WAIT_SLICE_MS, expression=subscription, order=place.is_orderly
            )
        except ClientError as error:
            # The clients see the failure when they pop at the end of their wait, if the broker is still away then.
            log.debug("a broker does not wait for messages", broker=place.broker, error=str(error))
            has_message = None
        if has_message:
            return True
        if has_message is None or self._engine.clock.monotonic_ms() - began_ms < PAUSE_MS:
            await asyncio.sleep(PAUSE_MS / 1_000)
        return False

    async def close(self) -> None:
        """Cancel all waits; the caller makes sure that no client waits."""
        await self._tasks.cancel()


class _Wait:
    """The clients that wait for the same messages.

    Attributes:
        arrived: Future that is done once there is a message, or nobody waits any more.
        clients: Number of waiting clients.
    """

    __slots__ = ("arrived", "clients")

    def __init__(self) -> None:
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clients = 0


def _failed(error: BaseException) -> None:
    log.error("a wait for messages failed with an internal error", exc_info=error)
