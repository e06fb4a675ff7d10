"""Offsets of queues and of groups: 14, 15, 29, 30, 31 and 32."""

from gantry.remoting.headers.fields import Header, Int32, Int64


class QueryConsumerOffsetHeader(Header):
    """14: what has the group committed on a queue?"""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """15: the group has consumed everything before commit_offset. Negative offsets come from ali-ons: ignore them."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetHeader(Header):
    """29: which offset was stored at `timestamp`? boundary_type: see is_upper."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None

    @property
    def is_upper(self) -> bool:
        """Whether the last offset of that moment is meant; anything but UPPER, in whatever case, means the first."""
        return self.boundary_type is not None and self.boundary_type.upper() == "UPPER"


class GetMaxOffsetHeader(Header):
    """30: the next offset to be written; with `committed` False also what is not readable yet."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffsetHeader(Header):
    """31: the first offset that can be read."""

    topic: str
    queue_id: Int32


class GetEarliestStoreTimeHeader(Header):
    """32: when was the first readable message stored?"""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header):
    """The answer to 14, 29, 30 and 31."""

    offset: Int64


class TimestampResponseHeader(Header):
    """The answer to 32: ms, -1 where the queue is empty."""

    timestamp: Int64
