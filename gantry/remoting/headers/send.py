"""Sending: 10, 310 and 320.

310 and 320 carry the same header as 10 under one-letter names, so that it is shorter; both become
SendMessageHeader here.
"""

from collections.abc import Mapping

import msgspec

from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.fields import Header, Int32, Int64


class SendMessageHeader(Header):
    """What a producer says of a message, or of a batch of them."""

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
    """SendMessageHeader under the one-letter names. The fields are repeated so that they are renamed."""

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
    """Read the header of a send, whichever of the two forms its code has.

    Raises:
        HeaderError: A field is missing or wrong; named as it is on the wire.
    """
    if code == RequestCode.SEND_MESSAGE:
        return SendMessageHeader.from_ext(ext)
    return SendMessageHeaderV2.from_ext(ext)


class SendMessageResponseHeader(Header):
    """Where a message lies now; also with codes 10, 11 and 12, which mean stored but less safely."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)
