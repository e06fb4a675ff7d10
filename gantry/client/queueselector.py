"""Selectors of the queue for a message (pure).

A selector is called with the topic's writable queues, never with an empty list. The caller provides random numbers:
`draw(n)` returns a number in [0, n).

Source: RocketMQ 5.3 TopicPublishInfo, MQFaultStrategy and the selectors of org.apache.rocketmq.client.producer.
"""

from collections.abc import Callable, Sequence

from gantry.model.javahash import java_hash
from gantry.model.message import MessageQueue

Draw = Callable[[int], int]
QueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]

# Counting starts at a random number, so that a thousand producers started together do not all begin with queue 0.
_START_BOUND = 1 << 31


class RoundRobin:
    """Takes one queue after the other; after a failure, the next one on another broker.

    Concurrency: one thread.
    """

    __slots__ = ("_index",)

    def __init__(self, draw: Draw) -> None:
        self._index = draw(_START_BOUND)

    def select(self, queues: Sequence[MessageQueue], *, last_broker: str | None = None) -> MessageQueue:
        """Return the next queue.

        Args:
            queues: The queues to choose from.
            last_broker: The broker of the last attempt, which failed. A queue of another broker is taken if there is
                one.
        """
        count = len(queues)
        if last_broker is not None:
            for _ in range(count):
                self._index += 1
                queue = queues[self._index % count]
                if queue.broker_name != last_broker:
                    return queue
        self._index += 1
        return queues[self._index % count]


class LeastLatency:
    """Takes one queue after the other, on brokers that answer fast if there are any.

    Concurrency: one thread.
    """

    __slots__ = ("_index", "_is_available")

    def __init__(self, draw: Draw, is_available: Callable[[str], bool]) -> None:
        """Make a selector; `is_available` returns whether a broker of this name need not be avoided now."""
        self._index = draw(_START_BOUND)
        self._is_available = is_available

    def select(self, queues: Sequence[MessageQueue], *, last_broker: str | None = None) -> MessageQueue:
        """Return the next queue of an available broker, else of any broker but the last one, else the next queue."""
        count = len(queues)
        other: MessageQueue | None = None
        for _ in range(count):
            self._index += 1
            queue = queues[self._index % count]
            if queue.broker_name == last_broker:
                continue
            if self._is_available(queue.broker_name):
                return queue
            if other is None:
                other = queue
        if other is not None:
            return other
        self._index += 1
        return queues[self._index % count]


def hash_index(key: str, count: int) -> int:
    """Return a key's index among `count` queues: the Java hash modulo count, without its sign."""
    return abs(java_hash(key)) % count


def by_hash(key: str) -> QueueSelector:
    """Return a selector that maps equal keys to the same queue, as long as the list of queues stays the same."""

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[hash_index(key, len(queues))]

    return select


def at_random(draw: Draw) -> QueueSelector:
    """Return a selector that takes a random queue."""

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[draw(len(queues))]

    return select
