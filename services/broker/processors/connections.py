"""Requests of tools about connected clients (203, 204, 328, 343, 345, 900021, 900023), and about the state of one client (307)."""

from collections.abc import Mapping
from itertools import islice

import msgspec

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import ClientConnection, ConsumerConnection, ProducerConnection, TopicList
from gantry.remoting.bodies.beans import SubscriptionDataBean
from gantry.remoting.bodies.producers import PRODUCERS_MAX, TopicProducer, TopicProducers
from gantry.remoting.bodies.variants import CLIENTS_NAMED_MAX, GroupVariants, MemberVariant, WantedTopic
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RequestFailedError, RequestTimeoutError
from gantry.remoting.headers import (
    GetConsumerConnectionListHeader,
    GetConsumerRunningInfoHeader,
    GetProducerConnectionListHeader,
)
from gantry.remoting.headers.client import GroupVariantsHeader, TopicProducersHeader
from gantry.remoting.headers.fields import Header
from services.broker.assembly import Broker
from services.broker.identity import BrokerIdentity
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.clients import ClientInfo
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.producers import ProducerTable
from services.broker.registry.senders import Sender, SenderTable
from services.broker.registry.topics import TopicTable
from services.broker.registry.variants import Signature, Variant

# Some clients (ali-ons) never reply to requests of a broker. RocketMQ waits 10 s for them.
CLIENT_TIMEOUT_MS = 10_000


class _GroupHeader(Header):
    """The header of request 343."""

    group: str


class _GroupTopicHeader(Header):
    """The header of request 345."""

    group: str
    topic: str


class _ProducerRow(msgspec.Struct, rename="camel"):
    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int = 0


class ConnectionProcessor:
    """Answers requests of tools about clients."""

    def __init__(
        self,
        *,
        producers: ProducerTable,
        consumers: ConsumerTable,
        offsets: OffsetTable,
        senders: SenderTable,
        topics: TopicTable,
        identity: BrokerIdentity,
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._offsets = offsets
        self._senders = senders
        self._topics = topics
        self._identity = identity

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.GET_CONSUMER_CONNECTION_LIST: self.consumers,
                code.GET_PRODUCER_CONNECTION_LIST: self.producers,
                code.GET_ALL_PRODUCER_INFO: self.all_producers,
                code.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
                code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of,
                code.GET_CONSUMER_RUNNING_INFO: self.running_info,
                code.GANTRY_GROUP_VARIANTS: self.variants,
                code.GANTRY_TOPIC_PRODUCERS: self.producers_of,
            }
        )

    def consumers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """203: return the instances of a consumer group and its subscriptions."""
        group = GetConsumerConnectionListHeader.from_ext(request.ext_fields).consumer_group
        info = self._consumers.find(group)
        if info is None:
            raise RefusalError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        body = ConsumerConnection(
            connections=tuple(_connection(client) for client in info.members.values()),
            subscriptions=info.subscriptions,
            consume_type=ConsumeType(info.consume_type),
            message_model=MessageModel(info.message_model),
            consume_from_where=ConsumeFromWhere(info.consume_from_where),
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def variants(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900021: return what the members of a group announce, and since when they differ."""
        group = GroupVariantsHeader.from_ext(request.ext_fields).consumer_group
        info = self._consumers.find(group)
        if info is None:
            raise RefusalError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        variants = sorted(info.variants.all().items(), key=lambda item: item[1].since_ms)
        body = GroupVariants(
            differs_since=info.variants.differs_since_ms,
            variants=[_variant(signature, variant) for signature, variant in variants],
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """204: return the instances of a producer group."""
        group = GetProducerConnectionListHeader.from_ext(request.ext_fields).producer_group
        members = self._producers.members(group)
        if not members:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        body = ProducerConnection(connection_set=[_connection(client) for client in members]).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def producers_of(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900023: return the connected producers that have sent to a topic."""
        topic = TopicProducersHeader.from_ext(request.ext_fields).topic
        if self._topics.find(topic) is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        senders = self._senders.newest(topic, PRODUCERS_MAX + 1)
        ids = {sender.channel: self._producers.ids_on(sender.channel) for sender in senders}
        body = TopicProducers(
            is_truncated=len(senders) > PRODUCERS_MAX or self._senders.is_full,
            producers=[_producer(sender, ids[sender.channel]) for sender in senders[:PRODUCERS_MAX]],
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def all_producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """328: return the instances of all producer groups."""
        rows = {
            group: [
                _ProducerRow(
                    client_id=client.client_id,
                    language=client.language.name,
                    last_update_timestamp=client.seen_at_ms,
                    remote_ip=f"/{client.address}",
                    version=client.version,
                )
                for client in members
            ]
            for group, members in self._producers.groups().items()
        }
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=msgspec.json.encode({"data": rows}))

    def topics_of(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """343: return the topics on which a group has committed offsets."""
        group = _GroupHeader.from_ext(request.ext_fields).group
        body = TopicList(topic_list=self._offsets.topics_of(group), broker_addr=self._identity.address).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def subscription_of(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """345: return the subscription of a group to one topic."""
        header = _GroupTopicHeader.from_ext(request.ext_fields)
        info = self._consumers.find(header.group)
        subscription = None if info is None else info.subscriptions.get(header.topic)
        body = {
            "group": header.group,
            "subscriptionData": None if subscription is None else SubscriptionDataBean.of(subscription),
            "topic": header.topic,
        }
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            body=msgspec.json.encode({key: value for key, value in body.items() if value is not None}),
        )

    async def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """307: ask one instance for its state and return the reply."""
        header = GetConsumerRunningInfoHeader.from_ext(request.ext_fields)
        group, client_id = header.consumer_group, header.client_id
        info = self._consumers.find(group)
        client = None if info is None else info.find_member(client_id)
        if client is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        try:
            answer = await client.connection.request(
                RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), CLIENT_TIMEOUT_MS
            )
        except RequestTimeoutError as error:
            raise RefusalError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> does not answer: {error}"
            ) from None
        except RequestFailedError as error:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online: {error}"
            ) from None
        return RemotingCommand.response_to(request, answer.code, remark=answer.remark, body=answer.body)


def _connection(client: ClientInfo) -> ClientConnection:
    return ClientConnection(
        client_addr=client.address,
        client_id=client.client_id,
        language=client.language.name,
        version=client.version,
    )


def _producer(sender: Sender, ids: Mapping[str | None, set[str]]) -> TopicProducer:
    """Return a sender with its client id; `ids` are those on its connection by group, and all of them under None."""
    found = ids.get(sender.group, ids[None])
    return TopicProducer(
        address=str(sender.channel.peer),
        client_id=next(iter(found)) if len(found) == 1 else None,
        group=sender.group,
        language=sender.language.name,
        sent_at=sender.sent_at_ms,
        version=sender.version,
    )


def _variant(signature: Signature, variant: Variant) -> MemberVariant:
    return MemberVariant(
        client_ids=[client_id for _, client_id in islice(variant.members, CLIENTS_NAMED_MAX)],
        clients=len(variant.members),
        message_model=signature.message_model,
        since=variant.since_ms,
        subscriptions=[
            WantedTopic(topic=one.topic, expression_type=one.expression_type, expression=one.expression)
            for one in sorted(signature.wanted)
        ],
    )


def build(broker: Broker) -> ConnectionProcessor:
    """Build the processor from the broker's parts."""
    tables = broker.tables
    return ConnectionProcessor(
        producers=tables.producers,
        consumers=tables.consumers,
        offsets=tables.offsets,
        senders=tables.senders,
        topics=tables.topics,
        identity=broker.identity,
    )
