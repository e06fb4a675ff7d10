"""Deletions in the timer's queue: records that suppress a message which waits for the same second (ADR 0048); pure.

Source: RocketMQ 5.3 TimerMessageStore. The order by offsets is Gantry's.
"""

from typing import Final

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.runtime.digits import parse_digits

_OFFSET_MAX: Final = 2**63 - 1


def is_deletion(message: StoredMessage) -> bool:
    """Return whether a waiting message deletes another one."""
    return PropertyName.TIMER_DEL_UNIQKEY in message.properties


def deletion_order(deletion: StoredMessage) -> int:
    """Return the physical offset of a deletion's first record. It hits only messages that were stored before."""
    first = first_offset(deletion)
    return _OFFSET_MAX if first is None else first


def first_offset(message: StoredMessage) -> int | None:
    """Return the physical offset of a waiting message's first record; None if another broker has rolled it."""
    if PropertyName.TIMER_ROLL_TIMES not in message.properties:
        return message.physical_offset
    return parse_digits(message.properties.get(PropertyName.TIMER_FIRST_OFFSET, ""), _OFFSET_MAX)


def deletes(order: int, message: StoredMessage) -> bool:
    """Return whether a deletion of this `deletion_order` hits a message of its second and key.

    If it is unknown when the message was stored, the deletion hits it.
    """
    first = first_offset(message)
    return first is None or first < order


def deletion_key(topic: str, unique_key: str) -> str:
    """Return the value of TIMER_DEL_UNIQKEY that deletes a message."""
    return f"{topic}+{unique_key}"


def key_of(message: StoredMessage) -> str:
    """Return the value of TIMER_DEL_UNIQKEY that deletes this message."""
    properties = message.properties
    return deletion_key(properties[PropertyName.REAL_TOPIC], properties.get(PropertyName.UNIQ_KEY, ""))
