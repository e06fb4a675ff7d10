"""The answer to a pop: records and the parts of their receipts. Pure.

Records stay in the bytes of the answer. A program that forwards messages needs no other objects of them.

Source: RocketMQ 5.3 MQClientAPIImpl (processPopResponse).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gantry.model.message import StoredMessage, find_property
from gantry.model.popreceipt import (
    NOT_RETRY,
    PopPart,
    PopReceipt,
    decode_order_counts,
    decode_pop_receipt,
    decode_start_offsets,
)
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan, decode_record, scan_record, with_reconsume_times
from gantry.remoting.headers.pop import PopMessageResponseHeader

_POP_CK = PropertyName.POP_CK.encode()
_POP_CK_START = _POP_CK + b"\x01"
_TAGS = PropertyName.TAGS.encode()

# This takes half the time of a call of the class, which passes every field by name again.
_new_tuple = tuple.__new__


class PoppedRecord(NamedTuple):
    """A record of an answer.

    Attributes:
        at: Its start in the bytes.
        scan: Its fields, with the number of deliveries to the group before this one as reconsume times, and whether its
            checksum is right.
        part: The content that its receipt shares with those of the same pop and queue, and the same object for them.
    """

    at: int
    scan: RecordScan
    part: PopPart

    @property
    def receipt(self) -> PopReceipt:
        """The receipt."""
        return self.part.at(self.scan[2])


@dataclass(frozen=True, slots=True)
class PoppedRecords:
    """Records of one answer, in its bytes.

    Attributes:
        data: The body of the answer.
        records: The records, in order.
        popped_at_ms: The time of the pop, by the broker's clock.
        left_count: Number of messages that are left in the queues that the broker looked at.
    """

    data: bytes
    records: Sequence[PoppedRecord]
    popped_at_ms: int = 0
    left_count: int = 0

    def message(self, record: PoppedRecord) -> "PoppedMessage":
        """Decode one of the records. Raises CorruptRecordError: its topic is not UTF-8."""
        message = decode_record(self.data, record.at)
        first = message.properties.get(PropertyName.FIRST_POP_TIME, "")
        first_ms = int(first) if first.isdigit() else self.popped_at_ms
        return PoppedMessage(message, record.receipt, record.scan[9] + 1, first_ms)

    def tag(self, record: PoppedRecord) -> str | None:
        """Return the tag of one of the records, or None."""
        start, stop = record.scan[12:14]
        return find_property(self.data[start:stop], _TAGS)


class PoppedMessage(NamedTuple):
    """A message and its receipt.

    Attributes:
        message: The message, under the topic to which it was sent.
        receipt: The receipt.
        deliveries: Number of deliveries to the group so far, this one included.
        first_popped_at_ms: The time of the first delivery.
    """

    message: StoredMessage
    receipt: PopReceipt
    deliveries: int
    first_popped_at_ms: int


def read_popped(data: bytes, answer: PopMessageResponseHeader, broker_name: str) -> PoppedRecords:
    """Return the records of an answer.

    Raises:
        RecordError: The bytes are not whole records.
        InvalidIdError, KeyError: The header does not have the receipt of each record.
    """
    parts = {
        place: PopPart(
            start, answer.pop_time, answer.invisible_time, answer.revive_qid, place[0], broker_name, place[1]
        )
        for place, start in decode_start_offsets(answer.start_offset_info).items()
    }
    counts = decode_order_counts(answer.order_count_info)
    # Only messages of retry topics have their receipts in themselves. Most answers have none.
    has_own = data.find(_POP_CK_START) >= 0
    records: list[PoppedRecord] = []
    at, end = 0, len(data)
    while at < end:
        scan = scan_record(data, at, end)
        queue_id = scan[1]
        part = _own_part(data[scan[12] : scan[13]]) if has_own else None
        if part is None:
            part = parts[NOT_RETRY, queue_id]
        if counts:
            scan = with_reconsume_times(scan, _count(counts, queue_id, scan[2], scan[9]))
        records.append(_new_tuple(PoppedRecord, (at, scan, part)))
        at += scan[0]
    return PoppedRecords(data, records, answer.pop_time, answer.rest_num)


def _own_part(properties: bytes) -> PopPart | None:
    """Return the part of the receipt that a message from a retry topic has in its properties. Raises InvalidIdError."""
    text = find_property(properties, _POP_CK)
    return None if text is None else decode_pop_receipt(text).part


def _count(counts: Mapping[tuple[str, int, int | None], int], queue_id: int, offset: int, reconsume_times: int) -> int:
    of_queue = counts.get((NOT_RETRY, queue_id, None), reconsume_times)
    return counts.get((NOT_RETRY, queue_id, offset), of_queue)
