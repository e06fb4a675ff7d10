"""The messages that the timer appends: a due message for its real topic, and a rolled one for the timer's queue; pure.

Source: RocketMQ 5.3 TimerMessageStore.convert. The delivered message keeps all properties, also REAL_TOPIC.
"""

from typing import Final

from gantry.model.address import pack_host
from gantry.model.message import StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.sysflag import TRANSACTION_MASK
from gantry.model.topic import TopicConfig
from gantry.runtime.digits import parse_digits
from services.broker.newmessage import NewMessage

NEVER_ENQUEUED: Final = 2**63 - 1
"""The enqueue time of a message whose time had passed when it was read from the timer's queue."""

_ROLLS_MAX = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1


def due_message(message: StoredMessage, config: TopicConfig, *, enqueued_ms: int, now_ms: int) -> NewMessage:
    """Return the message for its real topic.

    Args:
        message: The message of the timer topic.
        config: The configuration of the real topic.
        enqueued_ms: When the message was put into the wheel.
        now_ms: The present time.
    """
    queue_id = int(message.properties[PropertyName.REAL_QID])
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if queue_id >= queues:
        # The topic has become smaller. In a queue that nobody reads, the message would be lost.
        queue_id %= max(1, min(config.read_queue_nums, config.write_queue_nums))
    properties = _properties(message, enqueued_ms, now_ms)
    return _appended(message, config.topic_name, queue_id, properties)


def rolled_message(message: StoredMessage, *, enqueued_ms: int, now_ms: int) -> NewMessage:
    """Return the message for the timer's queue: it waits for another part of its time."""
    properties = _properties(message, enqueued_ms, now_ms)
    rolls = parse_digits(properties.get(PropertyName.TIMER_ROLL_TIMES, "0"), _ROLLS_MAX) or 0
    properties[PropertyName.TIMER_ROLL_TIMES] = str(rolls + 1)
    first = first_offset(message)
    if first is not None:
        properties[PropertyName.TIMER_FIRST_OFFSET] = str(first)
    return _appended(message, TIMER_TOPIC, message.queue_id, properties)


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


def _properties(message: StoredMessage, enqueued_ms: int, now_ms: int) -> dict[str, str]:
    properties = dict(message.properties)
    properties[PropertyName.TIMER_ENQUEUE_MS] = str(enqueued_ms)
    properties[PropertyName.TIMER_DEQUEUE_MS] = str(now_ms)
    return properties


def _appended(message: StoredMessage, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    return NewMessage(
        topic,
        queue_id,
        message.body,
        properties,
        born_at_ms=message.born_at_ms,
        born_host=pack_host(message.born_host),
        flag=message.flag,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        reconsume_times=message.reconsume_times,
    )
