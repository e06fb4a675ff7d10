"""The headers of requests for the offsets of queues and groups: request codes 14, 15, 29, 30, 31 and 32.

The docstrings begin with the request code. A broker refuses a request that has no answer with another response code.
"""

from gantry.remoting.headers.fields import Header, Int32, Int64


class QueryConsumerOffsetHeader(Header):
    """14: get the committed offset of a group on a queue.

    set_zero_if_not_found: False forbids the broker to answer 0 for a group that has never committed an offset; it then
    answers QUERY_NOT_FOUND. None and True allow it, and the broker decides.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """15: commit an offset: the group has consumed all messages before it.

    The npm client ali-ons also sends negative offsets, which the broker ignores.

    gantry_reset_epoch: Gantry's own field, the epoch of the latest reset that the consumer knows; 0 if it knows of none.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    gantry_reset_epoch: Int64 | None = None


class SearchOffsetHeader(Header):
    """29: find the offset for a store time. timestamp: wall ms. boundary_type: LOWER or UPPER; None is LOWER.

    LOWER asks for the first message stored at that time or later, UPPER for the last one stored at it or earlier.
    """

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None

    @property
    def is_upper(self) -> bool:
        """Whether the boundary is UPPER, in upper or lower case."""
        return self.boundary_type is not None and self.boundary_type.upper() == "UPPER"


class GetMaxOffsetHeader(Header):
    """30: get the offset after the last readable message: that of the next message to be written.

    committed: False asks RocketMQ's broker to count messages that are not readable yet, too. Gantry's ignores it.
    """

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffsetHeader(Header):
    """31: get the offset of the first readable message."""

    topic: str
    queue_id: Int32


class GetEarliestStoreTimeHeader(Header):
    """32: get the store time of a queue's first readable message."""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header):
    """The response to 14, 29, 30 and 31.

    gantry_reset_epoch: Gantry's own field in the response to 14, the epoch of the queue's latest reset if it holds.
    """

    offset: Int64
    gantry_reset_epoch: Int64 | None = None


class TimestampResponseHeader(Header):
    """The response to 32: the wall time in ms, or -1 if the queue is empty."""

    timestamp: Int64
