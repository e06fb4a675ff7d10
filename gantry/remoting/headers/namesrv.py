"""The requests to a name server: 103, 104, 105, 205, 216, 217, 224, 322, 327, 901 and 904."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64


class RegisterBrokerHeader(Header):
    """103: register a broker and its topics, which are in the body. `body_crc32` 0 means: do not check the body."""

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
    """The response to 103. Slaves get the address of their master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerHeader(Header):
    """104: unregister a broker that stops."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class GetRouteInfoHeader(Header):
    """105: get the route of a topic. A zone may restrict the route."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = msgspec.field(name="__ZONE_NAME", default=None)
    zone_mode: bool | None = msgspec.field(name="__ZONE_MODE", default=None)


class QueryDataVersionHeader(Header):
    """322: ask whether the registration of a broker has changed. The body is the DataVersion of the broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The response to 322."""

    changed: bool


class WipeWritePermHeader(Header):
    """205: remove the write permission of a broker from all its topics."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """The response to 205: the number of changed topics."""

    wipe_topic_count: Int32


class AddWritePermHeader(Header):
    """327: add the write permission that 205 removed."""

    broker_name: str


class AddWritePermResponseHeader(Header):
    """The response to 327: the number of changed topics."""

    add_topic_count: Int32


class DeleteTopicInNamesrvHeader(Header):
    """216: delete a topic from the name server, in one cluster or in all clusters."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicHeader(Header):
    """217: register the queues of a topic on known brokers. The body contains the queues."""

    topic: str


class GetTopicsByClusterHeader(Header):
    """224: get the topics that have a queue in the cluster."""

    cluster: str


class GetBrokerMemberGroupHeader(Header):
    """901: get the members of a broker set."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatHeader(Header):
    """904 (5.x): the heartbeat of a broker, without topics."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None
