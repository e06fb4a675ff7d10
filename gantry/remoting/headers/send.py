"""Sending: 10, 310 and 320; the replies of request-reply: 324, 325 and 326.

310, 320 and 325 have the same header as 10 and 324, but with one-letter names, so that the header is shorter.
SendMessageHeader represents both forms.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.fields import Header, Int32, Int64


class SendMessageHeader(Header):
    """The data that a producer sends with a message or with a batch of messages."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)

    def to_ext_v2(self) -> dict[str, str]:
        """Return the ext fields under the one-letter names of 310 and 320."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
        }
        if self.properties is not None:
            ext["i"] = self.properties
        if self.reconsume_times is not None:
            ext["j"] = str(self.reconsume_times)
        if self.unit_mode is not None:
            ext["k"] = "true" if self.unit_mode else "false"
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        if self.batch is not None:
            ext["m"] = "true" if self.batch else "false"
        if self.broker_name is not None:
            ext["n"] = self.broker_name
        return ext


_V2_NAMES = dict(zip(SendMessageHeader.__struct_fields__, "abcdefghijklmn", strict=True))


class SendMessageHeaderV2(SendMessageHeader, rename=_V2_NAMES, gc=False):
    """SendMessageHeader with one-letter names. The class repeats the fields, because msgspec renames only its own."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields under the one-letter names."""
        return self.to_ext_v2()


def read_send_header(code: int, ext: Mapping[str, str]) -> SendMessageHeader:
    """Return the header of a send. `code` decides between the two forms of names.

    Raises:
        HeaderError: A field is missing or wrong. The error names it as on the wire.
    """
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessageHeader.from_ext(ext)
    return SendMessageHeaderV2.from_ext(ext)


class SendMessageResponseHeader(Header):
    """The place of a stored message. Responses with the codes 10, 11 and 12 (stored, but less safely) have it too."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    gantry_replayed: bool | None = None
    gantry_positions: str | None = None
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)


class SentPosition(NamedTuple):
    """The position of one message of a batch.

    Attributes:
        queue_id: Queue of the message.
        queue_offset: Offset in the queue.
        is_replayed: Whether an earlier request stored the message.
    """

    queue_id: int
    queue_offset: int
    is_replayed: bool


def encode_positions(positions: Iterable[SentPosition]) -> str:
    """Return the field gantryPositions: runs of consecutive positions, `queueId:queueOffset:count` or `…:count:r`."""
    runs: list[list[int]] = []
    for queue_id, queue_offset, is_replayed in positions:
        last = runs[-1] if runs else None
        if last is not None and last[0] == queue_id and last[1] + last[2] == queue_offset and last[3] == is_replayed:
            last[2] += 1
        else:
            runs.append([queue_id, queue_offset, 1, is_replayed])
    return ",".join([f"{queue_id}:{first}:{count}" + (":r" if known else "") for queue_id, first, count, known in runs])


def decode_positions(text: str, count: int) -> list[SentPosition]:
    """Return the positions of a batch of `count` messages. Raises ValueError."""
    positions: list[SentPosition] = []
    for run in text.split(","):
        queue_id, first, length, *more = run.split(":")
        if more not in ([], ["r"]) or not 0 < int(length) <= count - len(positions):
            raise ValueError(f"gantryPositions: {run[:64]!r} is no run of at most {count - len(positions)} messages")
        positions += [SentPosition(int(queue_id), int(first) + at, bool(more)) for at in range(int(length))]
    if len(positions) != count:
        raise ValueError(f"gantryPositions names {len(positions)} messages, {count} were sent")
    return positions


class PushReplyHeader(Header):
    """326, broker to client: the reply to a request-reply message. `born_host` and `store_host` are `host:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
