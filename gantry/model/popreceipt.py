"""The receipt of a popped message, RocketMQ's "extra info": the text by which a client acknowledges the message.

Format of a receipt, with single spaces:

    START POP_TIME INVISIBLE_TIME REVIVE_QUEUE RETRY BROKER QUEUE OFFSET

START is the queue offset at which the check point of the pop begins. RETRY says whether the message is in the topic
itself (0) or in the group's pop retry topic, with the first (1) or the second (2) spelling of its name. The revive queue
999 marks a pop in order. Texts of older clients have no OFFSET, and those of the oldest no QUEUE; both are not accepted.

The response to a pop has the parts of its receipts in three texts, whose items are joined by `;`:

    startOffsetInfo   RETRY QUEUE START
    msgOffsetInfo     RETRY QUEUE OFFSET,OFFSET,…
    orderCountInfo    RETRY QUEUE COUNT, or RETRY qoQUEUE%OFFSET COUNT

A message that comes from a retry topic has its receipt in the property POP_CK, because its record has the topic to
which it was sent.

Source: RocketMQ 5.3 remoting/protocol/header/ExtraInfoUtil.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gantry.model.errors import InvalidIdError
from gantry.model.names import pop_retry_topic

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue of receipts of pops in order: these have no check point."""
RECEIPT_LENGTH_MAX: Final = 1024
NOT_RETRY, RETRY_V1, RETRY_V2 = "0", "1", "2"

_INT64_MAX: Final = 2**63 - 1
_NUMBER = r"(\d{1,19})"
_RECEIPT = re.compile(rf"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([012]) (\S+) {_NUMBER} {_NUMBER}", re.ASCII)
_COUNT_KEY = re.compile(r"qo(\d+)%(\d+)", re.ASCII)


class PopPart(NamedTuple):
    """The content that the receipts of the messages share which one pop took from one queue (PopReceipt has the fields)."""

    start_offset: int
    popped_at_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int

    def at(self, queue_offset: int) -> "PopReceipt":
        """Return the receipt of the message at a queue offset."""
        return PopReceipt(*self, queue_offset)


class PopReceipt(NamedTuple):
    """The content of a receipt.

    Attributes:
        start_offset: The queue offset at which the check point begins.
        popped_at_ms: The time of the pop, by the broker's clock.
        invisible_ms: The time for which the message is hidden from other clients.
        revive_queue_id: The queue of the revive topic that has the check point; ORDER_REVIVE_QUEUE for a pop in order.
        retry: NOT_RETRY, RETRY_V1 or RETRY_V2.
        broker_name: The broker set.
        queue_id: The queue of the message.
        queue_offset: The queue offset of the message.
    """

    start_offset: int
    popped_at_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def expires_at_ms(self) -> int:
        """The time (ms of the broker's clock) from which on the broker may give the message to another client."""
        return self.popped_at_ms + self.invisible_ms

    @property
    def part(self) -> PopPart:
        """The content that other receipts of the same pop and queue have, too."""
        return PopPart(*self[:-1])

    @property
    def is_order(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic that has the message: `topic`, to which it was sent, or a pop retry topic of the group."""
        return real_topic(topic, group, self.retry)


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic that has a message with this retry flag."""
    if retry == NOT_RETRY:
        return topic
    return pop_retry_topic(group, topic, is_v2=retry == RETRY_V2)


def encode_pop_receipt(receipt: PopReceipt) -> str:
    """Return the text of a receipt."""
    return " ".join(map(str, receipt))


def decode_pop_receipt(text: str) -> PopReceipt:
    """Return the content of a receipt.

    Raises:
        InvalidIdError: The text is no receipt.
    """
    match = _RECEIPT.fullmatch(text) if len(text) <= RECEIPT_LENGTH_MAX else None
    if match is None:
        raise InvalidIdError("extraInfo", text, "is not the receipt of a popped message")
    start, popped_at, invisible, revive, retry, broker, queue_id, offset = match.groups()
    receipt = PopReceipt(
        int(start), int(popped_at), int(invisible), int(revive), retry, broker, int(queue_id), int(offset)
    )
    if max(receipt.start_offset, receipt.expires_at_ms, receipt.queue_offset) > _INT64_MAX:
        raise InvalidIdError("extraInfo", text, "has a number of more than 64 bits")
    return receipt


QueueKey = tuple[str, int]
"""Retry flag and queue id."""


def encode_start_offsets(starts: Iterable[tuple[str, int, int]]) -> str:
    """Return startOffsetInfo for items of retry flag, queue id and start offset."""
    return ";".join(f"{retry} {queue_id} {start}" for retry, queue_id, start in starts)


def encode_message_offsets(offsets: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """Return msgOffsetInfo for items of retry flag, queue id and the offsets of the messages."""
    return ";".join(f"{retry} {queue_id} {','.join(map(str, found))}" for retry, queue_id, found in offsets)


def encode_order_counts(counts: Iterable[tuple[str, int, int | None, int]]) -> str:
    """Return orderCountInfo for items of retry flag, queue id, queue offset (None: the whole queue) and count."""
    return ";".join(
        f"{retry} {queue_id} {count}" if offset is None else f"{retry} qo{queue_id}%{offset} {count}"
        for retry, queue_id, offset, count in counts
    )


def decode_start_offsets(text: str | None) -> Mapping[QueueKey, int]:
    """Return the start offset of each queue. Raises InvalidIdError."""
    return {(retry, _number(key, text)): _number(value, text) for retry, key, value in _items("startOffsetInfo", text)}


def decode_message_offsets(text: str | None) -> Mapping[QueueKey, Sequence[int]]:
    """Return the offsets of the messages of each queue. Raises InvalidIdError."""
    return {
        (retry, _number(key, text)): [_number(part, text) for part in value.split(",")]
        for retry, key, value in _items("msgOffsetInfo", text)
    }


def decode_order_counts(text: str | None) -> Mapping[tuple[str, int, int | None], int]:
    """Return the counts by retry flag, queue id and queue offset (None: the whole queue). Raises InvalidIdError."""
    counts: dict[tuple[str, int, int | None], int] = {}
    for retry, key, value in _items("orderCountInfo", text):
        match = _COUNT_KEY.fullmatch(key)
        queue_id, offset = (_number(key, text), None) if match is None else (int(match[1]), int(match[2]))
        counts[retry, queue_id, offset] = _number(value, text)
    return counts


def _items(field: str, text: str | None) -> Iterable[tuple[str, str, str]]:
    for item in (text or "").split(";"):
        if not item:
            continue
        parts = item.split(" ")
        if len(parts) != 3:
            raise InvalidIdError(field, text, f"has an item of {len(parts)} parts instead of 3")
        yield parts[0], parts[1], parts[2]


def _number(text: str, whole: str | None) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidIdError("offsets", whole, f"has {text!r} instead of a number")
    return int(text)
