"""Clients and their connections: 34, 35, 38, 40, 203, 204, 307, 900021 and 900023."""

import msgspec

from gantry.remoting.headers.fields import Header


class HeartbeatResponseHeader(Header):
    """The response of a 5.x broker to a heartbeat."""

    is_support_heart_beat_v2: bool | None = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=None)
    is_sub_change: bool | None = msgspec.field(name="IS_SUB_CHANGE", default=None)


class UnregisterClientHeader(Header):
    """35: an instance leaves a group."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListHeader(Header):
    """38: get the client ids of the instances of a group."""

    consumer_group: str


class NotifyConsumerIdsChangedHeader(Header):
    """40, broker to client: the instances of the group have changed, so the client must rebalance the queues."""

    consumer_group: str


class GetConsumerConnectionListHeader(Header):
    """203: get the connections of a consumer group."""

    consumer_group: str


class GetProducerConnectionListHeader(Header):
    """204: get the connections of a producer group."""

    producer_group: str


class GetConsumerRunningInfoHeader(Header):
    """307, tool to broker and broker to client: get the state of one instance."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class GroupVariantsHeader(Header):
    """900021: get what the members of a consumer group announce."""

    consumer_group: str


class TopicProducersHeader(Header):
    """900023: get the producers of a topic."""

    topic: str
