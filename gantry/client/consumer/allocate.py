"""How a group's members share out a topic's queues (pure).

Every member computes the same answer from the same two sorted lists, so that no one has to hand out queues.

Source: RocketMQ 5.3 AllocateMessageQueueAveragely.
"""

from collections.abc import Sequence

from gantry.model.message import MessageQueue


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> tuple[MessageQueue, ...]:
    """Return one member's share: neighbouring queues, the first members getting one more where it does not come out even.

    Args:
        client_id: Whose share.
        queues: All queues of the topic, sorted.
        client_ids: All members, sorted.

    Returns:
        Nothing for a member that is not in the list: the others will not leave it a share.
    """
    if client_id not in client_ids:
        return ()
    index = client_ids.index(client_id)
    size, left_over = divmod(len(queues), len(client_ids))
    start = index * size + min(index, left_over)
    return tuple(queues[start : start + size + (index < left_over)])
