"""The pulls of a stream: one task for each assigned queue, which asks the session for pulls and returns the results.

A pull may wait at its broker for messages. All streams share one connection to each broker, whose number of requests in
flight is limited, and sends need it, too. So waiting pulls are counted, and a queue without a slot pulls again after a
while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gantry.client.errors import BrokerError, ClientError
from gantry.model.message import MessageQueue
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.errors import ProblemError, problem_of
from services.gateway.quotas import Quota
from services.gateway.turns import Turn
from services.gateway.ws.delivery import DELIVERED_BYTES_MAX
from services.gateway.ws.effects import Effect, Wake, WakeFeed
from services.gateway.ws.feed import Feed, PullOrder
from services.gateway.ws.ports import Pulled, Puller
from services.gateway.ws.session import Session
from services.gateway.ws.subscription import Subscription

log = logger("gateway.ws")

RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 5_000
# The pause of queues that may not wait at the broker.
LOOK_AGAIN_MS: Final = 1_000


class PullTasks:
    """The pulling tasks of one stream.

    Concurrency: one event loop; the tasks end with the stream's other tasks.
    """

    def __init__(
        self,
        session: Session,
        tasks: TaskSet,
        *,
        apply: Callable[[Iterable[Effect]], None],
        puller_of: Callable[[Subscription, str], Awaitable[Puller]],
        end_if_deleted: Callable[[Subscription], Awaitable[bool]],
        waiting: Quota,
        turn: Turn,
        key_id: str,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._apply = apply
        self._puller_of = puller_of
        self._end_if_deleted = end_if_deleted
        self._waiting = waiting
        self._turn = turn
        self._key_id = key_id
        self._clock = clock
        self._rng = rng
        self._running: dict[str, dict[MessageQueue, tuple[asyncio.Task[None], asyncio.Event]]] = {}

    def start(self, subscription: Subscription, feed: Feed) -> None:
        """Start pulling a queue."""
        wake = asyncio.Event()
        task = self._tasks.spawn(self._pull_all(subscription, feed, wake))
        self._running.setdefault(subscription.name, {})[feed.queue] = (task, wake)

    def stop(self, subscription: Subscription, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues."""
        running = self._running.get(subscription.name, {})
        for queue in queues:
            task, _ = running.pop(queue, (None, None))
            if task is not None:
                task.cancel()

    def stop_all(self, subscription: Subscription) -> None:
        """Stop all pulls of a subscription that has ended."""
        self.stop(subscription, list(self._running.get(subscription.name, ())))
        self._running.pop(subscription.name, None)

    def forget(self) -> None:
        """Drop the references to the ended tasks, whose exceptions refer to this object."""
        self._running.clear()

    def wake(self, effect: Wake | WakeFeed) -> None:
        """Wake tasks that wait, so that they ask for the next pull again."""
        running = self._running.get(effect.subscription.name, {})
        if isinstance(effect, Wake):
            for _, wake in running.values():
                wake.set()
        elif effect.feed.queue in running:
            running[effect.feed.queue][1].set()

    async def _pull_all(self, subscription: Subscription, feed: Feed, wake: asyncio.Event) -> None:
        session = self._session
        puller = await self._puller_of(subscription, feed.queue.topic)
        failures = 0
        while not feed.is_dropped:
            wake.clear()
            order, token = session.next_pull(subscription, feed), feed.token
            if order is None:
                # The task may have been woken for room that it does not need any more.
                self._apply(session.delivery.wake_waiting())
                await wake.wait()
                continue
            waits = order.waits and self._may_wait()
            try:
                found = await self._pull(puller, feed, order, waits=waits)
            except ClientError as error:
                if _is_group_missing(error) and await self._end_if_deleted(subscription):
                    return
                if failures == 0:
                    log.info("pull failed", session=session.name, queue=str(feed.queue), error=str(error))
                self._apply(session.pull_failed(subscription, feed, problem_of(error)))
                delay_ms = min(RETRY_FIRST_MS * 2 ** min(failures, 10), RETRY_MAX_MS)
                failures += 1
                await asyncio.sleep(self._rng.jitter_ms(delay_ms) / 1_000)
                continue
            failures = 0
            is_empty = not found.data
            if feed.token == token:  # The feed may have moved since, so that the result is of no use.
                self._deliver_pulled(subscription, feed, order, found)
            # Without this, the task would keep dropped records in memory for as long as it waits.
            del found
            if order.waits and not waits and is_empty:
                await asyncio.sleep(self._rng.jitter_ms(LOOK_AGAIN_MS) / 1_000)

    async def _pull(self, puller: Puller, feed: Feed, order: PullOrder, *, waits: bool) -> Pulled:
        has_failed = False
        try:
            found = await puller.pull(
                order.queue, order.offset, messages_max=order.messages_max, bytes_max=order.bytes_max, waits=waits
            )
            if found.data:
                # At most this many bytes of them are sent at once.
                await self._turn(min(len(found.data), DELIVERED_BYTES_MAX))
            return found
        except ClientError:
            has_failed = True
            raise
        finally:
            if waits:
                self._waiting.give(self._key_id)
            self._apply(self._session.delivery.ended(feed, has_failed=has_failed))

    def _may_wait(self) -> bool:
        """Reserve a slot for a waiting pull; return whether there was one."""
        try:
            self._waiting.take(self._key_id)
        except ProblemError:
            return False
        return True

    def _deliver_pulled(self, subscription: Subscription, feed: Feed, order: PullOrder, found: Pulled) -> None:
        if found.is_reset:
            return  # The feed has moved (connection.py).
        if found.is_moved and not order.resend:
            self._apply(self._session.moved(subscription, feed, found.next_offset))
            return
        effects = self._session.pulled(
            subscription,
            feed,
            order,
            found.data,
            found.next_offset,
            is_behind=found.is_behind,
            now_ms=self._clock.monotonic_ms(),
        )
        self._apply(effects)


def _is_group_missing(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
