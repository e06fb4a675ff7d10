"""Admin: calls about topics, groups, statistics and single messages.

A call about a topic or group asks the masters of all broker sets, or of the sets that the caller names, and combines
their answers. If a broker refuses or does not answer, the call fails, because callers could not tell a partial answer
from a complete one.

Source: RocketMQ 5.3 DefaultMQAdminExtImpl.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, BrokerUnavailableError, InvalidArgumentError
from gantry.model.errors import InvalidIdError, InvalidNameError, RecordError
from gantry.model.group import SubscriptionGroup
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.messageid import decode_stored_id
from gantry.model.names import AUTO_CREATE_TOPIC, check_group, check_topic
from gantry.model.record import decode_record, iter_records
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    KVTable,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_properties_text,
    decode_subscription_group,
    decode_topic_config,
    encode_subscription_group,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import EncodableHeader, RemotingCommand
from gantry.remoting.headers.client import GetConsumerConnectionListHeader, GetProducerConnectionListHeader
from gantry.remoting.headers.group import (
    DeleteSubscriptionGroupHeader,
    GetConsumeStatsHeader,
    GetSubscriptionGroupConfigHeader,
)
from gantry.remoting.headers.namesrv import DeleteTopicInNamesrvHeader
from gantry.remoting.headers.query import QueryMessageHeader, ViewMessageHeader
from gantry.remoting.headers.topic import (
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    GetTopicStatsHeader,
    QueryTopicConsumeByWhoHeader,
)

T = TypeVar("T")

QUERY_MESSAGES_MAX = 64
_FOR_EVER_MS = 2**63 - 1


class Admin:
    """Admin calls over an engine.

    Every call raises the first BrokerError, NoAnswerError or BrokerUnavailableError that occurs, and
    InvalidArgumentError for a name that is not valid.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine

    async def cluster_info(self) -> ClusterInfo:
        """Return all registered broker sets."""
        return await self._engine.cluster_info()

    async def masters(self, brokers: Collection[str] | None = None) -> dict[str, str]:
        """Return broker name → address of its master, for all sets that have a master, or for the named sets.

        Raises:
            BrokerUnavailableError: A named set has no master.
        """
        registered = (await self.cluster_info()).broker_addr_table
        addresses = {name: broker.master_address for name, broker in sorted(registered.items())}
        if brokers is None:
            return {name: address for name, address in addresses.items() if address is not None}
        found: dict[str, str] = {}
        for name in sorted(brokers):
            address = addresses.get(name)
            if address is None:
                raise BrokerUnavailableError(name)
            found[name] = address
        return found

    async def topics(self) -> list[str]:
        """Return the names of all topics that have a route."""
        response = await self._engine.name_servers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return read_body(TopicList.decode, response, self._engine.name_servers.current).topic_list

    async def broker_runtime_info(self, broker: str) -> Mapping[str, str]:
        """Return a broker's runtime statistics, under RocketMQ's names."""
        return (await self._one(KVTable.decode, broker, RequestCode.GET_BROKER_RUNTIME_INFO)).table

    async def broker_config(self, broker: str) -> Mapping[str, str]:
        """Return a broker's settings, under RocketMQ's names."""
        return await self._one(decode_properties_text, broker, RequestCode.GET_BROKER_CONFIG)

    async def create_topic(self, config: TopicConfig, brokers: Collection[str] | None = None) -> None:
        """Create or change a topic on all broker sets, or on the named ones."""
        _check_topic(config.topic_name)
        header = CreateTopicHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=int(config.perm),
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()),
        )
        await self._call_masters(RequestCode.UPDATE_AND_CREATE_TOPIC, header, brokers=brokers)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on all broker sets, then its routes on all name servers."""
        _check_topic(topic)
        await self._call_masters(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic=topic))
        header = DeleteTopicInNamesrvHeader(topic=topic)
        await self._engine.name_servers.send_to_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        self._engine.forget_topic(topic)

    async def topic_config(self, topic: str, broker: str) -> TopicConfig | None:
        """Return a topic's configuration on one broker set, or None if the topic does not exist there."""
        header = GetTopicConfigHeader(topic=topic)
        absent = ResponseCode.TOPIC_NOT_EXIST
        return await _none_on_code(absent, self._one(decode_topic_config, broker, RequestCode.GET_TOPIC_CONFIG, header))

    async def topic_configs(self, broker: str) -> Mapping[str, TopicConfig]:
        """Return all topics of one broker set."""
        decode = TopicConfigSerializeWrapper.decode
        return (await self._one(decode, broker, RequestCode.GET_ALL_TOPIC_CONFIG)).topic_config_table

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the offsets and last store times of a topic's queues."""
        header = GetTopicStatsHeader(topic=topic)
        tables = await self._all(TopicStatsTable.decode, topic, RequestCode.GET_TOPIC_STATS_INFO, header)
        return {queue: offset for table in tables for queue, offset in table.offset_table.items()}

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic."""
        header = QueryTopicConsumeByWhoHeader(topic=topic)
        lists = await self._all(GroupList.decode, topic, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return sorted({group for one in lists for group in one.group_list})

    async def put_group(self, group: SubscriptionGroup, brokers: Collection[str] | None = None) -> None:
        """Create or change a consumer group on all broker sets, or on the named ones."""
        _check_group(group.group_name)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._call_masters(code, body=encode_subscription_group(group), brokers=brokers)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on all broker sets; with `clean_offsets`, delete its committed offsets too."""
        _check_group(group)
        header = DeleteSubscriptionGroupHeader(group_name=group, clean_offset=clean_offsets)
        await self._call_masters(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_config(self, group: str, broker: str) -> SubscriptionGroup | None:
        """Return a group's configuration on one broker set, or None if the group does not exist there."""
        header = GetSubscriptionGroupConfigHeader(group=group)
        call = self._one(decode_subscription_group, broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        return await _none_on_code(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, call)

    async def group_configs(self, broker: str) -> Mapping[str, SubscriptionGroup]:
        """Return all groups of one broker set."""
        decode = SubscriptionGroupWrapper.decode
        return (await self._one(decode, broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).subscription_group_table

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's committed offsets and its queues' maximum offsets, for all its topics or for one."""
        header = GetConsumeStatsHeader(consumer_group=group, topic=topic)
        merged: dict[MessageQueue, OffsetWrapper] = {}
        for name in await self.masters():
            merged.update(
                (await self._one(ConsumeStats.decode, name, RequestCode.GET_CONSUME_STATS, header)).offset_table
            )
        return merged

    async def consumer_connections(self, group: str) -> dict[str, ConsumerConnection]:
        """Return broker name → the group's instances there; leave out sets where no instance is online."""
        found: dict[str, ConsumerConnection] = {}
        for name in await self.masters():
            header = GetConsumerConnectionListHeader(consumer_group=group)
            call = self._one(ConsumerConnection.decode, name, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            connections = await _none_on_code(ResponseCode.CONSUMER_NOT_ONLINE, call)
            if connections is not None:
                found[name] = connections
        return found

    async def producer_connections(self, group: str) -> dict[str, ProducerConnection]:
        """Return broker name → the producer group's instances there; leave out sets that know no instance."""
        found: dict[str, ProducerConnection] = {}
        for name in await self.masters():
            header = GetProducerConnectionListHeader(producer_group=group)
            call = self._one(ProducerConnection.decode, name, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            connections = await _none_on_code(ResponseCode.SYSTEM_ERROR, call)
            if connections is not None:
                found[name] = connections
        return found

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = QUERY_MESSAGES_MAX,
        begin_ms: int = 0,
        end_ms: int = _FOR_EVER_MS,
    ) -> list[StoredMessage]:
        """Return messages of a topic with a key that were stored between two moments (wall ms), oldest first.

        The index stores hashes of keys, so brokers may return messages with other keys; these are left out.
        """
        found = await self._query(topic, key, max_messages, begin_ms, end_ms, is_unique=False)
        return [message for message in found if key in message.keys][:max_messages]

    async def query_by_unique_key(self, topic: str, message_id: str) -> list[StoredMessage]:
        """Return the messages of a topic with a message id. There are several if the message was sent more than once."""
        found = await self._query(topic, message_id, QUERY_MESSAGES_MAX, 0, _FOR_EVER_MS, is_unique=True)
        return [message for message in found if message.message_id == message_id]

    async def view_message(self, stored_id: str) -> StoredMessage | None:
        """Return the message at a stored id, or None if there is none.

        The address in the id is only compared with the addresses of registered brokers. An id from outside must not
        make the client connect to an arbitrary address.
        """
        try:
            host, offset = decode_stored_id(stored_id)
        except InvalidIdError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        registered = (await self.cluster_info()).broker_addr_table
        address = str(host)
        if all(address not in broker.broker_addrs.values() for broker in registered.values()):
            return None
        call = self._engine.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=offset))
        response = await _none_on_code(ResponseCode.SYSTEM_ERROR, call)
        return None if response is None else _records(response, address, lambda data: [decode_record(data)])[0]

    async def _query(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int, *, is_unique: bool
    ) -> list[StoredMessage]:
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=max_messages,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=True if is_unique else None,
        )
        found: list[StoredMessage] = []
        for address in (await self._masters_of(topic)).values():
            call = self._engine.call(address, RequestCode.QUERY_MESSAGE, header)
            response = await _none_on_code(ResponseCode.QUERY_NOT_FOUND, call)
            if response is not None:
                found += _records(response, address, lambda data: list(iter_records(data)))
        return sorted(found, key=lambda message: message.stored_at_ms)

    async def _masters_of(self, topic: str) -> dict[str, str]:
        route = await self._engine.route(topic)
        return {queue.broker_name: self._engine.master_address(queue.broker_name) for queue in route.queue_datas}

    async def _one(
        self, decode: Callable[[bytes], T], broker: str, code: int, header: EncodableHeader | None = None
    ) -> T:
        address = (await self.masters([broker]))[broker]
        return read_body(decode, await self._engine.call(address, code, header), address)

    async def _all(self, decode: Callable[[bytes], T], topic: str, code: int, header: EncodableHeader) -> list[T]:
        """Return the answers from the masters of all sets that hold a topic."""
        return [
            read_body(decode, await self._engine.call(address, code, header), address)
            for address in (await self._masters_of(topic)).values()
        ]

    async def _call_masters(
        self,
        code: int,
        header: EncodableHeader | None = None,
        *,
        body: bytes | None = None,
        brokers: Collection[str] | None = None,
    ) -> None:
        for address in (await self.masters(brokers)).values():
            await self._engine.call(address, code, header, body=body)


async def _none_on_code(code: int, call: Awaitable[T]) -> T | None:
    """Return the result of a call, or None if the broker refuses it with this code."""
    try:
        return await call
    except BrokerError as error:
        if error.code == code:
            return None
        raise


def _records(
    response: RemotingCommand, address: str, decode: Callable[[bytes], Sequence[StoredMessage]]
) -> Sequence[StoredMessage]:
    try:
        return decode(response.body_bytes)
    except RecordError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {error}", address) from None


def _check_topic(name: str) -> None:
    try:
        check_topic(name)
    except InvalidNameError as error:
        raise InvalidArgumentError(error.field, error.value, error.reason) from None


def _check_group(name: str) -> None:
    try:
        check_group(name)
    except InvalidNameError as error:
        raise InvalidArgumentError(error.field, error.value, error.reason) from None
