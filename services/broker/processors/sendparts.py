"""The parts that sends share with the replies of request-reply, which are stored as messages, too."""

import struct
from collections.abc import Sequence
from typing import Final

from gantry.model.address import pack_host
from gantry.model.batch import decode_batch
from gantry.model.errors import CorruptRecordError
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.assembly import Broker
from services.broker.durabilitywaiters import Outcome
from services.broker.processors.sendgate import SendChecks
from services.broker.processors.sendproperties import SendProperties
from services.broker.refusal import RefusalError
from services.broker.store.results import BatchMessage, PutStatus

# An empty batch item takes only 22 bytes. The limit keeps a batch of empty messages from becoming far too many records.
BATCH_COUNT_MAX: Final = 10_000
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


def stored_ids(prefix: str, offsets: Sequence[int]) -> str:
    """Return stored ids, separated by commas. Formatting all digits at once takes half the time."""
    digits = struct.pack(f">{len(offsets)}Q", *offsets).hex().upper()
    return ",".join([prefix + digits[at : at + 16] for at in range(0, len(digits), 16)])


def bad_body(body: bytes | bytearray | memoryview | None, size_max: int) -> RefusalError:
    """Return the refusal of a message without a body, or with one that is too large."""
    if body is None:
        return RefusalError(ResponseCode.MESSAGE_ILLEGAL, "message body is missing: the request has none")
    reason = f"message body of {len(body)} bytes, maxMessageSize is {size_max}"
    return RefusalError(ResponseCode.MESSAGE_ILLEGAL, reason)


def batch_items(
    request: RemotingCommand, size_max: int, shared: bytes, properties: SendProperties
) -> list[BatchMessage]:
    """Return the messages of a batch in the form in which they are stored.

    Args:
        request: The request; its body is the batch.
        size_max: Largest size of the body.
        shared: Properties of the whole batch.
        properties: Completes the properties of each message.

    Raises:
        RefusalError: The batch is too large or damaged, or a message of it can't be stored.
    """
    body = request.body_bytes
    if not body or len(body) > size_max:
        raise bad_body(body or None, size_max)
    try:
        items = decode_batch(body)
    except CorruptRecordError as error:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"batch body {error}") from None
    if len(items) > BATCH_COUNT_MAX:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL, f"batch of {len(items)} messages, at most {BATCH_COUNT_MAX} are allowed"
        )
    complete = properties.complete_item
    return [(flag, item_body, *complete(data, shared)) for flag, item_body, data in items]


def put_refusal(status: PutStatus, reason: str, topic: str) -> RefusalError:
    """Return the refusal of a message that the store has rejected."""
    if status is PutStatus.NOT_WRITABLE:
        return RefusalError(PUT_STATUS_CODES[status], f"service not available now: {reason}")
    remark = f"topic {topic}: the message was not stored: {reason or status.value}"
    return RefusalError(PUT_STATUS_CODES[status], remark)


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
        windows=broker.windows,
        senders=tables.senders,
        identity=broker.identity,
    )
    broker.on_topic_changed.append(checks.topic_changed)
    return checks


def send_properties(broker: Broker) -> SendProperties:
    """Build the completion of properties from the broker's parts."""
    return SendProperties(broker.identity, broker.unique_keys.make, broker.special_properties, broker.quick_hooks)
