"""Requests of clients: heart-beat (34), unregister (35), check of a subscription (46), instances of a group (38).

The first heart-beat of a consumer group creates the group, if `autoCreateSubscriptionGroup` is on, and its %RETRY%
topic, because clients subscribe to this topic at once. A heart-beat does not make a group again that was deleted while its
sender was a member: only that group is left out, and the remark of the answer names the first such group.

An instance is a client id on a connection. A member is an instance in one group, so an instance of three groups is
three members.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from gantry.model import names
from gantry.model.errors import InvalidExpressionError, InvalidNameError
from gantry.model.group import TAG_EXPRESSION, SubscriptionData, SubscriptionGroup, parse_tag_expression
from gantry.model.javahash import java_hash
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import CheckClientConfig, ConsumerData, ConsumerIdList, HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetConsumerListHeader, HeartbeatResponseHeader, UnregisterClientHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.filter.subscriptions import SubscriptionFilters
from services.broker.processors.filterchecks import require_sql_enabled, unparsable
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError, deleted_remark
from services.broker.registry.clients import ClientInfo
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.producers import ProducerTable
from services.broker.registry.senders import SenderTable
from services.broker.registry.topics import TOPICS_MAX, TopicTable
from services.broker.settings import LiveSettings

# The limits prevent a faulty client from filling the tables. RocketMQ has no limits.
GROUPS_OF_CLIENT_MAX = 10_000
SUBSCRIPTIONS_OF_CLIENT_MAX = 10_000
# A member takes about 1 KiB. The limit is enough for ten thousand connections with fifty groups each.
MEMBERS_MAX = 500_000
CLIENT_ID_LENGTH_MAX = 1024
SQL_CHARACTERS_OF_CLIENT_MAX = 512 * 1024
# An expression of this size takes up to 10 ms.
PARSED_AT_ONCE = 4096
# RocketMQ's TopicSysFlag.FLAG_UNIT_SUB: a consumer in unit mode subscribes to the topic.
_UNIT_SUB_FLAG = 0x2


class ClientProcessor:
    """Registers clients in the tables of producers and consumers, and answers questions about consumers.

    Args:
        notify_group: Called with a consumer group when a member has joined or left, or a topic was added or removed; it
            notifies the group's clients, which then allocate the queues again.

    Concurrency: the loop's thread only.
    """

    def __init__(
        self,
        *,
        producers: ProducerTable,
        consumers: ConsumerTable,
        senders: SenderTable,
        topics: TopicTable,
        groups: GroupTable,
        filters: SubscriptionFilters,
        live_settings: LiveSettings,
        clock: Clock,
        notify_group: Callable[[str], None],
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._senders = senders
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._live_settings = live_settings
        self._clock = clock
        self._notify_group = notify_group

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.HEART_BEAT: self.heartbeat,
                code.UNREGISTER_CLIENT: self.unregister,
                code.CHECK_CLIENT_CONFIG: self.check_config,
                code.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            }
        )

    def heartbeat(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """34: register an instance in all its groups, or refuse the heart-beat as a whole and register nothing.

        New SQL92 expressions of more than PARSED_AT_ONCE characters are parsed in several turns of the loop.
        """
        data = HeartbeatData.decode(request.body_bytes)
        _check_heartbeat(data)
        new = [each for each in _subscriptions_of(data) if not self._filters.is_ready(each)]
        if sum(len(each.sub_string) for each in new) > PARSED_AT_ONCE:
            return self._heartbeat_later(channel, request, data, new)
        return self._take_heartbeat(channel, request, data)

    async def _heartbeat_later(
        self, channel: Channel, request: RemotingCommand, data: HeartbeatData, new: list[SubscriptionData]
    ) -> RemotingCommand | None:
        for subscription in new:
            with contextlib.suppress(InvalidExpressionError):
                self._filters.filter_of(subscription)
            await asyncio.sleep(0)
        # A closed connection must not become a member: nothing would remove it.
        return None if channel.closed else self._take_heartbeat(channel, request, data)

    def _take_heartbeat(self, channel: Channel, request: RemotingCommand, data: HeartbeatData) -> RemotingCommand:
        for consumer in data.consumers:
            for subscription in consumer.subscriptions:
                self._check_filter(consumer.group_name, subscription)
        self._check_room(channel, data)
        # Everything that may refuse the heart-beat comes before the first registration.
        deleted = self._deleted(channel, data)
        consumers = [consumer for consumer in data.consumers if consumer.group_name not in deleted]
        subscriptions = [[_with_tag_hashes(each) for each in consumer.subscriptions] for consumer in consumers]
        configs = self._ensure_groups([consumer.group_name for consumer in consumers], channel, data.client_id)
        client = ClientInfo(
            connection=channel,
            client_id=data.client_id,
            language=request.language,
            version=request.version,
            address=str(channel.peer),
            seen_at_ms=self._clock.now_ms(),
            seen_monotonic_ms=self._clock.monotonic_ms(),
        )
        for group in data.producer_groups:
            self._producers.register(group, client)
        needs_subscriptions = False
        for consumer, config, wanted in zip(consumers, configs, subscriptions, strict=True):
            needs_subscriptions |= self._register(consumer, config, client, None if data.without_sub else wanted)
        # A client with a fingerprint may omit unchanged subscriptions (`without_sub`). If the broker does not know
        # the group (any more), the client must send all of them: the reply says "changed". Other clients always send
        # them and ignore this field; RocketMQ replies "changed" to them, too.
        is_changed = needs_subscriptions if data.heartbeat_fingerprint else True
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            HeartbeatResponseHeader(is_support_heart_beat_v2=True, is_sub_change=is_changed),
            remark=deleted_remark(next(iter(deleted))) if deleted else None,
        )

    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """35: remove one instance from its groups. The other instances of its connection stay."""
        header = UnregisterClientHeader.from_ext(request.ext_fields)
        if header.producer_group:
            self._producers.unregister(header.producer_group, channel, header.client_id)
            if not self._producers.has_group(header.producer_group, channel):
                self._senders.drop_group(channel, header.producer_group)
        group = header.consumer_group
        if group:
            self._groups.dismissed.forget(group, channel, header.client_id)
        if group and self._consumers.unregister(group, channel, header.client_id):
            self._notify_group(group)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def check_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """46: refuse a subscription whose filter is invalid (23), or which the broker does not evaluate (1)."""
        check = CheckClientConfig.decode(request.body_bytes)
        self._check_filter(check.group, check.subscription)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _check_filter(self, group: str, subscription: SubscriptionData) -> None:
        if subscription.is_sql:
            require_sql_enabled(self._live_settings, group, subscription)
        elif subscription.expression_type == TAG_EXPRESSION:
            return
        try:
            self._filters.filter_of(subscription)
        except InvalidExpressionError as error:
            raise unparsable(error) from None

    def consumer_ids(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """38: return the ids of a group's instances, for clients that allocate the queues among them."""
        header = GetConsumerListHeader.from_ext(request.ext_fields)
        info = self._consumers.find(header.consumer_group)
        if info is None and self._groups.dismissed.has(header.consumer_group, channel):
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, deleted_remark(header.consumer_group))
        if info is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        body = ConsumerIdList(consumer_id_list=info.sharing_ids(channel)).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def _check_room(self, channel: Channel, data: HeartbeatData) -> None:
        """Refuse a heart-beat that adds members above the limit. One that adds no member is always accepted."""
        count = self._producers.members_count + self._consumers.members_count
        new = len(data.producer_groups) + len(data.consumers)
        if count + new <= MEMBERS_MAX:
            return
        key = (channel, data.client_id)
        new = sum(not self._producers.has_member(group, key) for group in data.producer_groups)
        new += sum(not self._consumers.has_member(consumer.group_name, key) for consumer in data.consumers)
        if new and count + new > MEMBERS_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"clientID {data.client_id}: {new} more instances in groups, there are {count} of at most {MEMBERS_MAX}",
            )

    def _deleted(self, channel: Channel, data: HeartbeatData) -> dict[str, None]:
        """Return the groups that were deleted while the instance was a member, and that it may not make again."""
        groups = dict.fromkeys(consumer.group_name for consumer in data.consumers)
        return {group: None for group in groups if self._groups.dismissed.has(group, channel, data.client_id)}

    def _ensure_groups(self, groups: Sequence[str], channel: Channel, client_id: str) -> list[SubscriptionGroup]:
        """Return the configurations of groups. Create the missing ones, or none of them if one can't be created."""
        settings = self._live_settings.current
        missing = self._groups.find_missing(groups, settings)
        if missing is not None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{missing}] does not exist and may not be made (autoCreateSubscriptionGroup)",
            )
        now_ms = self._clock.now_ms()
        configs = [
            self._groups.ensure(group, settings, now_ms, connection=channel, client_id=client_id) for group in groups
        ]
        found = [config for config in configs if config is not None]
        assert len(found) == len(groups), "every group exists or can be created"
        return found

    def _register(
        self,
        consumer: ConsumerData,
        config: SubscriptionGroup,
        client: ClientInfo,
        subscriptions: Iterable[SubscriptionData] | None,
    ) -> bool:
        """Register one consumer group of a heart-beat.

        Args:
            consumer: The data of the group.
            config: The group's configuration.
            client: The instance that sent the heart-beat.
            subscriptions: The subscriptions, or None if the client omitted them.

        Returns:
            Whether the client must send the subscriptions that it omitted.
        """
        group = consumer.group_name
        if len(names.retry_topic(group)) <= names.RETRY_TOPIC_LENGTH_MAX and len(self._topics) < TOPICS_MAX:
            self._topics.ensure_retry(
                group,
                config.retry_queue_nums,
                self._clock.now_ms(),
                topic_sys_flag=_UNIT_SUB_FLAG if consumer.unit_mode else 0,
            )
        is_known = self._consumers.find(group) is not None
        must_notify = self._consumers.register(
            group,
            client,
            consume_type=consumer.consume_type,
            message_model=consumer.message_model,
            consume_from_where=consumer.consume_from_where,
            subscriptions=subscriptions,
        )
        if must_notify:
            self._notify_group(group)
        return subscriptions is None and not is_known


def _check_heartbeat(data: HeartbeatData) -> None:
    """Raise RefusalError for a heart-beat that breaks a limit or has an invalid name.

    A heart-beat is refused as a whole. If the broker registered only some of its groups, the client would seem to have
    left the other groups, and their queues would go to other instances.
    """
    if not data.client_id or len(data.client_id) > CLIENT_ID_LENGTH_MAX:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"clientID has {len(data.client_id)} characters, 1 to {CLIENT_ID_LENGTH_MAX} are allowed",
        )
    count = len(data.producer_groups) + len(data.consumers)
    if count > GROUPS_OF_CLIENT_MAX:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR, f"heart-beat of {count} groups, at most {GROUPS_OF_CLIENT_MAX} are allowed"
        )
    count = sum(len(consumer.subscriptions) for consumer in data.consumers)
    if count > SUBSCRIPTIONS_OF_CLIENT_MAX:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"heart-beat of {count} subscriptions, at most {SUBSCRIPTIONS_OF_CLIENT_MAX} are allowed",
        )
    try:
        for group in data.producer_groups:
            names.check_group(group, field="producerGroup")
        for consumer in data.consumers:
            names.check_group(consumer.group_name, field="consumerGroup")
    except InvalidNameError as error:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    characters = sum(len(each.sub_string) for each in _subscriptions_of(data) if each.is_sql)
    if characters > SQL_CHARACTERS_OF_CLIENT_MAX:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"heart-beat with SQL92 expressions of {characters} characters, at most {SQL_CHARACTERS_OF_CLIENT_MAX} are "
            "allowed",
        )


def _subscriptions_of(data: HeartbeatData) -> Iterator[SubscriptionData]:
    return (subscription for consumer in data.consumers for subscription in consumer.subscriptions)


def _with_tag_hashes(subscription: SubscriptionData) -> SubscriptionData:
    """Return the subscription with the hashes of its tags, which some clients omit.

    Raises:
        InvalidExpressionError: The expression contains no tag.
    """
    if subscription.is_all or subscription.code_set or subscription.is_sql:
        return subscription
    tags = subscription.tags_set or parse_tag_expression(subscription.topic, subscription.sub_string).tags_set
    return dataclasses.replace(subscription, tags_set=tags, code_set=frozenset(java_hash(tag) for tag in tags))


def build(broker: Broker) -> ClientProcessor:
    """Build the processor from the broker's parts."""
    tables = broker.tables
    return ClientProcessor(
        producers=tables.producers,
        consumers=tables.consumers,
        senders=tables.senders,
        topics=tables.topics,
        groups=tables.groups,
        filters=broker.core.filters,
        live_settings=broker.core.live_settings,
        clock=broker.clock,
        notify_group=broker.notifications.notify,
    )
