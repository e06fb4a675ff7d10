"""The pure part of delay levels: how a message is stored while it waits, and how it is delivered.

A message with the property DELAY=n waits in SCHEDULE_TOPIC_XXXX, in queue n - 1. REAL_TOPIC and REAL_QID say where it
goes. The tags code of its unit is its due time: the store time plus the delay of the level at that moment. A later
change of `messageDelayLevel` does not change the due time.

The delivered record has the same properties, also DELAY, REAL_TOPIC and REAL_QID, as in RocketMQ.

Source: RocketMQ 5.3 HookUtils.transformDelayLevelMessage and ScheduleMessageService.messageTimeUp.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gantry.model.errors import CorruptRecordError, TornRecordError
from gantry.model.message import find_property
from gantry.model.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead, parse_head
from gantry.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantry.runtime.digits import parse_digits
from gantry.storeformat.layout import FILLER_SIZE, UNIT
from services.broker.newmessage import NewMessage

QUEUE_ID_MAX: Final = 2**31 - 1
DAY_MS: Final = 86_400_000
AHEAD_MS_MAX: Final = 40 * DAY_MS
"""A message is due at most this long after now, or after the longest level if that is more.

A unit has no checksum. Without this limit, one flipped bit of a due time would stop a level for ever.
"""

_REAL_TOPIC, _REAL_QUEUE = PropertyName.REAL_TOPIC.encode(), PropertyName.REAL_QID.encode()
_NO_QUEUE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
# A level takes precedence over a set time.
_SET_TIMES = (PropertyName.TIMER_DELAY_SEC, PropertyName.TIMER_DELAY_MS, PropertyName.TIMER_DELIVER_MS)


class WaitingMessage(NamedTuple):
    """A record of the schedule topic.

    Attributes:
        head: Head of the record.
        body: Body as stored.
        topic: Topic that the message goes to; empty if the record does not say one.
        queue_id: Queue of this topic.
    """

    head: RecordHead
    body: bytes
    topic: str
    queue_id: int


class DueUnits(NamedTuple):
    """The units at the head of a level's queue that are due.

    Attributes:
        physical_offsets: Physical offsets of the records; -1 for a unit without a message.
        due_at_ms: Due times of these units, in the same order.
        next_due_at_ms: Due time of the first unit that is not due; None if there is none in these units.
    """

    physical_offsets: list[int]
    due_at_ms: list[int]
    next_due_at_ms: int | None


def divert(message: NewMessage, levels_count: int) -> None:
    """Change a message with a delay level so that it is stored in the schedule topic; leave any other message alone.

    A half message is left alone too: its delay begins with the commit.

    Args:
        message: The message that is about to be stored.
        levels_count: Number of levels; a higher level of the message becomes the highest one.
    """
    level = int(message.properties.get(PropertyName.DELAY, "0"))
    if level <= 0 or message.topic == TRANS_HALF_TOPIC or message.sys_flag & TRANSACTION_MASK in _NO_QUEUE:
        return
    level = min(level, levels_count)
    properties = message.properties
    for name in _SET_TIMES:
        properties.pop(name, None)
    properties[PropertyName.DELAY] = str(level)
    properties[PropertyName.REAL_TOPIC] = message.topic
    properties[PropertyName.REAL_QID] = str(message.queue_id)
    message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1


def usual_levels(delays_ms: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return queue and delay in ms of each level, by the usual text of DELAY, as `divert` decides it."""
    return {str(number): (number - 1, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)}


def due_units(data: bytes, now_ms: int, latest_ms: int) -> DueUnits:
    """Return the leading units that are due.

    Args:
        data: Units from the first undelivered one on.
        now_ms: Current time.
        latest_ms: Due times after this are wrong, and such units are due now.
    """
    offsets: list[int] = []
    due_at: list[int] = []
    for physical_offset, size, due_at_ms in UNIT.iter_unpack(data):
        if not 0 < size < FILLER_SIZE or physical_offset < 0:
            offsets.append(-1)
        elif now_ms < due_at_ms <= latest_ms:
            return DueUnits(offsets, due_at, due_at_ms)
        else:
            offsets.append(physical_offset)
        due_at.append(due_at_ms)
    return DueUnits(offsets, due_at, None)


def read_waiting(record: bytes | None, queue_id: int, queue_offset: int) -> WaitingMessage | None:
    """Return the waiting message of a record; None if the record is missing or belongs to another place.

    Args:
        record: The record that the unit points to.
        queue_id: Queue of the unit.
        queue_offset: Index of the unit.
    """
    if record is None:
        return None
    try:
        head = parse_head(record)
    except (CorruptRecordError, TornRecordError):
        return None
    if (head.topic, head.queue_id, head.queue_offset) != (SCHEDULE_TOPIC.encode(), queue_id, queue_offset):
        return None
    real_queue_id = parse_digits(find_property(head.properties, _REAL_QUEUE) or "", QUEUE_ID_MAX)
    body = record[head.body_start : head.body_end]
    return WaitingMessage(head, body, find_property(head.properties, _REAL_TOPIC) or "", real_queue_id or 0)
