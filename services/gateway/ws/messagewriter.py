"""Writes the records of a pull as the messages of a `messages` frame. This is the hot path of push.

A record is checked before it is sent: by the checksum over the whole record, or by that of the body if there is no
other. A damaged record is skipped and reported, never sent. Pure.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry.model import sysflag
from gantry.model.compression import decompress
from gantry.model.errors import CorruptRecordError, RecordError
from gantry.model.record import scan_record, with_reconsume_times
from services.gateway.schemas.messages import ShownMessage
from services.gateway.views.messageparts import MessageWriter, PropertyCache, QueueFacts, cut_unique_key

# A body that a client compressed may be larger when inflated than any that comes over HTTP.
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class WrittenMessages:
    """The records of a pull that were processed, up to some limit.

    Attributes:
        messages: The messages.
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
    messages: list[ShownMessage] = field(default_factory=list)
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
    bytes_max: int = sys.maxsize,
    only: Mapping[int, int] | None = None,
) -> WrittenMessages:
    """Make messages until one of the limits is met or the data ends.

    Args:
        writer: The coding.
        cache: Cache of properties.
        queue: Facts of the queue.
        data: Consecutive records: the body of a pull reply.
        at: Position at which to start.
        offset: Expected queue offset of the first record.
        messages_max: Maximum number of messages, at least 1.
        bytes_max: Number of bytes, by default without limit, after which no further message is made; the first one always is. A compressed body
            counts with its decompressed size, because that is what the frame will hold.
        only: Queue offsets of the messages to make, with the failures that the records don't count; None for all.
    """
    taken, tags, show, end = WrittenMessages(at, offset), queue.tags, writer.show, len(data)
    broker, prefix = queue.broker, queue.receipt_prefix
    messages, offsets, sizes = taken.messages, taken.offsets, taken.sizes
    while at < end and messages_max > 0 and bytes_max > 0:
        try:
            record = scan_record(data, at, end)
        except RecordError as error:
            taken.damaged.append((offset, error.reason))
            taken.is_cut, at, offset = True, end, offset + 1
            break
        size, _, queue_offset, _, sys_flag, _, _, _, _, times, body_start, body_end, start, stop, is_good = record
        at += size
        if not is_good or queue_offset < offset:
            # Not even the queue offset of such a record can be trusted, only that the record follows the one before it.
            taken.damaged.append((offset, "its checksum is wrong" if not is_good else f"its offset is {queue_offset}"))
            offset += 1
            continue
        offset = queue_offset + 1
        message_id, rest = cut_unique_key(data, start, stop)
        facts = cache.get(rest) or cache.facts(rest)
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
        topic = queue.topic if not queue.is_retry or facts.origin is None else facts.origin
        messages.append(show(topic, broker, record, message_id, facts, f"{prefix}{queue_offset}", body))
        offsets.append(queue_offset)
        sizes.append(size)
        messages_max -= 1
        bytes_max -= max(size, len(body))
    taken.at, taken.next_offset = at, offset
    return taken


def messages_frame(writer: MessageWriter, subscription: str, receipt: str, messages: Sequence[ShownMessage]) -> bytes:
    """Return the frame with messages of a subscription; `receipt` is that of all of them."""
    return writer.encode({"type": "messages", "subscription": subscription, "receipt": receipt, "messages": messages})


def _inflate(body: bytes, sys_flag: int, taken: WrittenMessages, queue_offset: int) -> bytes | None:
    """Return the inflated body; None, with the damage recorded, if that fails."""
    try:
        return decompress(body, sys_flag, limit_bytes=INFLATED_BYTES_MAX)
    except CorruptRecordError as error:
        taken.damaged.append((queue_offset, error.reason))
        return None
