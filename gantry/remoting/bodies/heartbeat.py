"""The groups and subscriptions of a client: the bodies of 34 and 46."""

from dataclasses import dataclass
from typing import Self

import msgspec

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.remoting.bodies.beans import UNSET, SubscriptionDataBean, Unset
from gantry.remoting.bodies.fastjson import JsonBody, encode_json


class _ConsumerDataBean(JsonBody, kw_only=True):
    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    group_name: str
    message_model: MessageModel | None = None
    subscription_data_set: list[SubscriptionDataBean] | None = None
    unit_mode: bool = False


class _ProducerDataBean(JsonBody, kw_only=True):
    group_name: str


class _HeartbeatBean(JsonBody, kw_only=True):
    client_id: str = msgspec.field(name="clientID")  # Other bodies spell it clientId.
    consumer_data_set: list[_ConsumerDataBean] | None = None
    heartbeat_fingerprint: int = 0
    producer_data_set: list[_ProducerDataBean] | None = None
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """The data of one consumer group that one instance sends."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """34: the groups of a client. A client that sends a fingerprint may omit unchanged subscriptions."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _HeartbeatBean(
                client_id=self.client_id,
                consumer_data_set=[_consumer_bean(consumer) for consumer in self.consumers],
                heartbeat_fingerprint=self.heartbeat_fingerprint,
                producer_data_set=[_ProducerDataBean(group_name=group) for group in self.producer_groups],
                without_sub=self.without_sub,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body. Members that the client omits get the defaults of Java.

        Raises:
            BodyError: The data is not a heartbeat.
        """
        bean = _HeartbeatBean.decode(data)
        return cls(
            client_id=bean.client_id,
            producer_groups=tuple(producer.group_name for producer in bean.producer_data_set or ()),
            consumers=tuple(_consumer_of(consumer) for consumer in bean.consumer_data_set or ()),
            heartbeat_fingerprint=bean.heartbeat_fingerprint,
            without_sub=bean.without_sub,
        )


class _CheckClientConfigBean(JsonBody, kw_only=True):
    client_id: str
    group: str
    namespace: str | Unset | None = UNSET
    subscription_data: SubscriptionDataBean


@dataclass(frozen=True, slots=True)
class CheckClientConfig:
    """46: ask whether the broker accepts a subscription."""

    client_id: str
    group: str
    subscription: SubscriptionData
    namespace: str | None = None

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _CheckClientConfigBean(
                client_id=self.client_id,
                group=self.group,
                namespace=UNSET if self.namespace is None else self.namespace,
                subscription_data=SubscriptionDataBean.of(self.subscription),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a request of this kind.
        """
        bean = _CheckClientConfigBean.decode(data)
        namespace = None if bean.namespace is UNSET else bean.namespace
        return cls(bean.client_id, bean.group, bean.subscription_data.to_model(), namespace)


def _consumer_bean(consumer: ConsumerData) -> _ConsumerDataBean:
    return _ConsumerDataBean(
        consume_from_where=consumer.consume_from_where,
        consume_type=consumer.consume_type,
        group_name=consumer.group_name,
        message_model=consumer.message_model,
        subscription_data_set=[SubscriptionDataBean.of(subscription) for subscription in consumer.subscriptions],
        unit_mode=consumer.unit_mode,
    )


def _consumer_of(bean: _ConsumerDataBean) -> ConsumerData:
    return ConsumerData(
        group_name=bean.group_name,
        consume_type=bean.consume_type or ConsumeType.CONSUME_PASSIVELY,
        message_model=bean.message_model or MessageModel.CLUSTERING,
        consume_from_where=bean.consume_from_where or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscriptions=tuple(subscription.to_model() for subscription in bean.subscription_data_set or ()),
        unit_mode=bean.unit_mode,
    )
