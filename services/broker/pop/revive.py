"""Revive: messages whose invisible time is over are stored again, in the pop retry topic of their group.

The copy has one more reconsume time. After the group's maximum, it is a dead letter instead. When the copies are durable,
the broker appends an acknowledgement of the messages to the revive topic. After a crash before that, a start finds the
copies (revived.py), and the messages without one are revived.

Concurrency: one task, in the loop's thread.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gantry.model import names
from gantry.model.address import pack_host
from gantry.model.group import SubscriptionGroup
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.model.topic import Perm, TopicConfig
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.newmessage import NewMessage
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.revivelog import ReviveLog
from services.broker.processors.reading import read_cold
from services.broker.refusal import RefusalError
from services.broker.registry.groups import GroupTable
from services.broker.registry.topics import TopicTable
from services.broker.retry.topics import RetryTopics, dlq_topic_of
from services.broker.settings import LiveSettings
from services.broker.stats import DLQ_PUT_NUMS, BrokerStats
from services.broker.store.files.pages import NotInMemoryError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from services.broker.turns import Turns

log = logger("broker.pop")

REVIVE_INTERVAL_MS: Final = 100
RETRY_MS: Final = 1000
"""Time after which a revive that did not succeed is tried again."""
_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class Reviver:
    """Revives messages.

    Attributes:
        revived: Number of messages that were given back.
        dead: Number of messages that became dead letters.
        lost: Number of messages that retention has removed, or that can't be stored again.
    """

    def __init__(
        self,
        *,
        points: CheckPointTable,
        revive_log: ReviveLog,
        store: MessageStore,
        waiters: DurabilityWaiters,
        topics: TopicTable,
        retry_topics: RetryTopics,
        groups: GroupTable,
        cold: ColdReader,
        turns: Turns,
        stats: BrokerStats,
        live_settings: LiveSettings,
        clock: Clock,
    ) -> None:
        self._points = points
        self._log = revive_log
        self._store = store
        self._waiters = waiters
        self._topics = topics
        self._retry_topics = retry_topics
        self._groups = groups
        self._cold = cold
        self._turns = turns
        self._stats = stats
        self._live_settings = live_settings
        self._clock = clock
        self.revived = 0
        self.dead = 0
        self.lost = 0

    async def tick(self) -> None:
        """Revive everything that is due. A timer calls this."""
        while (point := self._points.take_due(self._clock.now_ms())) is not None:
            async with self._turns:
                self._turns.spend(1)
                try:
                    is_done = await self._revive(point)
                except RefusalError as error:
                    log.warning("messages can't be given out again now", reason=error.remark, **_names(point))
                    is_done = False
            if not is_done and point.left:
                self._points.postpone(point, self._clock.now_ms() + RETRY_MS)

    async def _revive(self, point: CheckPoint) -> bool:
        """Revive the messages of a check point. Return whether all are done. Raises RefusalError."""
        topic, group_name = point.key.topic, point.key.group
        group = self._groups.find(group_name)
        if self._topics.find(topic) is None or group is None:
            self._points.drop(point)
            return True
        records = await self._read(point)
        # Acknowledgements may have arrived while the disk was read.
        messages = [(offset, record) for offset, record in records if point.has(offset)]
        retry_topic = self._retry_topic(topic, group_name)
        copies = [(offset, None if record is None else _copy(record, point, group)) for offset, record in messages]
        if any(copy is not None and not copy.topic for _, copy in copies):
            await self._ensure(TopicConfig(retry_topic, 1, 1, int(Perm.READ | Perm.WRITE)))
        if any(copy is not None and copy.topic for _, copy in copies):
            await self._ensure(dlq_topic_of(group_name))
        return self._store_copies(point, retry_topic, [item for item in copies if point.has(item[0])])

    def _store_copies(
        self, point: CheckPoint, retry_topic: str, copies: Sequence[tuple[int, NewMessage | None]]
    ) -> bool:
        done: list[int] = []
        end = 0
        now_ms = self._clock.now_ms()
        for offset, copy in copies:
            if copy is None:
                self.lost += 1
                done.append(offset)
                continue
            is_dead = bool(copy.topic)
            copy.topic = copy.topic or retry_topic
            result = copy.put_into(self._store)
            if result.status in _NEVER:
                self.lost += 1
                log.error("a message can't be stored again", offset=offset, reason=result.reason, **_names(point))
            elif result.status is not PutStatus.OK:
                log.warning("messages wait until the store takes messages", reason=result.reason, **_names(point))
                break
            else:
                end = result.next_offset
                self.dead += is_dead
                self.revived += not is_dead
                flow = self._stats.put_flow(copy.topic, now_ms)
                flow.messages += 1
                flow.calls += 1
                flow.size_bytes += result.next_offset - result.physical_offset
                if is_dead:
                    returned = self._stats.return_flow(DLQ_PUT_NUMS, point.key.topic, point.key.group, now_ms)
                    returned.messages += 1
                    returned.calls += 1
            done.append(offset)
        for offset in done:
            self._points.mark(point, offset)
        if end:
            self._waiters.wait(end, self._stored, point, done)
        elif done:
            self._note(point, done)
        return not point.left

    def _stored(self, outcome: Outcome, point: CheckPoint, done: Sequence[int]) -> None:
        """Note that messages are done, when their copies are durable. A power failure may tear a gap into the log."""
        if outcome is Outcome.DURABLE:
            self._note(point, done)

    def _note(self, point: CheckPoint, done: Sequence[int]) -> None:
        try:
            self._log.append_ack(point, done)
        except RefusalError as error:
            # A crash before the progress has passed the check point would store the copies again.
            log.warning("a revive is not noted", reason=error.remark, **_names(point))
        self._waiters.appended()

    async def _read(self, point: CheckPoint) -> list[tuple[int, StoredMessage | None]]:
        topic, queue_id = point.key.topic, point.key.queue_id

        def read() -> list[tuple[int, StoredMessage | None]]:
            found: list[tuple[int, StoredMessage | None]] = []
            for offset in point.left_offsets():
                records = self._store.get(topic, queue_id, offset, 1).records
                message = decode_record(records[0], check_crc=False) if records and records[0] else None
                found.append((offset, message if message is not None and message.queue_offset == offset else None))
            return found

        try:
            return self._cold.attempt(read)
        except NotInMemoryError:
            return await read_cold(self._cold, self, read)

    async def _ensure(self, config: TopicConfig) -> None:
        if self._retry_topics.find(config.topic_name) is None:
            await self._retry_topics.ensure(config)

    def _retry_topic(self, topic: str, group: str) -> str:
        if names.is_retry_topic(topic):
            return topic
        return names.pop_retry_topic(group, topic, is_v2=self._live_settings.current.enable_retry_topic_v2)


class ReviveTimers:
    """The timers of the feature.

    Args:
        steps: Work of each round, in order.
    """

    def __init__(self, *steps: Callable[[], Awaitable[None] | None]) -> None:
        self._steps = steps

    async def tick(self) -> None:
        """Run one round."""
        for step in self._steps:
            ended = step()
            if ended is not None:
                await ended


def _copy(message: StoredMessage, point: CheckPoint, group: SubscriptionGroup) -> NewMessage:
    """Return the message as it is stored again. Its topic is empty, unless it is a dead letter."""
    topic, group_name = point.key.topic, group.group_name
    failures = message.reconsume_times + 1
    is_dead = failures > group.retry_max_times
    properties = dict(message.properties)
    properties.pop(PropertyName.POP_CK, None)
    properties.setdefault(PropertyName.FIRST_POP_TIME, str(point.key.popped_at_ms))
    properties.setdefault(PropertyName.RETRY_TOPIC, _origin(topic, group_name))
    properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.stored_id)
    properties[PropertyName.REVIVED_FROM] = message.stored_id
    return NewMessage(
        names.dlq_topic(group_name) if is_dead else "",
        0,
        message.body,
        properties,
        born_at_ms=message.born_at_ms,
        born_host=pack_host(message.born_host),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=failures,
    )


def _origin(topic: str, group: str) -> str:
    for separator in (names.POP_RETRY_SEPARATOR_V2, names.POP_RETRY_SEPARATOR_V1):
        prefix = f"{names.RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def _names(point: CheckPoint) -> dict[str, object]:
    return {"topic": point.key.topic, "group": point.key.group, "queue_id": point.key.queue_id}
