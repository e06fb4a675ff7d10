"""The messages that the timer appends: a due message for its real topic, and a rolled one for the timer's queue; pure.

Source: RocketMQ 5.3 TimerMessageStore.convert. The delivered message keeps all properties, also REAL_TOPIC.
"""

from typing import Final

from gantry.model.address import pack_host
from gantry.model.message import StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.sysflag import TRANSACTION_MASK
from gantry.model.timerdeletion import first_offset
from gantry.model.topic import TopicConfig
from gantry.runtime.digits import parse_digits
from services.broker.newmessage import NewMessage

_ROLLS_MAX: Final = 2**31 - 1


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
    return copied(message, config.topic_name, queue_id, properties)


def rolled_message(message: StoredMessage, *, enqueued_ms: int, now_ms: int) -> NewMessage:
    """Return the message for the timer's queue: it waits for another part of its time."""
    properties = _properties(message, enqueued_ms, now_ms)
    rolls = parse_digits(properties.get(PropertyName.TIMER_ROLL_TIMES, "0"), _ROLLS_MAX) or 0
    properties[PropertyName.TIMER_ROLL_TIMES] = str(rolls + 1)
    first = first_offset(message)
    if first is not None:
        properties[PropertyName.TIMER_FIRST_OFFSET] = str(first)
    return copied(message, TIMER_TOPIC, message.queue_id, properties)


def copied(message: StoredMessage, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    """Return a waiting message as it is appended to another queue: with its body, birth and failures."""
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


def _properties(message: StoredMessage, enqueued_ms: int, now_ms: int) -> dict[str, str]:
    properties = dict(message.properties)
    properties[PropertyName.TIMER_ENQUEUE_MS] = str(enqueued_ms)
    properties[PropertyName.TIMER_DEQUEUE_MS] = str(now_ms)
    return properties
