"""Request 36: a consumer sends back a message that it could not process.

The order of the checks is RocketMQ's: the group (26), the broker's perm (16), a group without retries (success, and
nothing is stored), the retry topic (16), the message (1).

The broker reads the message at the given offset and stores a new one under %RETRY%group, which waits for its time as a
delayed message does. After the last attempt, or if the consumer says so, the new one goes to %DLQ%group.

Durability: as for a send. The consumer commits its offset after the reply, so the reply waits for the disk, although
the stored message has WAIT=false as in RocketMQ.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from gantry.model import names
from gantry.model.errors import InvalidNameError
from gantry.model.group import SubscriptionGroup
from gantry.model.message import decode_properties
from gantry.model.messageid import encode_packed_stored_id
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead, properties_without_crc
from gantry.model.retrypolicy import DELAY_MS_MAX
from gantry.model.topic import Perm
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import ConsumerSendMsgBackHeader
from gantry.remoting.headers.group import GANTRY_FAILURES_MAX
from gantry.remoting.replies import success_frame
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.identity import BrokerIdentity
from services.broker.newmessage import NewMessage, SendHook, TopicNeededError
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import FAQ, RefusalError, deleted_remark, drained_remark
from services.broker.registry.groups import GroupTable
from services.broker.retry.ladder import LIMIT_VERSION_MIN, failures_max
from services.broker.retry.topics import RetryTopics, dlq_topic_of, retry_topic_of
from services.broker.settings import INT32_MAX, LiveSettings
from services.broker.stats import DLQ_PUT_NUMS, SNDBCK_PUT_NUMS, BrokerStats
from services.broker.store.files.pages import NotInMemoryError
from services.broker.store.log.logreader import HeadedRecord
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus

# A plain number: the operators of an enumeration are slow.
_WRITE: Final = int(Perm.WRITE)
_DURABLE = Outcome.DURABLE

TOPICS_NEEDED_MAX: Final = 2
"""The retry topic and the topic of dead letters."""

# The put status of RocketMQ that the reply names.
_STATUSES = {
    PutStatus.NOT_WRITABLE: "SERVICE_NOT_AVAILABLE",
    PutStatus.MESSAGE_ILLEGAL: "MESSAGE_ILLEGAL",
    PutStatus.PROPERTIES_SIZE_EXCEEDED: "PROPERTIES_SIZE_EXCEEDED",
    PutStatus.CREATE_FILE_FAILED: "CREATE_MAPPED_FILE_FAILED",
}
_OUTCOMES = {
    Outcome.FLUSH_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    Outcome.REPLICATION_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    Outcome.NOT_WRITTEN: "UNKNOWN_ERROR",
}


class SendBackProcessor:
    """Answers request 36.

    Args:
        delay: Sets the delay of a message that is delivered again: takes the message, the group, and the level (0:
            none) and the delay in ms that the consumer asks for.
        hooks: Returns the send hooks that decide where the message is stored.

    Concurrency: the loop's thread. `send_back` is a plain function while message and topics are there.
    """

    def __init__(
        self,
        *,
        topics: RetryTopics,
        groups: GroupTable,
        waiters: DurabilityWaiters,
        store: MessageStore,
        cold: ColdReader,
        stats: BrokerStats,
        live_settings: LiveSettings,
        clock: Clock,
        rng: Rng,
        delay: Callable[[NewMessage, SubscriptionGroup, int, int | None], None],
        hooks: Callable[[], Sequence[SendHook]],
        identity: BrokerIdentity,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._waiters = waiters
        self._store = store
        self._cold = cold
        self._stats = stats
        self._live_settings = live_settings
        self._clock = clock
        self._rng = rng
        self._delay = delay
        self._hooks = hooks
        self._identity = identity

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return replying_to_refusals({RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back})

    def send_back(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """36: store the message at an offset for its next delivery, or as a dead letter."""
        header = ConsumerSendMsgBackHeader.from_ext(request.ext_fields)
        group = self._check(channel, header)
        if group.retry_queue_nums < 1:
            return RemotingCommand.response_to(request, ResponseCode.SUCCESS)
        try:
            record = self._cold.attempt(lambda: self._store.headed_record_at(header.offset))
        except NotInMemoryError:
            return self._send_back_cold(channel, request, header)
        try:
            self._store_record(channel, request, header, group, record)
        except TopicNeededError as error:
            return self._send_back_later(error, channel, request, header, record)
        return None

    async def _send_back_cold(
        self, channel: Channel, request: RemotingCommand, header: ConsumerSendMsgBackHeader
    ) -> None:
        record = await read_cold(self._cold, channel, lambda: self._store.headed_record_at(header.offset))
        await self._send_back_later(None, channel, request, header, record)

    async def _send_back_later(
        self,
        needed: TopicNeededError | None,
        channel: Channel,
        request: RemotingCommand,
        header: ConsumerSendMsgBackHeader,
        record: HeadedRecord | None,
    ) -> None:
        """Create the missing topics, and store the message. The results of the checks may have changed meanwhile."""
        for _ in range(TOPICS_NEEDED_MAX + 1):
            if needed is not None:
                await needed.make()
            try:
                self._store_record(channel, request, header, self._check(channel, header), record)
            except TopicNeededError as error:
                needed = error
            else:
                return
        raise RefusalError(ResponseCode.SYSTEM_BUSY, f"the topics of group {header.group} were deleted meanwhile")

    def _check(self, channel: Channel, header: ConsumerSendMsgBackHeader) -> SubscriptionGroup:
        """Return the group of the message. Raises RefusalError if it may not send messages back."""
        refusal = self._waiters.admit()
        if refusal is not None:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, refusal)
        try:
            settings = self._live_settings.current
            group = self._groups.ensure(header.group, settings, self._clock.now_ms(), connection=channel)
        except InvalidNameError as error:
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from None
        if group is None:
            is_dismissed = self._groups.dismissed.has(header.group, channel)
            remark = f"subscription group not exist, {header.group}{FAQ}"
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, deleted_remark(header.group) if is_dismissed else remark
            )
        if not self._live_settings.current.broker_permission & _WRITE:
            raise RefusalError(ResponseCode.NO_PERMISSION, drained_remark(self._identity.address))
        delay_ms = header.gantry_delay_ms
        if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
            reason = f"gantryDelayMs: {delay_ms} is not within 0 and {DELAY_MS_MAX}"
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, reason)
        failures = header.gantry_failures
        if failures is not None and not 1 <= failures <= GANTRY_FAILURES_MAX:
            reason = f"gantryFailures: {failures} is not within 1 and {GANTRY_FAILURES_MAX}"
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, reason)
        if len(names.retry_topic(header.group)) > names.RETRY_TOPIC_LENGTH_MAX:
            length, longest = len(names.retry_topic(header.group)), names.RETRY_TOPIC_LENGTH_MAX
            reason = f"group {header.group}: its retry topic has {length} characters, at most {longest} are allowed"
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, reason)
        return group

    def _store_record(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: ConsumerSendMsgBackHeader,
        group: SubscriptionGroup,
        record: HeadedRecord | None,
    ) -> None:
        """Store the message; the reply follows when it is durable.

        Raises:
            TopicNeededError: A topic must be created first; nothing is stored yet.
            RefusalError: The message can't be stored.
        """
        retry_topic = self._topics.find(names.retry_topic(group.group_name))
        if retry_topic is None:
            raise TopicNeededError(partial(self._topics.ensure, retry_topic_of(group)))
        if not retry_topic.perm & _WRITE:
            raise RefusalError(
                ResponseCode.NO_PERMISSION, f"the topic[{retry_topic.topic_name}] sending message is forbidden"
            )
        if record is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        data, head = record
        given = header.max_reconsume_times if request.version >= LIMIT_VERSION_MIN else None
        is_dead = head.reconsume_times >= failures_max(group, given) or header.delay_level < 0
        if is_dead and self._topics.find(names.dlq_topic(group.group_name)) is None:
            raise TopicNeededError(partial(self._topics.ensure, dlq_topic_of(group.group_name)))
        message = _new_message(data, head, header.gantry_failures or 1)
        if is_dead:
            message.topic = names.dlq_topic(group.group_name)
            message.properties[PropertyName.DELAY] = "0"
        else:
            message.topic = retry_topic.topic_name
            message.queue_id = self._rng.below(group.retry_queue_nums)
            self._delay(message, group, header.delay_level, header.gantry_delay_ms)
        self._put(channel, request, message, group, is_dead=is_dead)

    def _put(
        self,
        channel: Channel,
        request: RemotingCommand,
        message: NewMessage,
        group: SubscriptionGroup,
        *,
        is_dead: bool,
    ) -> None:
        origin_topic = message.properties[PropertyName.RETRY_TOPIC]
        for hook in self._hooks():
            hook(message)
        result = message.put_into(self._store)
        if result.status is not PutStatus.OK:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"{_STATUSES[result.status]}: {result.reason}")
        now_ms = self._clock.now_ms()
        flow = self._stats.put_flow(message.topic, now_ms)
        flow.messages += 1
        flow.calls += 1
        flow.size_bytes += result.next_offset - result.physical_offset
        for name in (SNDBCK_PUT_NUMS, DLQ_PUT_NUMS) if is_dead else (SNDBCK_PUT_NUMS,):
            returned = self._stats.return_flow(name, origin_topic, group.group_name, now_ms)
            returned.messages += 1
            returned.calls += 1
        if request.is_one_way:
            self._waiters.appended()
            return
        request.drop_content()
        self._waiters.wait(result.next_offset, _reply, channel, request)


def _new_message(data: bytes, head: RecordHead, failures: int) -> NewMessage:
    """Return the message as it is delivered the next time; its topic is not set yet."""
    properties = decode_properties(properties_without_crc(head.properties))
    if PropertyName.RETRY_TOPIC not in properties:
        properties[PropertyName.RETRY_TOPIC] = head.topic.decode()
    if PropertyName.ORIGIN_MESSAGE_ID not in properties:
        properties[PropertyName.ORIGIN_MESSAGE_ID] = encode_packed_stored_id(head.store_host, head.physical_offset)
    properties[PropertyName.WAIT] = "false"
    return NewMessage(
        "",
        0,
        data[head.body_start : head.body_end],
        properties,
        born_at_ms=head.born_at_ms,
        born_host=head.born_host,
        flag=head.flag,
        sys_flag=head.sys_flag,
        reconsume_times=min(head.reconsume_times + failures, INT32_MAX),
    )


def _reply(outcome: Outcome, channel: Channel, request: RemotingCommand) -> None:
    if outcome is _DURABLE:
        channel.reply_frame(request, success_frame(request))
    else:
        remark = _OUTCOMES[outcome]
        channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))
