"""Arrivals: waits at brokers for messages, one wait for all readers of the same queue, offset and filter.

A broker holds one pull for each queue, offset and filter, however many readers wait there. The pull returns at most one
message, which is discarded. The readers that wake then fetch their messages, a few readers at a time (fairgate.py), so
that one message that wakes thousands of readers does not bring thousands of copies into memory at once.
"""

import asyncio
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.errors import OVERLOADED, ProblemError

# A wait consists of slices, so that it ends soon once no reader is left, or the gateway stops.
WAIT_SLICE_MS: Final = 5_000
# A held pull costs the broker and the gateway about 2 KiB; the channel to a broker has room for 10,000 requests.
HELD_PULLS_MAX: Final = 2_000

log = logger("gateway.arrivals")

_Place = tuple[MessageQueue, int, str, str]


class Arrivals:
    """Waits for messages.

    Concurrency: the event loop's thread; one task for each held pull.
    """

    def __init__(self, puller: PullConsumer) -> None:
        self._puller = puller
        self._waits: dict[_Place, _Wait] = {}
        self._tasks = TaskSet("arrivals", _failed)

    @property
    def held_pulls(self) -> int:
        """Return the number of pulls that brokers hold."""
        return len(self._waits)

    async def wait(self, queue: MessageQueue, offset: int, subscription: SubscriptionData, wait_ms: int) -> bool:
        """Wait for new messages at the offset or beyond it; return False if the time is over first.

        Raises:
            ProblemError: 503: brokers hold HELD_PULLS_MAX pulls already.
            ClientError: The broker rejects the pull, or cannot be reached.
        """
        place = (queue, offset, subscription.expression_type, subscription.sub_string)
        wait = self._waits.get(place)
        if wait is None:
            if len(self._waits) >= HELD_PULLS_MAX:
                raise ProblemError(
                    OVERLOADED,
                    f"wait: {HELD_PULLS_MAX} pulls wait at brokers already, which is the limit; read without `wait`",
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
        queue, offset, *_ = place
        try:
            while wait.readers > 0:
                result = await self._puller.pull(
                    queue, offset, max_messages=1, expression=subscription, suspend_ms=WAIT_SLICE_MS
                )
                if result.status is not PullStatus.NO_NEW_MSG or result.next_offset > offset:
                    break
        except Exception as error:  # noqa: BLE001 # boundary: of a task; each reader gets it.
            wait.arrived.set_exception(error)
            wait.arrived.exception()  # This marks the exception as retrieved, even if no reader is left.
        else:
            wait.arrived.set_result(None)
        finally:
            del self._waits[place]

    async def close(self) -> None:
        """Cancel all waits; the caller makes sure that no reader waits."""
        await self._tasks.cancel()


class _Wait:
    """The readers that wait for the same messages.

    Attributes:
        arrived: Future that is done once a message arrived.
        readers: Number of waiting readers.
    """

    __slots__ = ("arrived", "readers")

    def __init__(self) -> None:
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.readers = 0


def _failed(error: BaseException) -> None:
    log.error("a wait for messages failed with an internal error", exc_info=error)
