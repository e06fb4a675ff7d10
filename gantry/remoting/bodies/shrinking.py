"""The response to request 900034, Gantry's own: whether the queues above a number may be closed, and if not, why."""

from gantry.remoting.bodies.fastjson import JsonBody

BLOCKS_MAX = 1_000
"""The maximum number of blocks in a response."""


class QueueBlock(JsonBody, kw_only=True):
    """A queue with messages that a group has not consumed.

    Attributes:
        group: The group; None if no group consumes the topic.
        queue_id: The queue.
        unconsumed: Number of messages; None if it is unknown, because the group is in broadcasting mode.
    """

    group: str | None
    queue_id: int
    unconsumed: int | None


class Shrinking(JsonBody, kw_only=True):
    """900034: the numbers of queues after the request, and what prevents it from closing queues.

    Attributes:
        blocks: Queues that are not consumed, by group, at most BLOCKS_MAX; empty if nothing prevents it.
        read_queue_nums: Number of queues that are read.
        write_queue_nums: Number of queues that are written; above the wanted number, nothing is closed.
    """

    blocks: list[QueueBlock]
    read_queue_nums: int
    write_queue_nums: int
