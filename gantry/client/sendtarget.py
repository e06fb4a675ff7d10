"""The target of a send: the queue and its broker's address. A newer route is loaded if the known one gives no target.

A send may have a fixed queue: the caller, a selector or an ordering key has chosen it. Such a send keeps its queue, and
fails if the queue's broker is away. Any other send takes the next queue that can be written.
"""

import asyncio
from typing import NamedTuple

from gantry.client.engine import ROUTE_AGE_MIN_MS, ClientEngine
from gantry.client.errors import (
    BrokerError,
    BrokerUnavailableError,
    ClientError,
    InvalidArgumentError,
    NoAnswerError,
    NotWritableError,
    RequestTimeoutError,
)
from gantry.client.faultlatency import FaultTable
from gantry.client.queueselector import LeastLatency, QueueSelector, RoundRobin
from gantry.client.routecache import PublishInfo
from gantry.model.message import MessageQueue


class QueueChoice(NamedTuple):
    """The fixed choice of a message's queue. At most one field is set; if none is, any queue will do."""

    queue: MessageQueue | None = None
    ordering_key: str | None = None
    selector: QueueSelector | None = None

    @property
    def is_free(self) -> bool:
        """Whether any queue will do, and another one after a failure."""
        return self.queue is None and self.ordering_key is None and self.selector is None

    def check(self, topic: str) -> None:
        """Raise InvalidArgumentError for a choice that is not valid."""
        if self.is_free:
            return
        if sum(chosen is not None for chosen in self) > 1:
            raise InvalidArgumentError("queue", self.queue, "excludes ordering_key and selector, and these each other")
        if self.queue is not None and self.queue.topic != topic:
            raise InvalidArgumentError("queue", self.queue, f"is not of topic {topic!r}")


ANY_QUEUE = QueueChoice()


class Target(NamedTuple):
    """The target of one attempt."""

    queue: MessageQueue
    address: str
    info: PublishInfo


class SendTargets:
    """Finds targets for one producer.

    Concurrency: the event loop's thread.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._faults = FaultTable() if engine.settings.latency_fault_enable else None
        self._selector: RoundRobin | LeastLatency = RoundRobin(engine.rng.below)
        if self._faults is not None:
            self._selector = LeastLatency(engine.rng.below, self._is_available)

    def find_known(self, info: PublishInfo, choice: QueueChoice, *, last_broker: str | None) -> Target | None:
        """Return the next target if the known route gives one. None means that the caller has to call `find`."""
        queue = self._choose(info, choice, last_broker)
        address = None if queue is None else info.masters.get(queue.broker_name)
        return None if queue is None or address is None else Target(queue, address, info)

    async def find(self, topic: str, info: PublishInfo, choice: QueueChoice, *, last_broker: str | None) -> Target:
        """Return the next target.

        Args:
            topic: The topic.
            info: The known publish info of the topic.
            choice: The fixed choice of the queue, if any.
            last_broker: The broker of the last attempt, which failed.

        Raises:
            NotWritableError: No queue can be written.
            BrokerUnavailableError: The broker of the chosen queue has no master now.
            InvalidArgumentError: The broker of the chosen queue never held the topic.
            NoRouteError: A newer route was requested, and there is none.
        """
        queue = self._choose(info, choice, last_broker)
        address = None if queue is None else info.masters.get(queue.broker_name)
        if address is None and self._route_age_ms(topic) >= ROUTE_AGE_MIN_MS:
            info = await self.refreshed(topic, info, timeout_ms=self._engine.settings.namesrv_timeout_ms)
            queue = self._choose(info, choice, last_broker)
            address = None if queue is None else info.masters.get(queue.broker_name)
        if queue is None:
            raise NotWritableError(topic, is_transient=not info.is_read_only)
        if address is None:
            if all(queue.broker_name != known.broker_name for known in info.ordering_queues):
                raise InvalidArgumentError("queue", queue.broker_name, f"is no broker of topic {topic!r}")
            raise BrokerUnavailableError(queue.broker_name)
        return Target(queue, address, info)

    async def publish_info(self, topic: str, *, timeout_ms: int) -> PublishInfo:
        """Return a topic's publish info; ask a name server if it is not known.

        Raises:
            InvalidArgumentError, NoRouteError, BrokerError, NoAnswerError: As ClientEngine.route.
        """
        info = self._engine.cached_publish_info(topic)
        if info is not None:
            return info
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._engine.publish_info(topic)
        except TimeoutError:
            name_server = self._engine.name_servers.current
            raise RequestTimeoutError(
                name_server, f"no route to topic {topic} in {timeout_ms} ms", sent=False
            ) from None

    async def refreshed(self, topic: str, info: PublishInfo, *, timeout_ms: int) -> PublishInfo:
        """Return a newer publish info, or the known one if no name server answers.

        Raises:
            NoRouteError: There is no route any more.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._engine.publish_info(topic, refresh=True)
        except (NoAnswerError, BrokerError, TimeoutError):
            return info

    def refresh_soon(self, topic: str) -> None:
        """Start to load a newer route in the background, for later sends."""
        if self._route_age_ms(topic) >= ROUTE_AGE_MIN_MS:
            self._engine.tasks.spawn(self._refresh(topic))

    def answered(self, broker_name: str, *, started_ms: int) -> None:
        """Record an answer that stored a message, with the time that it took."""
        if self._faults is not None:
            now_ms = self._clock.monotonic_ms()
            self._faults.record(broker_name, now_ms - started_ms, now_ms=now_ms)

    def failed(self, broker_name: str) -> None:
        """Record a failure of a broker."""
        if self._faults is not None:
            self._faults.isolate(broker_name, now_ms=self._clock.monotonic_ms())

    def _choose(self, info: PublishInfo, choice: QueueChoice, last_broker: str | None) -> MessageQueue | None:
        if choice.queue is not None:
            return choice.queue
        if choice.ordering_key is not None:
            return info.queue_for_key(choice.ordering_key) if info.ordering_queues else None
        if not info.queues:
            return None
        if choice.selector is not None:
            return choice.selector(info.queues)
        return self._selector.select(info.queues, last_broker=last_broker)

    def _route_age_ms(self, topic: str) -> int:
        entry = self._engine.routes.cache.find(topic)
        return ROUTE_AGE_MIN_MS if entry is None else self._clock.monotonic_ms() - entry.refreshed_at_ms

    async def _refresh(self, topic: str) -> None:
        try:
            await self._engine.publish_info(topic, refresh=True)
        except ClientError:
            return  # The next send sees the failure itself.

    def _is_available(self, broker_name: str) -> bool:
        assert self._faults is not None
        return self._faults.is_available(broker_name, now_ms=self._clock.monotonic_ms())
