"""The connections of a group and the state of a consumer: the bodies of the responses to 203, 204 and 307.

The docstrings begin with the request code: 203 GET_CONSUMER_CONNECTION_LIST, 204 GET_PRODUCER_CONNECTION_LIST, 307
GET_CONSUMER_RUNNING_INFO. The broker answers 203 and 204. It forwards 307 to the consumer's client, which answers.

A Bean is the shape of the JSON. Maps with a MessageQueue as key are read and written in different shapes (fastjson.py),
so such a body has a _Read… and a _Written… class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.beans import UNSET, SubscriptionDataBean, Unset
from gantry.remoting.bodies.fastjson import (
    JsonBody,
    MessageQueueBean,
    decode_json,
    encode_json,
    queue_keys,
    queue_table,
)


class ClientConnection(JsonBody, kw_only=True):
    """The connection of one instance.

    Attributes:
        client_addr: Address of the client, `host:port`.
        client_id: The instance's client id.
        language: Name of the LanguageCode.
        version: The client's release as RocketMQ's version number.
    """

    client_addr: str
    client_id: str
    language: str = "OTHER"
    version: int = 0


class _ConsumerConnectionBean(JsonBody, kw_only=True):
    connection_set: list[ClientConnection] = msgspec.field(default_factory=list)
    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    subscription_table: dict[str, SubscriptionDataBean] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """203: the instances of a consumer group and the group's subscriptions.

    Attributes:
        connections: The instances.
        subscriptions: Topic → the group's subscription.
        consume_type: Push or pull, from the latest heart-beat; so are the next two fields.
        message_model: CLUSTERING or BROADCASTING.
        consume_from_where: The position at which a group without offsets begins.
    """

    connections: tuple[ClientConnection, ...] = ()
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _ConsumerConnectionBean(
                connection_set=list(self.connections),
                consume_from_where=self.consume_from_where,
                consume_type=self.consume_type,
                message_model=self.message_model,
                subscription_table={
                    topic: SubscriptionDataBean.of(subscription) for topic, subscription in self.subscriptions.items()
                },
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data does not describe the connections of a consumer group.
        """
        bean = decode_json(_ConsumerConnectionBean, data)
        table = bean.subscription_table or {}
        return cls(
            connections=tuple(bean.connection_set),
            subscriptions={topic: subscription.to_model() for topic, subscription in table.items()},
            consume_type=bean.consume_type,
            message_model=bean.message_model,
            consume_from_where=bean.consume_from_where,
        )


class ProducerConnection(JsonBody, kw_only=True):
    """204: the instances of a producer group."""

    connection_set: list[ClientConnection] = msgspec.field(default_factory=list)


class ProcessQueueInfo(JsonBody, kw_only=True):
    """307: the messages of one queue that a consumer has pulled and not yet consumed (its ProcessQueue).

    Counts are messages, offsets are queue offsets, timestamps are wall ms. `droped`, as spelt on the wire, says
    that the consumer no longer holds the queue.

    A field that is UNSET is not known and not on the wire. RocketMQ's own tools then show 0.
    """

    cached_msg_count: int | Unset = UNSET
    cached_msg_max_offset: int | Unset = UNSET
    cached_msg_min_offset: int | Unset = UNSET
    cached_msg_size_in_mi_b: int | Unset = msgspec.field(name="cachedMsgSizeInMiB", default=UNSET)
    commit_offset: int | Unset = UNSET
    droped: bool = False
    last_consume_timestamp: int | Unset = UNSET
    last_lock_timestamp: int | Unset = UNSET
    last_pull_timestamp: int | Unset = UNSET
    locked: bool | Unset = UNSET
    transaction_msg_count: int | Unset = UNSET
    transaction_msg_max_offset: int | Unset = UNSET
    transaction_msg_min_offset: int | Unset = UNSET
    try_unlock_times: int | Unset = UNSET


class ConsumeStatus(JsonBody, kw_only=True):
    """307: the consumption of one topic.

    The fields with tps are messages per second, those with rt (response time) are averages in ms.
    `consume_failed_msgs` is the number of messages that failed in the last hour.
    """

    consume_failed_msgs: int = 0
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)


class _ReadRunningInfo(JsonBody, kw_only=True):
    jstack: str | None = None
    mq_pop_table: Any = None
    mq_table: list[tuple[MessageQueueBean, ProcessQueueInfo]] | dict[str, ProcessQueueInfo] | None = None
    properties: dict[str, str] | None = None
    status_table: dict[str, ConsumeStatus] | None = None
    subscription_set: list[SubscriptionDataBean] | None = None
    user_consumer_info: dict[str, str] | None = None


class _WrittenRunningInfo(JsonBody, kw_only=True):
    jstack: str | Unset
    mq_pop_table: dict[str, str]
    mq_table: msgspec.Raw
    properties: dict[str, str]
    status_table: dict[str, ConsumeStatus]
    subscription_set: list[SubscriptionDataBean]
    user_consumer_info: dict[str, str]


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """307: the state of one consumer.

    Attributes:
        properties: The consumer's settings, and the PROP_… values (docs/formats/remoting.md).
        subscriptions: The subscriptions.
        queues: The queues that the consumer holds now, with their messages.
        status_table: Topic → its consumption. Gantry's consumers send none.
        user_consumer_info: Free entries for people. Gantry's consumers send none.
        jstack: Stack traces of the client's threads as text, if the request asked for them; else None.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = ()
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: Mapping[str, str] = field(default_factory=dict)
    jstack: str | None = None

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _WrittenRunningInfo(
                jstack=UNSET if self.jstack is None else self.jstack,
                mq_pop_table={},
                mq_table=queue_keys(self.queues.items()),
                properties=dict(self.properties),
                status_table=dict(self.status_table),
                subscription_set=[SubscriptionDataBean.of(subscription) for subscription in self.subscriptions],
                user_consumer_info=dict(self.user_consumer_info),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data does not describe the state of a consumer.
        """
        bean = decode_json(_ReadRunningInfo, data)
        return cls(
            properties=bean.properties or {},
            subscriptions=tuple(subscription.to_model() for subscription in bean.subscription_set or ()),
            queues=queue_table(bean.mq_table or {}),
            status_table=bean.status_table or {},
            user_consumer_info=bean.user_consumer_info or {},
            jstack=bean.jstack,
        )
