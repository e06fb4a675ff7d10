"""What brokers, clients and tools ask a name server: 103, 104, 105, 205, 216, 217, 224, 322, 327, 901 and 904."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64


class RegisterBrokerHeader(Header):
    """103: a broker and, in the body, its topics. body_crc32 0 means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = msgspec.field(name="bodyCrc32", default=None)
    zone_name: str | None = msgspec.field(name="__ZONE_NAME", default=None)


class RegisterBrokerResponseHeader(Header):
    """Told to slaves: where their master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerHeader(Header):
    """104: a broker stops."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class GetRouteInfoHeader(Header):
    """105: where is a topic? A zone may narrow the answer."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = msgspec.field(name="__ZONE_NAME", default=None)
    zone_mode: bool | None = msgspec.field(name="__ZONE_MODE", default=None)


class QueryDataVersionHeader(Header):
    """322: is this broker's registration (its DataVersion is the body) still what you know?"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The answer to 322."""

    changed: bool


class WipeWritePermHeader(Header):
    """205: nobody may send to this broker any more."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """How many topics were touched."""

    wipe_topic_count: Int32


class AddWritePermHeader(Header):
    """327: the opposite of 205."""

    broker_name: str


class AddWritePermResponseHeader(Header):
    """How many topics were touched."""

    add_topic_count: Int32


class DeleteTopicInNamesrvHeader(Header):
    """216: forget a topic, in one cluster or everywhere."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicHeader(Header):
    """217: a topic's queues (in the body) on brokers that are known already."""

    topic: str


class GetTopicsByClusterHeader(Header):
    """224: topics with a queue in the cluster."""

    cluster: str


class GetBrokerMemberGroupHeader(Header):
    """901: the members of a broker set."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatHeader(Header):
    """904 (5.x): alive, without topics."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None
