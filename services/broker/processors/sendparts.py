"""The parts that sends share with the replies of request-reply, which are stored as messages, too."""

from typing import Final

from gantry.model.address import pack_host
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from services.broker.assembly import Broker
from services.broker.durabilitywaiters import Outcome
from services.broker.processors.sendgate import SendChecks
from services.broker.processors.sendproperties import SendProperties
from services.broker.store.results import PutStatus

BORN_HOST: Final = "born_host"
"""Name of the attribute of a connection with the packed address of its peer."""
PUT_STATUS_CODES = {
    PutStatus.NOT_WRITABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    # RocketMQ: SYSTEM_ERROR, which may mean anything. Here the code means that nothing was written, because the disk is
    # full.
    PutStatus.CREATE_FILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
}
OUTCOME_CODES = {
    Outcome.FLUSH_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    Outcome.REPLICATION_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}


def note_peer(channel: Channel) -> None:
    """Store the packed address of a new connection's peer. It is the born host of every message from the connection."""
    channel.attributes[BORN_HOST] = pack_host(channel.peer)


def born_host(channel: Channel) -> bytes:
    """Return the packed address of a connection's peer."""
    packed: bytes = channel.attributes[BORN_HOST]
    return packed


def send_checks(broker: Broker) -> SendChecks:
    """Build checks from the broker's parts; they follow the changes of topics."""
    tables = broker.tables
    checks = SendChecks(
        topics=tables.topics,
        groups=tables.groups,
        stats=broker.stats,
        live_settings=broker.core.live_settings,
        clock=broker.clock,
        rng=broker.rng,
        create_topic=broker.create_topic,
    )
    broker.on_topic_changed.append(checks.topic_changed)
    return checks


def send_properties(broker: Broker) -> SendProperties:
    """Build the completion of properties from the broker's parts."""
    return SendProperties(broker.identity, broker.unique_keys.make, broker.special_properties, broker.quick_hooks)
