"""Resets of committed offsets: 220, 222, 303, 308, 314, and Gantry's own: 900020, 900022, fields of 43."""

from gantry.remoting.headers.fields import Header, Int32, Int64

RESET_QUEUES_MAX = 4_096
"""The maximum number of queues in one request 900020."""
RESETS_AT_ONCE = 1_024
"""The number of resets from which an answer to 900022 ends."""
LATEST = -1
"""The timestamp of request 222 that means the end of each queue."""


class ResetClientOffsetHeader(Header):
    """220: tell a consumer that the offsets in the body are its group's committed offsets now.

    gantry_reset_epoch: Gantry's own field, the epoch of the reset.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool | None = None
    gantry_reset_epoch: Int64 | None = None


class ResetOffsetHeader(Header):
    """222: reset a group's offsets on a broker.

    timestamp: store time (wall ms) to go to, -1 for the end of each queue. is_force: False never moves a group forward.
    queue_id: the only queue to reset; -1 or None for all. offset: the offset to go to in this queue; -1 or None to go
    by time.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumeTimeSpanHeader(Header):
    """303: get the store times of the first, the last and the last consumed message of each queue."""

    topic: str
    group: str


class CorrectionOffsetHeader(Header):
    """308: get the smallest offset of all groups for each queue. filter_groups: groups left out, separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupOffsetHeader(Header):
    """314: set the offsets of a group to those of another. topic: None for all topics of the source group.

    offline: True also clones topics to which the connected members of the source group do not subscribe.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class ResetQueuesHeader(Header):
    """900020: reset queues of a topic for a group, or undo a reset; the body names the queues."""

    topic: str
    consumer_group: str


class ResetsHeader(Header):
    """900022: list the resets with a later epoch."""

    after_epoch: Int64


class AllOffsetsResponseHeader(Header):
    """43: Gantry's own fields of the answer, the epochs of the broker's latest reset; 0 if it knows of none.

    gantry_reset_epoch: when the broker began to encode the offsets. The offsets contain resets up to it.
    gantry_reset_epoch_end: when it ended. The offsets contain no later resets.
    """

    gantry_reset_epoch: Int64 | None = None
    gantry_reset_epoch_end: Int64 | None = None
