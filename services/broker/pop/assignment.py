"""Decides which queues of a topic a client consumes, and whether it pulls or pops. Pure.

A client that pulls gets its share of the queues. A client that pops gets all queues of each broker as one, with the
queue id -1; or its own share and those of the next `popShareQueueNum` clients.

Source: RocketMQ 5.3 QueryAssignmentProcessor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gantry.model.allocate import allocate_averagely, allocate_in_turn
from gantry.model.message import MessageQueue
from gantry.model.names import is_retry_topic
from gantry.model.route import TopicRoute
from gantry.model.topic import Perm
from gantry.remoting.bodies.pop import MessageRequestMode
from gantry.remoting.headers.pop import ANY_QUEUE

PULL, POP = "PULL", "POP"

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
STRATEGIES: Final[Mapping[str, Allocate]] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_in_turn}

_READ = int(Perm.READ)


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the readable queues of a topic, sorted."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & _READ
        for queue_id in range(data.read_queue_nums)
    )


def assign(
    mode: MessageRequestMode,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Iterable[str],
    allocate: Allocate,
) -> list[MessageQueue]:
    """Return the queues of a client, each once.

    Args:
        mode: The mode of the group for the topic.
        client_id: The client.
        queues: The readable queues of the topic, sorted.
        client_ids: The clients of the group.
        allocate: The strategy of the client.
    """
    members = sorted(client_ids)
    if mode.mode != POP:
        return list(allocate(client_id, queues, members))
    if mode.pop_share_queue_num <= 0:
        return list(dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues))
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        # A share would be empty for some clients.
        return [queues[index % len(queues)]] if queues else []
    sharing = [members[(index + further) % len(members)] for further in range(mode.pop_share_queue_num + 1)]
    return list(
        dict.fromkeys(queue for member in dict.fromkeys(sharing) for queue in allocate(member, queues, members))
    )


def default_mode(topic: str, group: str) -> MessageRequestMode:
    """Return the mode of a group that has none for a topic."""
    return MessageRequestMode(consumer_group=group, mode=PULL, topic=topic)


def may_be_set(topic: str) -> bool:
    """Return whether a mode may be set for a topic. Retry topics are always pulled."""
    return not is_retry_topic(topic)
