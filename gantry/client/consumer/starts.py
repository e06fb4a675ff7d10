"""The start of a group's member in a queue: its committed offset, or the position that the member was given."""

from dataclasses import dataclass

from gantry.client.consumer.memberoffsets import CommittedOffsets
from gantry.client.consumer.offsets import Offsets
from gantry.client.errors import ClientError
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Assignment:
    """A queue that the member holds from now on, and the offset to start at."""

    queue: MessageQueue
    next_offset: int
    committed_offset: int | None
    """The committed offset. If it is None, the member's StartPosition gives `next_offset`."""
    epoch: int = 0
    """The epoch of the latest reset of the group's offset; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The position at which a member without a committed offset begins."""

    where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    at_ms: int | None = None
    """Wall time (ms) for CONSUME_FROM_TIMESTAMP."""


async def find_start(
    offsets: Offsets,
    own: CommittedOffsets,
    queue: MessageQueue,
    start: StartPosition,
    *,
    joined_at_ms: int,
    is_first: bool,
) -> Assignment | ClientError:
    """Return where to start in a queue, or the error because of which that is not known.

    If the member starts at the end, a queue that comes after the first share starts at the end that it had when the
    member joined: messages that were stored since then belong to it.

    Args:
        offsets: Calls for offsets.
        own: The committed offsets of the member.
        queue: The queue.
        start: Position for a queue without a committed offset.
        joined_at_ms: Wall time at which the member joined.
        is_first: Whether the queue belongs to the first share.
    """
    try:
        committed, epoch = await own.committed(queue)
        if committed is not None:
            return Assignment(queue, committed, committed, epoch)
        if start.where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            first = await offsets.min_offset(queue)
        elif start.where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and start.at_ms is not None:
            first = await offsets.search_offset(queue, start.at_ms)
        elif is_first:
            first = await offsets.max_offset(queue)
        else:
            first = await offsets.search_offset(queue, joined_at_ms)
    except ClientError as error:
        return error
    return Assignment(queue, max(0, first), None, epoch)
