"""Appends the messages of the timer to the store, and waits until they are durable.

A message that can't be stored now (the disk is full) is tried again until it can. A message that can never be stored is
dropped, counted and logged. A message whose topic was deleted is dropped and counted, also if the topic was made again.
A message that was appended before the last start is not appended again (repeats.py).

Concurrency: the loop's thread.
"""

import asyncio
from typing import Final

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.newmessage import NewMessage
from services.broker.registry.topics import TopicTable
from services.broker.stats import BrokerStats
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from services.broker.timer.counts import TopicCounts
from services.broker.timer.delivery import due_message, rolled_message
from services.broker.timer.repeats import Repeats

log = logger("broker.timer")

NEVER_ENQUEUED: Final = 2**63 - 1
"""The enqueue time of a message whose time had passed when it was read from the timer's queue."""
RETRY_S = 0.5
STOP_WAIT_S = 2.0
"""The time for which a stop waits for appended messages to be durable; the next start repeats the others."""

_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class Appender:
    """Appends due and rolled messages.

    Attributes:
        fired: Number of messages appended to their real topics.
        rolled: Number of messages put back into the timer's queue.
        dropped_topic_gone: Number of messages that ended with their topic.
        dropped_unstorable: Number of messages that can never be stored.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        waiters: DurabilityWaiters,
        topics: TopicTable,
        stats: BrokerStats,
        counts: TopicCounts,
        repeats: Repeats,
        clock: Clock,
    ) -> None:
        self._store = store
        self._waiters = waiters
        self._topics = topics
        self._stats = stats
        self._counts = counts
        self._repeats = repeats
        self._clock = clock
        self._end = 0
        self._retry_is_logged = False
        self.fired = 0
        self.rolled = 0
        self.dropped_topic_gone = 0
        self.dropped_unstorable = 0

    def drops(self, message: StoredMessage) -> bool:
        """Return whether a message is dropped, because its topic was deleted after the message was stored.

        The count of the topic does not change: it was forgotten together with the topic.
        """
        topic = message.properties[PropertyName.REAL_TOPIC].encode()
        is_dead = self._store.is_dead(topic, message.physical_offset, message.stored_at_ms)
        self.dropped_topic_gone += is_dead
        return is_dead

    async def fire(self, message: StoredMessage, *, enqueued_ms: int) -> None:
        """Append a due message to its real topic. `durable` waits until it is durable.

        Raises ColdReadsBusyError, StoreReadError: nothing was appended, because the index can't be read now.
        """
        topic = message.properties[PropertyName.REAL_TOPIC]
        config, now_ms = self._topics.find(topic), self._clock.now_ms()
        due = None if config is None else due_message(message, config, enqueued_ms=enqueued_ms, now_ms=now_ms)
        is_repeated = due is not None and await self._repeats.has(due)
        self._counts.add(topic, -1)
        if due is None:
            self.dropped_topic_gone += 1
        elif not is_repeated and await self._put(due, message):
            self.fired += 1
            flow = self._stats.put_flow(topic, now_ms)
            flow.messages += 1
            flow.calls += 1
            flow.size_bytes += message.size_bytes

    async def roll(self, message: StoredMessage, *, enqueued_ms: int) -> None:
        """Put a rolled message back into the timer's queue. `durable` waits until it is durable.

        Raises ColdReadsBusyError, StoreReadError: nothing was appended, because the index can't be read now.
        """
        topic = message.properties[PropertyName.REAL_TOPIC]
        rolled = rolled_message(message, enqueued_ms=enqueued_ms, now_ms=self._clock.now_ms())
        is_repeated = await self._repeats.has(rolled)
        self._counts.add(topic, -1)
        if self._topics.find(topic) is None:
            self.dropped_topic_gone += 1
        elif not is_repeated and await self._put(rolled, message):
            self.rolled += 1

    async def durable(self) -> None:
        """Wait until everything that was appended is durable."""
        while self._end > self._store.confirm_offset:
            completed = asyncio.get_running_loop().create_future()
            # Others may have appended since. The ends of waits ascend, so this one is the present end of the log.
            end = self._store.max_physical_offset
            self._waiters.wait(end, _resolve, completed)
            outcome = await completed
            if outcome is Outcome.DURABLE:
                return
            # The records are appended: to append them again would deliver them twice.
            log.warning("due messages are not durable yet", outcome=outcome.value, physical_end=end)
            await self._confirmed(end)

    async def settle(self, *, is_stopping: bool) -> bool:
        """Do as `durable`, but wait only for `STOP_WAIT_S` if the broker is stopping. Return whether all is durable."""
        if not is_stopping:
            await self.durable()
            return True
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await self.durable()
        except TimeoutError:
            return False
        return True

    async def _confirmed(self, end: int) -> None:
        while self._store.confirm_offset < end:  # noqa: ASYNC110 - nothing reports a flush that came too late.
            await asyncio.sleep(RETRY_S)

    async def _put(self, message: NewMessage, origin: StoredMessage) -> bool:
        """Append a message, and try again while the store takes none. Return False if it can never be stored."""
        while True:
            result = message.put_into(self._store)
            if result.status is PutStatus.OK:
                self._retry_is_logged = False
                self._end = result.next_offset
                self._waiters.appended()
                return True
            if result.status in _NEVER:
                self.dropped_unstorable += 1
                log.error(
                    "a message for a set time can't be stored, it is dropped",
                    topic=message.topic,
                    unique_key=message.properties.get(PropertyName.UNIQ_KEY),
                    reason=result.reason,
                )
                return False
            if not self._retry_is_logged:
                self._retry_is_logged = True
                log.warning("due messages wait until the store takes messages", reason=result.reason)
            await asyncio.sleep(RETRY_S)
            if self.drops(origin):
                return False


def _resolve(outcome: Outcome, completed: "asyncio.Future[Outcome]") -> None:
    if not completed.done():
        completed.set_result(outcome)
