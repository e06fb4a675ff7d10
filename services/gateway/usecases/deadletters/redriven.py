"""The message that a redrive sends for a dead letter. Pure."""

from typing import Any, Final

from gantry.model.message import Message, MessageQueue
from gantry.model.names import pop_retry_topic, retry_topic
from gantry.model.propertyname import PropertyName
from services.gateway.usecases.deadletters.letters import DeadLetter

TO_RETRY: Final = "retry"

# Properties of the failed delivery. In a message that is sent again they would act a second time.
_DROPPED: Final = frozenset(
    {
        PropertyName.DELAY,
        PropertyName.REAL_TOPIC,
        PropertyName.REAL_QID,
        PropertyName.RETRY_TOPIC,
        PropertyName.ORIGIN_MESSAGE_ID,
        PropertyName.RECONSUME_TIME,
        PropertyName.MAX_RECONSUME_TIMES,
        PropertyName.DLQ_ORIGIN_TOPIC,
        PropertyName.DLQ_ORIGIN_MESSAGE_ID,
        PropertyName.TRAN_MSG,
        PropertyName.PGROUP,
        PropertyName.WAIT,
        PropertyName.MIN_OFFSET,
        PropertyName.MAX_OFFSET,
        PropertyName.TRANSACTION_ID,
        PropertyName.TRANSACTION_CHECK_TIMES,
        PropertyName.TRAN_PREPARED_QUEUE_OFFSET,
        PropertyName.CONSUME_START_TIME,
        PropertyName.POP_CK,
        PropertyName.FIRST_POP_TIME,
        PropertyName.MSG_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CLUSTER,
        PropertyName.CRC32,
        PropertyName.REDRIVEN_FROM,
        PropertyName.REVIVED_FROM,
    }
)
_TIMER_PREFIX: Final = "TIMER_"


def message_of(letter: DeadLetter, *, group: str, to: str) -> Message | None:
    """Return the message that is sent again for a letter, or None if the letter does not say its topic. Pure.

    It keeps the message id, tag, keys and the properties of the application, and it carries the letter's id.
    """
    topic = letter.origin_topic
    if topic is None:
        return None
    properties: dict[str, Any] = {
        name: value
        for name, value in letter.record.properties.items()
        if name not in _DROPPED and not name.startswith(_TIMER_PREFIX)
    }
    properties[PropertyName.REDRIVEN_FROM] = letter.record.stored_id
    if to == TO_RETRY:
        properties[PropertyName.RETRY_TOPIC] = topic
        topic = pop_retry_topic(group, topic, is_v2=False) if _was_popped(letter) else retry_topic(group)
    return Message(topic, letter.message().body, properties, letter.record.flag)


def fixed_queue_of(letter: DeadLetter, *, group: str, to: str) -> MessageQueue | None:
    """Return the queue that a message must be sent to; None if any queue of its topic will do. Pure.

    Consumers with receipts ask each broker of their topic for its retries. So the message goes back to the broker on
    which it died, which has the topic.
    """
    if to != TO_RETRY or letter.origin_topic is None or not _was_popped(letter):
        return None
    return MessageQueue(pop_retry_topic(group, letter.origin_topic, is_v2=False), letter.broker, 0)


def _was_popped(letter: DeadLetter) -> bool:
    """Return whether the group took the message with a receipt. Such groups do not read the topic `%RETRY%group`."""
    return PropertyName.FIRST_POP_TIME in letter.record.properties
