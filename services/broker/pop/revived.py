"""Finds what the broker had revived before it ended, without a note of it in the revive topic.

The note follows when the copy of a message is durable (revive.py), so a crash may come between the two. The copy tells
which message it was made from: it has the id of the first of all copies, and one more reconsume time.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from gantry.model import names
from gantry.model.errors import RecordError
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.runtime.telemetry import logger
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.store.errors import StoreReadError
from services.broker.store.messagestore import MessageStore

COPIES_MAX: Final = 100_000
"""Number of the newest copies of a topic that are looked at. Only those of the last moments lack their note."""
_READ_MAX: Final = 512

log = logger("broker.pop")

_Identity = tuple[str, int]


def mark_revived(points: CheckPointTable, store: MessageStore, now_ms: int) -> int:
    """Note in the table that messages are done whose copies are stored. A start calls this; it may wait.

    Returns:
        The number of messages.
    """
    due = sorted((point for point in points if point.due_at_ms <= now_ms), key=_topic_and_group)
    number = 0
    for (topic, group), members in groupby(due, key=_topic_and_group):
        try:
            number += _mark(points, store, topic, group, list(members))
        except (StoreReadError, RecordError, OSError) as error:
            # A second copy is better than a broker that does not start.
            log.warning("copies can't be read, so messages may come twice", topic=topic, group=group, reason=str(error))
    return number


def _topic_and_group(point: CheckPoint) -> tuple[str, str]:
    return point.key.topic, point.key.group


def _mark(points: CheckPointTable, store: MessageStore, topic: str, group: str, due: Sequence[CheckPoint]) -> int:
    """Do it for the check points of one topic and group, so that only their copies are in memory."""
    since_ms = min(point.due_at_ms for point in due)
    copies: dict[_Identity, int] = {}
    for name in _topics_of_copies(topic, group):
        copies |= _copies(store, name, since_ms)
    number = 0
    for point in due if copies else ():
        for offset in point.left_offsets():
            message = next(_read(store, topic, point.key.queue_id, offset, 1), None)
            if message is None or message.queue_offset != offset:
                continue
            origin, reconsume_times = _identity(message)
            # An older copy belongs to an earlier life of the message, before it was a dead letter and sent again.
            if copies.get((origin, reconsume_times + 1), -1) >= point.due_at_ms:
                points.mark(point, offset)
                number += 1
    return number


def _topics_of_copies(topic: str, group: str) -> Sequence[str]:
    """Return the topics in which copies of a topic's messages are stored, retry topics in both spellings."""
    retry = (
        {topic}
        if names.is_retry_topic(topic)
        else {names.pop_retry_topic(group, topic, is_v2=is_v2) for is_v2 in (False, True)}
    )
    return [*retry, names.dlq_topic(group)]


def _copies(store: MessageStore, topic: str, since_ms: int) -> dict[_Identity, int]:
    """Return the store times of copies, by what they were made from."""
    end = store.max_offset(topic, 0)
    first = max(store.offset_by_time(topic, 0, since_ms), end - COPIES_MAX)
    return {_identity(message): message.stored_at_ms for message in _read(store, topic, 0, first, end - first)}


def _read(store: MessageStore, topic: str, queue_id: int, first: int, count: int) -> Iterator[StoredMessage]:
    end = first + count
    while first < end:
        wanted = min(end - first, _READ_MAX)
        result = store.get(topic, queue_id, first, wanted, wide_messages=wanted)
        if not result.records and result.next_offset <= first:
            return
        for record in result.records:
            if record:
                yield decode_record(record, check_crc=False)
        first = result.next_offset


def _identity(message: StoredMessage) -> _Identity:
    return message.properties.get(PropertyName.ORIGIN_MESSAGE_ID) or message.stored_id, message.reconsume_times
