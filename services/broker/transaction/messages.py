"""The messages of a transaction: half, committed and op messages, and copies of half messages. Pure.

A half message is the message of the producer, stored under another topic until the transaction is decided. It keeps
its own topic and queue as the properties REAL_TOPIC and REAL_QID. A commit stores the message again, under its own
topic, with all properties of the half message. An op message lists the queue offsets of half messages that need no
further attention: decided ones, and those of which the check has stored a newer copy.

Source: RocketMQ 5.3 TransactionalMessageBridge and TransactionalMessageServiceImpl (bytes and properties of each kind).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gantry.model import sysflag
from gantry.model.address import pack_host
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.names import TOPIC_LENGTH_MAX, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import encode_record
from gantry.runtime.digits import parse_digits
from gantry.storeformat.opmessages import OP_TAG, encode_op_body
from services.broker.newmessage import NewMessage, QuickPlace, QuickStored

CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose committed offsets on half and op topic are the progress of the check."""
QUEUE_ID: Final = 0
"""Half and op topic have one queue."""
_CHARS_MAX = 4096
_GROUP = f"\x02{PropertyName.PGROUP}\x01"
_INT32_MAX = 2**31 - 1

TransactionKey = tuple[str, int, bytes, int]
"""Identifies a transaction: all copies of its half message have the same unique key, born time, born host (packed) and
body.

The unique key alone is not enough. It comes from the client, and two messages with the same one would be mixed up.
"""


def transaction_key(half: StoredMessage) -> TransactionKey:
    """Return the key that all copies of a half message share."""
    return half.properties.get(PropertyName.UNIQ_KEY, ""), half.born_at_ms, pack_host(half.born_host), half.body_crc


def make_half(message: NewMessage) -> None:
    """Turn a message of a producer into its half message."""
    properties = message.properties
    properties[PropertyName.TRANSACTION_ID] = properties[PropertyName.UNIQ_KEY]
    properties[PropertyName.REAL_TOPIC] = message.topic
    properties[PropertyName.REAL_QID] = str(message.queue_id)
    message.topic, message.queue_id = TRANS_HALF_TOPIC, QUEUE_ID
    # Not "prepared": such a record would have no place in a queue, and the check could not find it.
    message.sys_flag &= ~sysflag.TRANSACTION_MASK


def find_half_place(
    topic: str, queue_id: int, properties: str, unique_key: str, stored: QuickStored
) -> QuickPlace | None:
    """Return where a half message is stored, and its further properties, as `make_half` decides it.

    Returns:
        None if the properties name no producer group, or are so long that their size in bytes matters. No value is
        empty: the caller has checked that.
    """
    if len(properties) > _CHARS_MAX or (_GROUP not in properties and not properties.startswith(_GROUP[1:])):
        return None
    more = f"__transactionId__\x01{unique_key}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
    return TRANS_HALF_TOPIC, QUEUE_ID, more.encode(), stored, None


def real_queue(half: StoredMessage) -> tuple[str, int] | None:
    """Return topic and queue id of the message itself, or None if the half message does not name them."""
    topic = half.properties.get(PropertyName.REAL_TOPIC)
    queue_id = parse_digits(half.properties.get(PropertyName.REAL_QID, ""), _INT32_MAX)
    return (topic, queue_id) if topic and queue_id is not None else None


def committed(half: StoredMessage, topic: str, queue_id: int, *, half_physical_offset: int) -> NewMessage:
    """Return the message that a commit stores under its own topic."""
    message = _rebuilt(half, topic, queue_id, half.properties)
    message.sys_flag |= sysflag.TRANSACTION_COMMIT
    message.prepared_transaction_offset = half_physical_offset
    return message


def copied(half: StoredMessage, topic: str, changes: Mapping[str, str]) -> NewMessage:
    """Return a copy of a half message with changed properties, for the half topic or for that of too many checks."""
    return _rebuilt(half, topic, QUEUE_ID, {**half.properties, **changes})


def _rebuilt(half: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str]) -> NewMessage:
    return NewMessage(
        topic,
        queue_id,
        half.body,
        dict(properties),
        born_at_ms=half.born_at_ms,
        born_host=pack_host(half.born_host),
        flag=half.flag,
        sys_flag=half.sys_flag & ~sysflag.TRANSACTION_MASK,
        reconsume_times=half.reconsume_times,
    )


def op_message(half_offsets: Iterable[int], *, store_host: bytes, now_ms: int) -> NewMessage:
    """Return the op message for these queue offsets of half messages."""
    return NewMessage(
        TRANS_OP_HALF_TOPIC,
        QUEUE_ID,
        encode_op_body(half_offsets),
        {PropertyName.WAIT: "true", PropertyName.TAGS: OP_TAG},
        born_at_ms=now_ms,
        born_host=store_host,
    )


def check_record(half: StoredMessage, copy: NewMessage, *, queue_offset: int, physical_offset: int) -> bytes:
    """Return the record that a check sends to the producer: the half message under its own topic and queue.

    Args:
        half: The half message that was read.
        copy: The copy of it that the check has stored.
        queue_offset: Queue offset of the copy.
        physical_offset: Physical offset of the copy.
    """
    topic, queue_id = real_queue(half) or (half.topic, half.queue_id)
    topic_bytes = topic.encode()
    return encode_record(
        queue_id, half.flag, queue_offset, physical_offset, half.sys_flag, half.born_at_ms, pack_host(half.born_host),
        half.stored_at_ms, pack_host(half.store_host), half.reconsume_times, 0, half.body, topic_bytes,
        encode_properties({**copy.properties, PropertyName.WAIT: "false"}), half.body_crc,
        1 if len(topic_bytes) <= TOPIC_LENGTH_MAX else 2, False,
    )  # fmt: skip
