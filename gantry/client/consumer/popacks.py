"""Acknowledgements of many popped messages in one request. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gantry.client.errors import InvalidArgumentError
from gantry.model.popreceipt import PopPart, encode_pop_receipt
from gantry.remoting.bodies.pop import (
    OFFSETS_SPAN_MAX,
    BatchAck,
    BatchAckRequest,
    BatchAckResponse,
    RefusedAck,
    encode_offsets,
)


class AckPart(NamedTuple):
    """Messages to acknowledge that one pop took from one queue.

    Attributes:
        topic: The topic to which the messages were sent.
        pop: The content that their receipts share.
        offsets: Their queue offsets, at least one.
    """

    topic: str
    pop: PopPart
    offsets: Sequence[int]


def ack_request(group: str, broker_name: str, parts: Sequence[AckPart]) -> BatchAckRequest:
    """Return the body of the request for messages of one broker. Raises InvalidArgumentError for those of another."""
    for part in parts:
        if part.pop.broker_name != broker_name or not _is_spanned(part):
            text = encode_pop_receipt(part.pop.at(part.offsets[0]))
            raise InvalidArgumentError("receipts", text, f"is none of broker {broker_name}")
    return BatchAckRequest(acks=[_batch_ack(group, part) for part in parts], broker_name=broker_name)


def refused_offsets(
    parts: Sequence[AckPart], response: BatchAckResponse
) -> Iterator[tuple[tuple[int, int], RefusedAck]]:
    """Yield index of the part and queue offset of each refused message, with the refusal."""
    for refusal in response.refused:
        offsets = parts[refusal.ack].offsets if 0 <= refusal.ack < len(parts) else ()
        for offset in offsets if refusal.offset is None else (refusal.offset,):
            yield (refusal.ack, offset), refusal


def _is_spanned(part: AckPart) -> bool:
    """Return whether the bit map of a request can name all offsets."""
    start = part.pop.start_offset
    return start <= min(part.offsets) and max(part.offsets) - start < OFFSETS_SPAN_MAX


def _batch_ack(group: str, part: AckPart) -> BatchAck:
    topic, pop, offsets = part
    return BatchAck(
        mask=encode_offsets(pop.start_offset, offsets),
        group=group,
        invisible_ms=pop.invisible_ms,
        popped_at_ms=pop.popped_at_ms,
        queue_id=pop.queue_id,
        retry=pop.retry,
        revive_queue_id=pop.revive_queue_id,
        start_offset=pop.start_offset,
        topic=topic,
    )
