"""Reads and checks a broker's registration (pure).

Source: RocketMQ 5.3 DefaultRequestProcessor.registerBroker; docs/formats/remoting.md.
"""

import zlib

from gantry.model.route import QueueData
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import RegisterBrokerBody
from gantry.remoting.headers.namesrv import RegisterBrokerHeader
from gantry.runtime.digits import parse_digits
from services.namesrv.errors import RefusedError
from services.namesrv.liveness import HEARTBEAT_TIMEOUT_MS, BrokerKey
from services.namesrv.routetable import Registration

NAME_LENGTH_MAX = 255
_PORT_MAX = 65_535
_CRC_MASK = 0x7FFF_FFFF


def read_registration(header: RegisterBrokerHeader, body: bytes, *, version: int) -> Registration:
    """Read a registration.

    Args:
        header: Header of the request.
        body: Body of the request as received, maybe compressed; empty if the broker sends no topics.
        version: Protocol version of the command.

    Raises:
        RefusedError: The checksum does not match, or a value is invalid. The message names field and value.
        BodyError: The body can't be decoded.
    """
    expected = header.body_crc32 or 0
    found = zlib.crc32(body) & _CRC_MASK
    if expected not in (0, found):
        raise RefusedError(f"crc32 not match: bodyCrc32 is {expected}, that of the {len(body)} bytes is {found}")
    check_name("brokerName", header.broker_name)
    check_name("clusterName", header.cluster_name)
    check_address("brokerAddr", header.broker_addr)
    if header.broker_id < 0:
        raise RefusedError(f"brokerId: {header.broker_id} is below 0")
    timeout_ms = header.heartbeat_timeout_millis
    if timeout_ms is not None and timeout_ms <= 0:
        raise RefusedError(f"heartbeatTimeoutMillis: {timeout_ms} is not above 0")
    decoded = RegisterBrokerBody.decode(body, compressed=bool(header.compressed), version=version)
    topics = decoded.topics.topic_config_table
    for name, config in topics.items():
        check_queues(name, config)
    return Registration(
        key=BrokerKey(header.cluster_name, header.broker_addr),
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        topics=topics,
        data_version=decoded.topics.data_version,
        ha_server_address=header.ha_server_addr,
        filter_servers=decoded.filter_servers,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        enable_acting_master=header.enable_acting_master,
        zone_name=header.zone_name,
    )


def check_name(field: str, name: str) -> None:
    """Raise RefusedError if a name is empty, too long, or has characters that can't be printed."""
    if not name:
        raise RefusedError(f"{field}: is empty")
    if len(name) > NAME_LENGTH_MAX:
        raise RefusedError(f"{field}: {name[:40]!r}… has {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed")
    if not name.isprintable():
        raise RefusedError(f"{field}: {name!r} has characters that can't be printed")


def check_address(field: str, address: str) -> None:
    """Raise RefusedError if an address is not host:port, so that no client could connect to it."""
    host, _, digits = address.rpartition(":")
    if not host or not parse_digits(digits, _PORT_MAX):
        raise RefusedError(f"{field}: {address[:100]!r} is not host:port")


def check_queues(topic: str, queues: TopicConfig | QueueData) -> None:
    """Raise RefusedError if no client could use the topic: its name is invalid, or a number is below 0."""
    check_name("topic", topic)
    for field, value in (
        ("readQueueNums", queues.read_queue_nums),
        ("writeQueueNums", queues.write_queue_nums),
        ("perm", queues.perm),
    ):
        if value < 0:
            raise RefusedError(f"{field} of topic {topic}: {value} is below 0")
