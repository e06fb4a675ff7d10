"""Arrivals: waiting at brokers for messages, once for all readers that wait for the same.

A broker holds one pull for each queue, offset and filter, however many readers wait there. It finds at most one message,
which is thrown away: readers that wake then fetch what they want, a few at a time (fairgate.py), so that one message
that wakes thousands of readers does not bring thousands of copies into memory at once.
"""

import asyncio
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from gantry.runtime.tasks import TaskBag
from gantry.runtime.telemetry import logger
from services.gateway.errors import OVERLOADED, ProblemError

# A wait is made of several, so that one that nobody needs any more ends soon, and a gateway that stops waits for none.
WAIT_SLICE_MS: Final = 5_000
# A pull that is held costs the broker and us about 2 KiB; the channel to a broker has room for 10,000 requests.
HELD_PULLS_MAX: Final = 2_000

log = logger("gateway.arrivals")

_Place = tuple[MessageQueue, int, str]


class Arrivals:
    """Waits for messages.

    Concurrency: the event loop's thread; a task for each pull that is held.
    """

    def __init__(self, puller: PullConsumer) -> None:
        self._puller = puller
        self._waits: dict[_Place, _Wait] = {}
        self._tasks = TaskBag("arrivals", _failed)

    @property
    def held_pulls(self) -> int:
        """Return how many pulls brokers hold."""
        return len(self._waits)

    async def wait(self, queue: MessageQueue, offset: int, subscription: SubscriptionData, wait_ms: int) -> bool:
        """Wait until the queue has something new at or behind the offset; return False if the time was over before.

        Raises:
            ProblemError: 503: brokers hold as many pulls as they may.
            ClientError: The broker refuses, or can't be reached.
        """
        place = (queue, offset, subscription.sub_string)
        wait = self._waits.get(place)
        if wait is None:
            if len(self._waits) >= HELD_PULLS_MAX:
                raise ProblemError(
                    OVERLOADED, f"wait: readers wait at {HELD_PULLS_MAX} places already; read without `wait`"
                )
            wait = self._waits[place] = _Wait()
            self._tasks.spawn(self._hold(place, wait, subscription))
        wait.readers += 1
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await asyncio.shield(wait.arrived)
        except TimeoutError:
            return False
        finally:
            wait.readers -= 1
        return True

    async def _hold(self, place: _Place, wait: "_Wait", subscription: SubscriptionData) -> None:
        queue, offset, _ = place
        try:
            while wait.readers > 0:
                result = await self._puller.pull(
                    queue, offset, max_messages=1, expression=subscription, suspend_ms=WAIT_SLICE_MS
                )
                if result.status is not PullStatus.NO_NEW_MSG or result.next_offset > offset:
                    break
        except Exception as error:  # noqa: BLE001 # boundary: of a task; each reader is told.
            wait.arrived.set_exception(error)
            wait.arrived.exception()  # It counts as seen, whether or not a reader is left.
        else:
            wait.arrived.set_result(None)
        finally:
            del self._waits[place]

    async def close(self) -> None:
        """End all waits; nobody waits any more."""
        await self._tasks.cancel()


class _Wait:
    """Readers that wait for the same.

    Attributes:
        arrived: Done once something came.
        readers: How many wait.
    """

    __slots__ = ("arrived", "readers")

    def __init__(self) -> None:
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.readers = 0


def _failed(error: BaseException) -> None:
    log.error("a wait for messages failed by our own fault", exc_info=error)
