"""The checks that a send passes before its message is examined.

The order of the checks is RocketMQ's: the broker does not accept sends yet (1), a broker without write permission (16;
RocketMQ refuses order topics only, ADR 0043), an invalid topic name (29), a topic that clients may not send to (16), an unknown topic (created,
or 17), the queue (29). The checks of the topic itself run once, not for every message: its `Target` is kept until the
topic changes.
"""

from collections.abc import Awaitable, Callable

from gantry.model import names, sysflag
from gantry.model.errors import InvalidNameError
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from gantry.model.topic import MULTI_TAG, Perm, TopicConfig
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.headers import SendMessageHeader
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.broker.duplicates.window import DuplicateWindow, DuplicateWindows
from services.broker.identity import BrokerIdentity
from services.broker.refusal import FAQ, RefusalError, drained_remark
from services.broker.registry.groups import GroupTable
from services.broker.registry.persistence import NotSavedError
from services.broker.registry.senders import SenderTable, TopicSenders
from services.broker.registry.topics import TOPICS_MAX, TopicTable, auto_created
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.stats import BrokerStats, Flow

_UNIT_FLAG = 0x1
_UNIT_SUB_FLAG = 0x2


class Target:
    """A topic that may be sent to, with the data about it that each message needs."""

    __slots__ = ("config", "flow", "is_retry", "queue_ids_max", "senders", "sys_flag", "window", "write_queue_nums")

    def __init__(self, config: TopicConfig, flow: Flow, window: DuplicateWindow | None, senders: TopicSenders) -> None:
        self.config = config
        self.flow = flow
        self.senders = senders
        self.queue_ids_max = max(config.read_queue_nums, config.write_queue_nums)
        self.write_queue_nums = config.write_queue_nums
        self.sys_flag = sysflag.MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0
        self.window = window
        self.is_retry = names.is_retry_topic(config.topic_name)


class SendChecks:
    """Finds the target of a send, or refuses the send."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        live_settings: LiveSettings,
        clock: Clock,
        rng: Rng,
        create_topic: Callable[[TopicConfig], Awaitable[None]],
        windows: DuplicateWindows,
        senders: SenderTable,
        identity: BrokerIdentity,
    ) -> None:
        self._topics = topics
        self._identity = identity
        self._groups = groups
        self._stats = stats
        self._live_settings = live_settings
        self._clock = clock
        self._rng = rng
        self._create_topic = create_topic
        self._windows = windows
        self._senders = senders
        self._targets: dict[str, Target] = {}
        # The settings that were found to allow sends at any time.
        self._open_settings: BrokerSettings | None = None
        self._unsaved: set[str] = set()

    def topic_changed(self, topic: str) -> None:
        """Drop the target of a changed topic."""
        self._targets.pop(topic, None)

    def find(self, header: SendMessageHeader) -> Target | None:
        """Return the target of a send, or None if its topic must be created first (`create`).

        Raises:
            RefusalError: The send is not allowed.
        """
        if self._live_settings.current is not self._open_settings:
            self._check_settings()
        target = self._targets.get(header.topic)
        if target is None:
            target = self._look_up(header.topic)
            if target is None:
                return None
        if target.is_retry:
            self._check_retry(header)
        return target

    async def create(self, header: SendMessageHeader) -> None:
        """Create the unknown topic of a send, and wait until the topic would survive a crash.

        Raises:
            RefusalError: The topic may not be created, or can't be saved.
        """
        topic = header.topic
        if self._topics.is_closed(topic):
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"topic {topic} is being deleted; it can be made again soon")
        config = self._topics.find(topic) or auto_created(
            topic,
            self._topics.find(header.default_topic),
            header.default_topic_queue_nums,
            self._live_settings.current,
            topic_sys_flag=_UNIT_FLAG if header.unit_mode else 0,
        )
        if config is None or len(self._topics) >= TOPICS_MAX:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
        # No message may go to the topic before the topic is on disk, because a message must not outlive its topic. If
        # the disk fails, the next send waits for the save again.
        self._unsaved.add(topic)
        try:
            await self._create_topic(config)
        except NotSavedError as error:
            raise RefusalError(ResponseCode.SERVICE_NOT_AVAILABLE, f"topic {topic} was not made: {error}") from None
        self._unsaved.discard(topic)

    def queue_id(self, channel: Channel, header: SendMessageHeader, target: Target) -> int:
        """Return the queue of a send: the requested one, or a random writable one if the requested id is negative.

        Raises:
            RefusalError: The topic has no such queue.
        """
        queue_id = header.queue_id
        if queue_id < 0:
            if target.write_queue_nums < 1:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {header.topic} has no queue that is written: writeQueueNums=0",
                )
            return self._rng.below(target.write_queue_nums)
        if queue_id >= target.queue_ids_max:
            config = target.config
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {header.topic} has readQueueNums="
                f"{config.read_queue_nums} and writeQueueNums={config.write_queue_nums} Producer: {channel.peer}",
            )
        return queue_id

    def _look_up(self, topic: str) -> Target | None:
        length_max = RETRY_TOPIC_LENGTH_MAX if names.is_retry_topic(topic) else TOPIC_LENGTH_MAX
        config = self._topics.find(topic)
        try:
            names.check_topic(topic, length_max=length_max)
        except InvalidNameError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in names.NOT_ALLOWED_SEND_TOPICS or topic.startswith(names.REVIVE_TOPIC_PREFIX):
            raise RefusalError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if config is None or topic in self._unsaved:
            return None
        target = Target(config, self.flow(topic), self._windows.find(topic), self._senders.of(topic))
        self._targets[topic] = target
        return target

    def flow(self, topic: str) -> Flow:
        """Return the statistics of the messages that are stored under a topic."""
        return self._stats.find_put_flow(topic) or self._stats.put_flow(topic, self._clock.now_ms())

    def _check_settings(self) -> None:
        """Refuse sends if the broker takes none yet, or is drained. Settings that allow them are checked once."""
        settings = self._live_settings.current
        starts_at_ms = settings.start_accept_send_request_time_stamp
        if starts_at_ms > 0 and self._clock.now_ms() < starts_at_ms:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until startAcceptSendRequestTimeStamp={starts_at_ms}",
            )
        if not settings.broker_permission & Perm.WRITE:
            raise RefusalError(ResponseCode.NO_PERMISSION, drained_remark(self._identity.address))
        self._open_settings = settings

    def _check_retry(self, header: SendMessageHeader) -> None:
        """Refuse a message for the retry topic of an unknown group."""
        if all(self._groups.find(name) is None for name in names.groups_of_retry_topic(header.topic)):
            group = header.topic.removeprefix(names.RETRY_PREFIX)
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}{FAQ}")
