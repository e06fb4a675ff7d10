"""Writes the records of a pull as the messages of a `messages` frame. This is the hot path of push.

A record is checked before it is sent: by the checksum over the whole record, or by that of the body if there is no
other. A damaged record is skipped and reported, never sent. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry.model import sysflag
from gantry.model.compression import decompress
from gantry.model.errors import CorruptRecordError, RecordError
from gantry.model.record import scan_record, with_reconsume_times
from services.gateway.views.messageparts import (
    MessageWriter,
    PropertyCache,
    QueueFacts,
    cut_unique_key,
)

# A body that a client compressed may be larger when inflated than any that comes over HTTP.
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024

# A group has few topics.
_ORIGINS_MAX: Final = 64


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
    taken, tags, head, end = WrittenMessages(at, offset), queue.tags, writer.head, len(data)
    parts, offsets, sizes = taken.parts, taken.offsets, taken.sizes
    while at < end and messages_max > 0 and bytes_max > 0:
        try:
            record = scan_record(data, at, end)
        except RecordError as error:
            taken.damaged.append((offset, error.reason))
            taken.is_cut, at, offset = True, end, offset + 1
            break
        size, queue_offset, _, sys_flag, _, _, _, _, times, body_start, body_end, start, stop, is_good = record
        at += size
        if not is_good or queue_offset < offset:
            # Not even the queue offset of such a record can be trusted, only that the record follows the one before it.
            taken.damaged.append((offset, "its checksum is wrong" if not is_good else f"its offset is {queue_offset}"))
            offset += 1
            continue
        offset = queue_offset + 1
        message_id, rest = cut_unique_key(data, start, stop)
        facts = cache.get(rest) or cache.facts(writer, rest)
        if (tags is not None and facts.tag not in tags) or (only is not None and queue_offset not in only):
            continue
        body = data[body_start:body_end]
        if sys_flag & sysflag.COMPRESSED:
            inflated = _inflate(body, sys_flag, taken, queue_offset)
            if inflated is None:
                continue
            body = inflated
        if only is not None:
            record = with_reconsume_times(record, times + only[queue_offset])
        shown = queue if queue.origins is None or facts.origin is None else _facts_of(facts.origin, queue, writer)
        receipt = b"%b%d" % (shown.receipt_prefix, queue_offset)
        parts.append(writer.with_body(head(shown, facts, record, message_id, receipt), body))
        offsets.append(queue_offset)
        sizes.append(size)
        messages_max -= 1
        bytes_max -= size
    taken.at, taken.next_offset = at, offset
    return taken


def messages_frame(writer: MessageWriter, subscription: str, receipt: str, parts: Sequence[bytes]) -> bytes:
    """Return the frame with encoded messages of a subscription; `receipt` is that of all of them."""
    return writer.with_messages({"type": "messages", "subscription": subscription, "receipt": receipt}, parts)


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
