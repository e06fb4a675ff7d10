"""The checks of a pop.

Their order is RocketMQ's: the broker's perm (16), the number of messages (29), the invisible time (29), the topic (17,
16), the queue (29), the names (29), the group (26, 16), the expression (23).
"""

from typing import Final

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import SubscriptionGroup
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, pop_retry_topic
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.headers.pop import ANY_QUEUE, PopMessageHeader
from gantry.runtime.clock import Clock
from services.broker.filter.subscriptions import MessageFilter, SubscriptionFilters
from services.broker.identity import BrokerIdentity
from services.broker.pop.acks import INVISIBLE_MS_MAX
from services.broker.pop.taking import PopRequest
from services.broker.processors.filterchecks import inline_subscription, require_sql_enabled, unparsable
from services.broker.refusal import FAQ, RefusalError, deleted_remark
from services.broker.registry.groups import GroupTable
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings

MESSAGES_MAX: Final = 32
_READ = int(Perm.READ)


class PopChecks:
    """Checks pops against topics and groups."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        filters: SubscriptionFilters,
        live_settings: LiveSettings,
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._live_settings = live_settings
        self._identity = identity
        self._clock = clock

    def pop(self, channel: Channel, header: PopMessageHeader, *, is_new: bool = False) -> PopRequest:
        """Return a pop that may run. Raises RefusalError.

        Only a new one may make its group. One that waited does not make a deleted group again.
        """
        settings = self._live_settings.current
        if not settings.broker_permission & _READ:
            raise RefusalError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._identity.address}] popping message is forbidden"
            )
        if not 1 <= header.max_msg_nums <= MESSAGES_MAX:
            kind = "greater than 32" if header.max_msg_nums > MESSAGES_MAX else "less than 1"
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"the broker[{self._identity.host}] pop message's num is {kind}"
            )
        if not 1 <= header.invisible_time <= INVISIBLE_MS_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime={header.invisible_time}: is not within 1 and {INVISIBLE_MS_MAX}",
            )
        topic = self.topic(header.topic, header.queue_id)
        name = pop_retry_topic(header.consumer_group, header.topic, is_v2=False)
        if len(name) > RETRY_TOPIC_LENGTH_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"group {header.consumer_group} and topic {header.topic}: the names are too long for a retry topic",
            )
        group = self._group(channel, header.consumer_group, is_new=is_new)
        if not group.consume_enable:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")
        return PopRequest(header, self._filter(header), topic.read_queue_nums)

    def _group(self, channel: Channel, name: str, *, is_new: bool) -> SubscriptionGroup:
        groups, settings = self._groups, self._live_settings.current
        group = groups.ensure(name, settings, self._clock.now_ms(), connection=channel) if is_new else groups.find(name)
        if group is None:
            is_dismissed = groups.dismissed.has(name, channel)
            remark = deleted_remark(name) if is_dismissed else f"subscription group [{name}] does not exist, {FAQ}"
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return group

    def topic(self, name: str, queue_id: int) -> TopicConfig:
        """Return a readable topic that has the queue. Raises RefusalError."""
        topic = self._topics.find(name)
        if topic is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
        if not topic.perm & _READ:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"the topic[{name}] popping message is forbidden")
        if not ANY_QUEUE <= queue_id < topic.read_queue_nums:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        return topic

    def _filter(self, header: PopMessageHeader) -> MessageFilter:
        try:
            subscription = inline_subscription(header.topic, header.exp_type, header.exp)
            if subscription.is_sql:
                require_sql_enabled(self._live_settings, header.consumer_group, subscription)
            return self._filters.filter_of(subscription)
        except InvalidExpressionError as error:
            raise unparsable(error) from None
