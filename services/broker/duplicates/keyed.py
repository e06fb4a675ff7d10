"""Which key a record counts for, and in which topic; pure.

A message of a client counts once: with the record in which the broker accepted it. That is the record in its topic, or the
half message, or the record that waits for its time. The records that the broker makes of it later do not count: copies
of half messages, rolled messages of the timer, commits, deliveries.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gantry.model.message import find_property
from gantry.model.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead
from gantry.model.sysflag import TRANSACTION_MASK
from gantry.runtime.digits import parse_digits
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.duplicates.keytable import HALF_SECOND

WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC)
"""The topics in which messages wait that count for other topics."""

EVENT_TOPICS: Final = (TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
"""The topics whose records say how transactions ended."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_UNIQ_KEY, _REAL_TOPIC, _REAL_QID, _DELAY, _OUT_MS = (
    name.encode()
    for name in (
        PropertyName.UNIQ_KEY,
        PropertyName.REAL_TOPIC,
        PropertyName.REAL_QID,
        PropertyName.DELAY,
        PropertyName.TIMER_OUT_MS,
    )
)
_EVENTS: Final = tuple(topic.encode() for topic in EVENT_TOPICS)
# A record in one of the topics is a copy if it has one of these properties. A recall has the key of its message.
_COPIES: Final[Mapping[bytes, tuple[bytes, ...]]] = {
    SCHEDULE_TOPIC.encode(): (),
    TIMER_TOPIC.encode(): (PropertyName.TIMER_ROLL_TIMES.encode(), PropertyName.TIMER_DEL_UNIQKEY.encode()),
    TRANS_HALF_TOPIC.encode(): (
        PropertyName.TRANSACTION_CHECK_TIMES.encode(),
        PropertyName.TRAN_PREPARED_QUEUE_OFFSET.encode(),
    ),
}


class KeyedMessage(NamedTuple):
    """A message that counts.

    Attributes:
        topic: Topic that the client named.
        key: Unique key.
        queue_id: Queue that the client named.
        delivery_second: As in keytable.Place.
    """

    topic: str
    key: str
    queue_id: int
    delivery_second: int


def keyed_message(head: RecordHead) -> KeyedMessage | None:
    """Return the message of a record, or None if the record does not count."""
    properties = head.properties
    if head.topic in _EVENTS:
        return None
    key = find_property(properties, _UNIQ_KEY)
    if key is None or head.sys_flag & TRANSACTION_MASK:
        return None  # A message without a key, or a commit.
    copies = _COPIES.get(head.topic)
    if copies is None:
        return None if _is_delivery(head) else KeyedMessage(_text(head.topic), key, head.queue_id, 0)
    topic = find_property(properties, _REAL_TOPIC)
    queue_id = parse_digits(find_property(properties, _REAL_QID) or "", _INT32_MAX)
    if topic is None or queue_id is None or any(find_property(properties, name) is not None for name in copies):
        return None
    return KeyedMessage(topic, key, queue_id, delivery_second(_text(head.topic), find_property(properties, _OUT_MS)))


def delivery_second(topic: str, out_ms: str | None) -> int:
    """Return the `delivery_second` of a place.

    Args:
        topic: Topic in which the message is stored.
        out_ms: Its property TIMER_OUT_MS.
    """
    if topic == TRANS_HALF_TOPIC:
        return HALF_SECOND
    return second_of(out_ms) if topic == TIMER_TOPIC else 0


def second_of(out_ms: str | None) -> int:
    """Return the value of TIMER_OUT_MS in seconds; 0 if there is none."""
    return (parse_digits(out_ms or "", _INT64_MAX) or 0) // SECOND_MS & 0xFFFF_FFFF


def counts(properties: Mapping[str, str]) -> bool:
    """Return whether a special message of a client counts: any does but the recall of another message."""
    return PropertyName.TIMER_DEL_UNIQKEY not in properties


def _is_delivery(head: RecordHead) -> bool:
    """Return whether the broker has delivered a message that had waited for its time."""
    properties = head.properties
    level = find_property(properties, _DELAY)
    if level is not None and parse_digits(level, _INT64_MAX) != 0 and not level.startswith("-"):
        return True  # With such a level, a message of a client can't be stored in its topic at once.
    return find_property(properties, _OUT_MS) is not None and (
        find_property(properties, _REAL_TOPIC) == _text(head.topic)
    )


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")
