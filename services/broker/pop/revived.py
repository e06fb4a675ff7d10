"""Finds what the broker had revived before it ended, without a note of it in the revive topic.

The note follows when the copy of a message is durable (revive.py), so a crash may come between the two. The copy names
the message that it was made from (GANTRY_REVIVED_FROM). Copies of older releases do not, so their messages are revived again.
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
    copies: dict[str, int] = {}
    for name in _topics_of_copies(topic, group):
        copies |= _copies(store, name, since_ms)
    number = 0
    for point in due if copies else ():
        for offset in point.left_offsets():
            message = next(_read(store, topic, point.key.queue_id, offset, 1), None)
            if message is None or message.queue_offset != offset:
                continue
            # An older copy belongs to an earlier pop: the group's offset was reset after it.
            if copies.get(message.stored_id, -1) >= point.due_at_ms:
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


def _copies(store: MessageStore, topic: str, since_ms: int) -> dict[str, int]:
    """Return the store times of copies, by the stored ids of the messages that they were made from."""
    end = store.max_offset(topic, 0)
    first = max(store.offset_by_time(topic, 0, since_ms), end - COPIES_MAX)
    return {
        source: message.stored_at_ms
        for message in _read(store, topic, 0, first, end - first)
        if (source := message.properties.get(PropertyName.REVIVED_FROM)) is not None
    }


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
