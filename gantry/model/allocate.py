"""Allocates a topic's queues to the members of a group.

Every member computes the same result from the same two sorted lists, so the group needs no coordinator for this.

Source: RocketMQ 5.3 AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle.
"""

from collections.abc import Sequence

from gantry.model.message import MessageQueue


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> tuple[MessageQueue, ...]:
    """Return one member's share: neighbouring queues. If they can't be divided equally, the first members get one more.

    Args:
        client_id: The member.
        queues: All queues of the topic, sorted.
        client_ids: All members, sorted.

    Returns:
        The share. It is empty for a member that is not in the list, because the other members take all queues.
    """
    if client_id not in client_ids:
        return ()
    index = client_ids.index(client_id)
    size, left_over = divmod(len(queues), len(client_ids))
    start = index * size + min(index, left_over)
    return tuple(queues[start : start + size + (index < left_over)])


def allocate_in_turn(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> tuple[MessageQueue, ...]:
    """Return one member's share: every n-th queue of the list, for n members (RocketMQ's AVG_BY_CIRCLE).

    The arguments are those of `allocate_averagely`.
    """
    if client_id not in client_ids:
        return ()
    return tuple(queues[client_ids.index(client_id) :: len(client_ids)])
