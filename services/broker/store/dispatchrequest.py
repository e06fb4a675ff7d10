"""DispatchRequest: the data of a CommitLog record that ConsumeQueues and index need.

The writer of a record knows its request. If the request must be read from the log, only this module does it.
"""

from typing import NamedTuple

from gantry.model.delaylevel import LEVEL_MAX, parse_delay_levels
from gantry.model.errors import InvalidNameError
from gantry.model.javahash import tags_code as hash_tag
from gantry.model.message import PropertyName, find_property
from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.record import RecordHead
from gantry.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantry.runtime.digits import parse_digits
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.settings import StoreSettings

TAGS, KEYS, UNIQ_KEY, DELAY = (
    name.encode() for name in (PropertyName.TAGS, PropertyName.KEYS, PropertyName.UNIQ_KEY, PropertyName.DELAY)
)
_DELAY_PAIR = b"\x02DELAY\x01"
_UNKNOWN_DELAY_MS = 1000
# The element of the pending queue: a request's fields as a plain tuple, because one is made for every message.
PlainDispatchRequest = tuple[int, int, ConsumeQueue | None, int, int, str, str, str, int]


class DispatchRequest(NamedTuple):
    """The data that is derived from one record."""

    physical_offset: int
    size_bytes: int
    queue: ConsumeQueue | None
    """The record's queue; None for prepared and rolled back messages, which have no place in a queue."""
    queue_offset: int
    tags_code: int
    topic: str
    unique_key: str
    keys: str
    """The keys, separated by spaces."""
    stored_at_ms: int

    def tags_code_in(self, queue: ConsumeQueue) -> int:
        """Return the last field of the unit, for a queue that may already have the unit.

        A delayed message is due according to the delay levels at its time, so an existing unit keeps its value. After a
        power cut, the disk may have only a part of a unit. Then the value is before the time at which the message was
        stored, and does not count.
        """
        if self.topic == SCHEDULE_TOPIC and self.queue_offset < queue.max_offset:
            unit = queue.unit(self.queue_offset)
            if unit[:2] == self[:2] and unit.tags_code >= self.stored_at_ms:
                return unit.tags_code
        return self.tags_code


def is_indexed(head: RecordHead) -> bool:
    """Return whether a record has a key, so that the index must contain it."""
    if head.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return False
    keys = find_property(head.properties, UNIQ_KEY) or find_property(head.properties, KEYS) or ""
    return keys.strip(" ") != ""


class DispatchRequestMaker:
    """Makes dispatch requests from records."""

    def __init__(self, queues: ConsumeQueueStore, settings: StoreSettings) -> None:
        self._queues = queues
        self.set_delay_levels(parse_delay_levels(settings.message_delay_level))

    def set_delay_levels(self, delays_ms: tuple[int, ...]) -> None:
        """Change the lengths of the delay levels, for messages that are stored from now on."""
        self._delays_ms = delays_ms
        self._by_level = {b"%d" % number: delay_ms for number, delay_ms in enumerate(delays_ms, 1)}

    def from_record(self, head: RecordHead, *, with_keys: bool = True) -> DispatchRequest | None:
        """Return the request of a record in the log; None if its topic is not valid.

        Args:
            head: The record's head.
            with_keys: Whether to look up the record's keys, for the index.
        """
        try:
            topic = head.topic.decode()
            has_place = head.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
            queue = self._queues.get_or_create(topic, head.queue_id) if has_place else None
        except (InvalidNameError, UnicodeDecodeError):
            return None  # Without a checksum over the whole record, damage may look like this.
        properties = head.properties
        is_indexed = with_keys and head.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        return DispatchRequest(
            head.physical_offset,
            head.size_bytes,
            queue,
            head.queue_offset,
            self.tags_code(topic, find_property(properties, TAGS), properties, head.stored_at_ms),
            topic,
            (find_property(properties, UNIQ_KEY) or "") if is_indexed else "",
            (find_property(properties, KEYS) or "") if is_indexed else "",
            head.stored_at_ms,
        )

    def tags_code(self, topic: str, tag: str | None, properties: bytes, stored_at_ms: int) -> int:
        """Return the last field of a unit: the tag's hash, or the due time of a delayed message."""
        if topic == SCHEDULE_TOPIC:
            # The usual case, without a decoded text: a level of the list.
            start = properties.rfind(_DELAY_PAIR) + len(_DELAY_PAIR)
            end = properties.find(b"\x02", start)
            if len(_DELAY_PAIR) <= start < end and (known_ms := self._by_level.get(properties[start:end])) is not None:
                return stored_at_ms + known_ms
            level = find_property(properties, DELAY)
            if level is not None and (given := parse_digits(level, LEVEL_MAX)):
                number = min(given, len(self._delays_ms))
                delay_ms = self._delays_ms[number - 1] if number else _UNKNOWN_DELAY_MS
                return stored_at_ms + delay_ms
        return hash_tag(tag)
