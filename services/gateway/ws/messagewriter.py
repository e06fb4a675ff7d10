"""Writes the records of a pull as the messages of a `messages` frame, in one of two codings (messagecodings.py).

This is the hot path of push: records go from the broker's bytes to the client's bytes without objects in between. The
parts that a message shares with thousands of others (the queue's names, hosts, properties other than the id) are
encoded once and then joined in as bytes; its own parts are packed into place.

A record is checked before it is sent: by the checksum over the whole record, or by that of the body if there is no
other. A damaged record is skipped and reported, never sent. Pure.

Concurrency: one thread; the caches belong to the process, are bounded, and are emptied when full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gantry.model import sysflag
from gantry.model.compression import decompress
from gantry.model.errors import CorruptRecordError, RecordError
from gantry.model.message import decode_properties
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan, scan_record

# A body that a client compressed may be larger when inflated than any that comes over HTTP.
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024

_CACHED_MAX: Final = 4096
# Longer properties are rarely repeated, and a cache full of them would take tens of megabytes.
_CACHED_PROPERTIES_BYTES_MAX: Final = 512

# A group has few topics.
_ORIGINS_MAX: Final = 64

# The unique key is the one property that differs in every message: without it, the other properties have few distinct
# values. It nearly always has 32 characters.
_UNIQ_KEY: Final = PropertyName.UNIQ_KEY.encode() + b"\x01"
_UNIQ_KEY_BYTES: Final = len(_UNIQ_KEY)
_ID_LENGTH: Final = 32


@dataclass(slots=True)
class WrittenMessages:
    """The records of a pull that were processed, up to some limit.

    Attributes:
        parts: Encoded messages.
        offsets: Queue offsets of the messages.
        sizes: Sizes of the messages in bytes.
        at: Position of the first record that was not processed.
        next_offset: Queue offset after the last record that was processed.
        damaged: Queue offsets of records that were skipped, with the reasons.
        is_cut: Whether the start of the next record is unknown because a record is damaged; everything from
            `next_offset` on must be pulled again.
    """

    at: int
    next_offset: int
    parts: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts that all messages of a queue share; `start` is their encoded form.

    Attributes:
        origins: Facts by the first topic of messages, if the queue has messages that come back; else None.
    """

    broker: str
    queue_id: int
    receipt_prefix: bytes
    tags: frozenset[str] | None
    start: bytes
    origins: dict[str, "QueueFacts"] | None = None


class PropertyFacts:
    """The facts that properties yield; `written` is their encoded form, `origin` the first topic of a retry."""

    __slots__ = ("origin", "tag", "written")

    def __init__(self, tag: str | None, written: bytes, origin: str | None = None) -> None:
        self.tag = tag
        self.written = written
        self.origin = origin


class MessageWriter(Protocol):
    """One of the two codings of messages."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes, tags: frozenset[str] | None
    ) -> QueueFacts:
        """Return the shared facts of a queue."""
        ...

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Return the facts of properties."""
        ...

    def message(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, body: bytes
    ) -> bytes:
        """Encode one message. `message_id` is empty for one that was stored without a unique key."""
        ...

    def frame(self, subscription: str, receipt: str, parts: Sequence[bytes]) -> bytes:
        """Encode the frame around the messages."""
        ...


class PropertyCache(dict[bytes, PropertyFacts]):
    """The facts of properties, by their bytes without the unique key; one cache for each coding."""

    def keep(self, key: bytes, value: PropertyFacts) -> PropertyFacts:
        """Store facts unless their key is long, and return them; a full cache is emptied first."""
        if len(key) <= _CACHED_PROPERTIES_BYTES_MAX:
            if len(self) >= _CACHED_MAX:
                self.clear()
            self[key] = value
        return value


def write_messages(
    writer: MessageWriter,
    cache: PropertyCache,
    queue: QueueFacts,
    data: bytes,
    *,
    at: int,
    offset: int,
    messages_max: int,
    bytes_max: int,
    only: Mapping[int, int] | None = None,
) -> WrittenMessages:
    """Encode messages until one of the limits is met or the data ends.

    Args:
        writer: The coding.
        cache: Cache of the same coding.
        queue: Facts from `writer.queue_facts`.
        data: Consecutive records: the body of a pull reply.
        at: Position at which to start.
        offset: Expected queue offset of the first record.
        messages_max: Maximum number of messages, at least 1.
        bytes_max: Number of bytes after which no further message is encoded; the first one always is.
        only: Queue offsets of the messages to encode, with the failures that the records don't count; None for all.
    """
    taken, tags, write, end = WrittenMessages(at, offset), queue.tags, writer.message, len(data)
    parts, offsets, sizes = taken.parts, taken.offsets, taken.sizes
    while at < end and messages_max > 0 and bytes_max > 0:
        try:
            record = scan_record(data, at, end)
        except RecordError as error:
            taken.damaged.append((offset, error.reason))
            taken.is_cut, at, offset = True, end, offset + 1
            break
        size, queue_offset, _, sys_flag, _, _, _, _, _, body_start, body_end, start, stop, is_good = record
        at += size
        if not is_good or queue_offset < offset:
            # Not even the queue offset of such a record can be trusted, only that the record follows the one before it.
            taken.damaged.append((offset, "its checksum is wrong" if not is_good else f"its offset is {queue_offset}"))
            offset += 1
            continue
        offset = queue_offset + 1
        key_at = data.find(_UNIQ_KEY, start, stop)
        value, value_end = key_at + _UNIQ_KEY_BYTES, key_at + _UNIQ_KEY_BYTES + _ID_LENGTH
        is_usual = key_at >= 0 and value_end < stop and data[value_end] == 0x02
        if is_usual and (key_at == start or data[key_at - 1] == 0x02):
            message_id, rest = data[value:value_end], data[start:key_at] + data[value_end + 1 : stop]
        else:
            message_id, rest = _cut_unique_key(data[start:stop])
        facts = cache.get(rest)
        if facts is None:
            facts = cache.keep(rest, writer.property_facts(decode_properties(rest)))
        if (tags is not None and facts.tag not in tags) or (only is not None and queue_offset not in only):
            continue
        body = data[body_start:body_end]
        if sys_flag & sysflag.COMPRESSED:
            inflated = _inflate(body, sys_flag, taken, queue_offset)
            if inflated is None:
                continue
            body = inflated
        if only is not None:
            record = _with_failures(record, only[queue_offset])
        shown = queue if queue.origins is None or facts.origin is None else _facts_of(facts.origin, queue, writer)
        parts.append(write(shown, facts, record, message_id, body))
        offsets.append(queue_offset)
        sizes.append(size)
        messages_max -= 1
        bytes_max -= size
    taken.at, taken.next_offset = at, offset
    return taken


def _with_failures(record: RecordScan, failures: int) -> RecordScan:
    """Return the record with more reconsume times."""
    size, offset, physical, flag, born, born_host, stored, host, reconsumed, start, end, first, last, is_good = record
    reconsumed += failures
    return size, offset, physical, flag, born, born_host, stored, host, reconsumed, start, end, first, last, is_good


def _facts_of(origin: str, queue: QueueFacts, writer: MessageWriter) -> QueueFacts:
    """Return the facts of a queue under the first topic of a message."""
    assert queue.origins is not None, "only messages of a retry topic have another topic"
    found = queue.origins.get(origin)
    if found is None:
        if len(queue.origins) >= _ORIGINS_MAX:
            queue.origins.clear()
        prefix = queue.receipt_prefix
        found = writer.queue_facts(origin, queue.broker, queue.queue_id, receipt_prefix=prefix, tags=queue.tags)
        queue.origins[origin] = found
    return found


def _inflate(body: bytes, sys_flag: int, taken: WrittenMessages, queue_offset: int) -> bytes | None:
    """Return the inflated body; None, with the damage recorded, if that fails."""
    try:
        return decompress(body, sys_flag, limit_bytes=INFLATED_BYTES_MAX)
    except CorruptRecordError as error:
        taken.damaged.append((queue_offset, error.reason))
        return None


def _cut_unique_key(properties: bytes) -> tuple[bytes, bytes]:
    """Return the unique key, empty if there is none, and the properties without it."""
    start = properties.find(_UNIQ_KEY)
    if start > 0 and properties[start - 1] != 0x02:
        start = properties.find(b"\x02" + _UNIQ_KEY) + 1 or -1
    if start < 0:
        return b"", properties
    value = start + _UNIQ_KEY_BYTES
    stop = properties.find(b"\x02", value)
    if stop < 0:
        stop = len(properties)
    return properties[value:stop], properties[:start] + properties[stop + 1 :]
