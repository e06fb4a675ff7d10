"""Pull requests: 11 and 361.

The order of the checks is RocketMQ's: the broker's perm (16), the group (26, 16), the topic (17, 16), the queue (29),
then the subscription, which comes with the request or from the group's heart-beats (24, 16, 25), and at last its filter
(23; SQL92 while it is disabled: 1).

A pull that finds no new message may be held. The event that wakes it runs it once more, and then the broker replies. A
pull whose messages are not in memory waits in a task until a reader thread has read them (coldreader.py).
"""

import contextlib
from collections.abc import Awaitable, Mapping
from typing import Final, NamedTuple

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import SubscriptionData, SubscriptionGroup
from gantry.model.names import TOOLS_CONSUMER_GROUP, is_dlq_topic
from gantry.model.sysflag import PullSysFlag
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.aio.channel import REMARK_CHARS_MAX, Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import FRAME_BYTES_MAX, RemotingCommand
from gantry.remoting.headers import PullMessageHeader, PullMessageResponseHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.filter.subscriptions import MessageFilter, SubscriptionFilters
from services.broker.identity import BrokerIdentity
from services.broker.longpolling import HeldPull, LongPolling
from services.broker.offsetcommits import OffsetCommits
from services.broker.overload import Overload
from services.broker.processors.filterchecks import inline_subscription, require_sql_enabled, unparsable
from services.broker.processors.pullcodes import REMARKS, code_of
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import FAQ, RefusalError, deleted_remark
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.resetfence import QueueKey, ResetFence, Sender
from services.broker.settings import LiveSettings
from services.broker.stats import BrokerStats
from services.broker.store.files.pages import NotInMemoryError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetResult, GetStatus

# Largest size of the messages in the reply to a pull, whatever the settings say: a frame minus room for its header.
# RocketMQ's own limit does not fit a frame.
PULL_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024 * 1024
# Largest value of `gantryMaxMsgNums` that counts. It does not change the limit by bytes, which most pulls reach first.
WIDE_MESSAGES_MAX: Final = 1024
_MASTER_ID = 0
# A plain number: each operation of IntFlag calls functions, and a pull makes two.
_READ = int(Perm.READ)


def _is_tool_at_dead_letters(header: PullMessageHeader) -> bool:
    """Return whether a tool reads dead letters, whose topic is not readable for consumers."""
    return header.consumer_group == TOOLS_CONSUMER_GROUP and is_dlq_topic(header.topic)


class ForbiddenType:
    """The reason why a pull gets NO_PERMISSION."""

    BROKER: Final = "1"
    GROUP: Final = "2"
    TOPIC: Final = "3"
    BROADCASTING: Final = "4"
    SUBSCRIPTION: Final = "5"


_FOUND = GetStatus.FOUND


class _Allowed(NamedTuple):
    """The result of the checks."""

    topic: TopicConfig
    group: SubscriptionGroup
    filter: MessageFilter


class PullProcessor:
    """Answers pulls.

    Concurrency: the loop's thread. `pull` is a plain function while the messages are in memory.
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        offsets: OffsetTable,
        commits: OffsetCommits,
        fence: ResetFence,
        store: MessageStore,
        long_polling: LongPolling,
        cold: ColdReader,
        filters: SubscriptionFilters,
        overload: Overload,
        stats: BrokerStats,
        live_settings: LiveSettings,
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._commits = commits
        self._fence = fence
        self._store = store
        self._long_polling = long_polling
        self._cold = cold
        self._filters = filters
        self._overload = overload
        self._stats = stats
        self._live_settings = live_settings
        self._identity = identity
        self._clock = clock

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.PULL_MESSAGE: self.pull,
                code.LITE_PULL_MESSAGE: self.pull,
            }
        )

    def pull(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """11 and 361: return the reply; None if the pull is held; a coroutine if messages must come from the disk."""
        header = PullMessageHeader.from_ext(request.ext_fields)
        allowed = self._check(channel, header, is_new=True)
        self._fence.note(channel, header.consumer_group)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            # Commit before anything waits: this commit must not overwrite a later one of the same consumer. The pull
            # goes on if the commit is refused, which is counted and logged.
            with contextlib.suppress(RefusalError):
                sender = Sender(channel, header.gantry_reset_epoch)
                self._commits.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset, sender)
        try:
            result = self._cold.attempt(lambda: self._get(channel, header, allowed))
        except NotInMemoryError:
            return self._pull_cold(channel, request, header, allowed)
        return self._answer(channel, request, header, allowed, result)

    async def _pull_cold(
        self, channel: Channel, request: RemotingCommand, header: PullMessageHeader, allowed: _Allowed
    ) -> RemotingCommand | None:
        request.drop_content()
        result = await read_cold(self._cold, channel, lambda: self._get(channel, header, allowed))
        # The results of the checks may have changed while the disk was read.
        return self._answer(channel, request, header, self._check(channel, header), result)

    def _answer(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageHeader,
        allowed: _Allowed,
        result: GetResult,
    ) -> RemotingCommand | None:
        """Return the reply, or None if the pull is held."""
        code = code_of(result, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PullSysFlag.SUSPEND and not request.is_one_way:
            self._hold(channel, request, header, allowed)
            return None
        return self._reply(request, header, allowed, result, code)

    def _hold(self, channel: Channel, request: RemotingCommand, header: PullMessageHeader, allowed: _Allowed) -> None:
        refusal = self._overload.pull_refusal(held_count=self._long_polling.count)
        if refusal is not None:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, refusal)
        request.drop_content()
        settings = self._live_settings.current
        suspend_ms = (
            header.suspend_timeout_millis if settings.long_polling_enable else settings.short_polling_time_mills
        )
        held = HeldPull(
            (header.topic, header.queue_id),
            header.queue_offset,
            allowed.filter,
            channel,
            resume=lambda: self._resume(channel, request, header),
            fail=lambda error: self._fail(channel, request, error),
        )
        self._long_polling.hold(held, self._clock.monotonic_ms(), suspend_ms)

    def _resume(self, channel: Channel, request: RemotingCommand, header: PullMessageHeader) -> None:
        """Run a held pull again. The results of its checks may have changed, so the checks run again too."""
        if channel.closed:
            return
        try:
            allowed = self._check(channel, header)
            result = self._cold.attempt(lambda: self._get(channel, header, allowed))
            reply = self._reply(request, header, allowed, result, code_of(result, header.queue_offset))
        except NotInMemoryError:
            self._cold.spawn(self._resume_cold(channel, request, header))
            return
        except RefusalError as error:
            reply = error.reply_to(request)
        channel.reply(request, reply)

    async def _resume_cold(self, channel: Channel, request: RemotingCommand, header: PullMessageHeader) -> None:
        try:
            allowed = self._check(channel, header)
            result = await read_cold(self._cold, channel, lambda: self._get(channel, header, allowed))
            reply = self._reply(request, header, allowed, result, code_of(result, header.queue_offset))
        except RefusalError as error:
            reply = error.reply_to(request)
        except Exception as error:  # boundary: the client gets an error reply, and the task's owner logs the error.
            self._fail(channel, request, error)
            raise
        channel.reply(request, reply)

    @staticmethod
    def _fail(channel: Channel, request: RemotingCommand, error: Exception) -> None:
        remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
        channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))

    def _get(self, channel: Channel, header: PullMessageHeader, allowed: _Allowed) -> GetResult:
        topic, queue_id = header.topic, header.queue_id
        is_armed = self._fence.is_armed
        if is_armed and (moved_to := self._fence.move_pull(*_fenced(channel, header))) is not None:
            ends = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            return GetResult(GetStatus.OFFSET_RESET, moved_to, *ends)
        result = self._store.get(
            topic,
            queue_id,
            header.queue_offset,
            header.max_msg_nums,
            max_bytes=PULL_BYTES_MAX if header.max_msg_bytes is None else min(header.max_msg_bytes, PULL_BYTES_MAX),
            unit_filter=allowed.filter.unit,
            property_filter=allowed.filter.sql,
            wide_messages=min(header.gantry_max_msg_nums or 0, WIDE_MESSAGES_MAX),
        )
        if is_armed:
            self._fence.served(*_fenced(channel, header), result.next_offset)
        return result

    def _reply(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        allowed: _Allowed,
        result: GetResult,
        code: int,
    ) -> RemotingCommand:
        body = None
        if result.status is _FOUND:
            assert header.queue_offset < result.next_offset <= result.max_offset, "a found message moves the pull on"
            body = result.body
            flow = self._stats.get_flow(header.topic, header.consumer_group, self._clock.now_ms())
            flow.messages += result.count
            flow.calls += 1
            flow.size_bytes += len(body)
            self._stats.get_found += 1
            self._offsets.note_pull(header.topic, header.consumer_group, header.queue_id, result.next_offset)
        else:
            self._stats.get_missed += 1
        return RemotingCommand.response_to(
            request,
            code,
            PullMessageResponseHeader(
                # There are no slaves yet. RocketMQ gives the same reply while clients may not read from slaves.
                suggest_which_broker_id=_MASTER_ID,
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                topic_sys_flag=allowed.topic.topic_sys_flag,
                group_sys_flag=allowed.group.group_sys_flag,
                gantry_reset_epoch=(
                    self._fence.epoch(QueueKey(header.topic, header.consumer_group, header.queue_id))
                    if result.status is GetStatus.OFFSET_RESET
                    else None
                ),
            ),
            remark=REMARKS[result.status],
            body=body,
        )

    def _check(self, channel: Channel, header: PullMessageHeader, *, is_new: bool = False) -> _Allowed:
        """Check a pull; only a new one may make its group. One that waited does not make a deleted group again."""
        settings, name = self._live_settings.current, header.consumer_group
        if not settings.broker_permission & _READ:
            raise _forbidden(f"the broker[{self._identity.address}] pulling message is forbidden", ForbiddenType.BROKER)
        groups = self._groups
        group = groups.ensure(name, settings, self._clock.now_ms(), connection=channel) if is_new else groups.find(name)
        if group is None:
            remark = (
                deleted_remark(name)
                if groups.dismissed.has(name, channel)
                else f"subscription group [{name}] does not exist{FAQ}"
            )
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            raise _forbidden(f"subscription group no permission, {group.group_name}", ForbiddenType.GROUP)
        topic = self._topics.find(header.topic)
        if topic is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}"
            )
        if not topic.perm & _READ and not _is_tool_at_dead_letters(header):
            raise _forbidden(f"the topic[{header.topic}] pulling message is forbidden", ForbiddenType.TOPIC)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{channel.peer}]",
            )
        if header.max_msg_nums < 1:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"maxMsgNums={header.max_msg_nums}: is less than 1")
        # RocketMQ lets pulls pass that name their filter (ADR 0064).
        info = None if group.consume_broadcast_enable else self._consumers.find(name)
        if info is not None and info.is_broadcasting(channel):
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            raise _forbidden(remark, ForbiddenType.BROADCASTING)
        return _Allowed(topic, group, self._filter(channel, header))

    def _filter(self, channel: Channel, header: PullMessageHeader) -> MessageFilter:
        try:
            if header.sys_flag & PullSysFlag.SUBSCRIPTION:
                subscription = inline_subscription(header.topic, header.expression_type, header.subscription)
            else:
                subscription = self._subscription_of_group(channel, header)
            if subscription.is_sql:
                require_sql_enabled(self._live_settings, header.consumer_group, subscription)
            return self._filters.filter_of(subscription)
        except InvalidExpressionError as error:
            raise unparsable(error) from None

    def _subscription_of_group(self, channel: Channel, header: PullMessageHeader) -> SubscriptionData:
        info = self._consumers.find(header.consumer_group)
        if info is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist, {header.consumer_group}{FAQ}",
            )
        if not self._groups.may_read(header.consumer_group, header.topic):
            raise _forbidden(
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
                ForbiddenType.SUBSCRIPTION,
            )
        subscription = info.subscription_of(channel, header.topic, header.sub_version)
        if subscription is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group}, topic {header.topic}{FAQ}",
            )
        if subscription.sub_version < header.sub_version:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: the broker has {subscription.sub_version}, "
                f"the request {header.sub_version}",
            )
        return subscription


def _fenced(channel: Channel, header: PullMessageHeader) -> tuple[Sender, QueueKey, int]:
    """Return what the fence of resets needs to know of a pull."""
    key = QueueKey(header.topic, header.consumer_group, header.queue_id)
    return Sender(channel, header.gantry_reset_epoch), key, header.queue_offset


def _forbidden(remark: str, kind: str) -> RefusalError:
    return RefusalError(ResponseCode.NO_PERMISSION, remark, ext={"forbiddenType": kind})


def build(broker: Broker) -> PullProcessor:
    """Build the processor from the broker's parts."""
    tables, core = broker.tables, broker.core
    return PullProcessor(
        topics=tables.topics,
        groups=tables.groups,
        consumers=tables.consumers,
        offsets=tables.offsets,
        commits=broker.commits,
        fence=broker.fence,
        store=broker.store,
        long_polling=core.long_polling,
        cold=core.cold,
        filters=core.filters,
        overload=core.overload,
        stats=broker.stats,
        live_settings=core.live_settings,
        identity=broker.identity,
        clock=broker.clock,
    )
