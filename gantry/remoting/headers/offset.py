"""The offsets of queues and groups: 14, 15, 29, 30, 31 and 32."""

from gantry.remoting.headers.fields import Header, Int32, Int64


class QueryConsumerOffsetHeader(Header):
    """14: get the committed offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """15: commit an offset. The group has consumed all messages before it. Ignore negative offsets from ali-ons."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetHeader(Header):
    """29: find the offset of the message stored at `timestamp`. boundary_type: see is_upper."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None

    @property
    def is_upper(self) -> bool:
        """Whether the request asks for the last offset of that time (UPPER, in any case) instead of the first."""
        return self.boundary_type is not None and self.boundary_type.upper() == "UPPER"


class GetMaxOffsetHeader(Header):
    """30: get the next offset to be written. With `committed` False it includes messages that are not readable yet."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffsetHeader(Header):
    """31: get the first readable offset."""

    topic: str
    queue_id: Int32


class GetEarliestStoreTimeHeader(Header):
    """32: get the store time of the first readable message."""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header):
    """The response to 14, 29, 30 and 31."""

    offset: Int64


class TimestampResponseHeader(Header):
    """The response to 32: the time in ms, or -1 if the queue is empty."""

    timestamp: Int64
