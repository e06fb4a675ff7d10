"""The known routes of topics, in the form that producers and consumers need.

A route is converted into three lists of queues once, when it arrives:

- `queues`: the queues that can be written now. Their set has a master and the topic's write bit.
- `ordering_queues`: all write queues of the topic, whether their broker is up or not. Messages with an ordering key are
  spread over these queues, so that a key keeps its queue while a broker is away. The cache therefore remembers a set
  that has left the route. It forgets the set only when the set certainly no longer holds the topic: the set is
  registered again without the topic, or the keeper of the desired state says so (`set_desired`).
- `subscribe_queues`: the queues that can be read.

Source: RocketMQ 5.3 MQClientInstance.topicRouteData2TopicPublishInfo. RocketMQ does not remember sets that are away.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gantry.model.javahash import java_hash
from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.model.topic import Perm
from gantry.runtime.digits import parse_digits

# Largest number of queues of a topic on one broker set. No broker has so many; a route that claims more would fill the
# memory.
QUEUES_MAX = 65_536
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PublishInfo:
    """The part of a topic's route that a producer needs."""

    topic: str
    queues: tuple[MessageQueue, ...]
    ordering_queues: tuple[MessageQueue, ...]
    masters: Mapping[str, str]
    """Broker name → address of its master, for the sets that have a master."""
    is_read_only: bool = False
    """Whether no set allows writes to the topic, with a master or without."""

    def queue_for_key(self, ordering_key: str) -> MessageQueue:
        """Return the queue of an ordering key. It stays the same as long as the topic has the same write queues.

        The queue's broker may be away. The message can't go to another queue then.
        """
        # RocketMQ takes the remainder of the hash first and then drops its sign. Dropping the sign first gives the same
        # result for every divisor.
        return self.ordering_queues[abs(java_hash(ordering_key)) % len(self.ordering_queues)]


@dataclass(slots=True)
class TopicEntry:
    """The known route of one topic."""

    route: TopicRoute
    publish: PublishInfo
    subscribe_queues: tuple[MessageQueue, ...]
    write_queue_nums: dict[str, int]
    """Broker name → number of write queues, for all sets that are known to hold the topic."""
    refreshed_at_ms: int
    used_at_ms: int


@dataclass(slots=True)
class RouteCache:
    """The routes of all topics in use.

    Concurrency: one thread. Times are monotonic ms.
    """

    topics_max: int
    brokers: dict[str, BrokerData] = field(default_factory=dict)
    """Broker name → the newest data that any route has given for this set."""
    _entries: dict[str, TopicEntry] = field(default_factory=dict)
    _desired: dict[str, dict[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TopicEntry]:
        return iter(self._entries.values())

    def find(self, topic: str) -> TopicEntry | None:
        """Return the entry of a topic, or None."""
        return self._entries.get(topic)

    def topics_used_since(self, at_ms: int) -> list[str]:
        """Return the topics that were used at that time or later."""
        return [topic for topic, entry in self._entries.items() if entry.used_at_ms >= at_ms]

    def missing_sets(self, topic: str, route: TopicRoute) -> set[str]:
        """Return the broker sets that the cache remembers for a topic and a new route does not name."""
        entry = self._entries.get(topic)
        if entry is None:
            return set()
        return set(entry.write_queue_nums) - {queue.broker_name for queue in route.queue_datas}

    def update(self, topic: str, route: TopicRoute, *, gone: Iterable[str] = (), now_ms: int) -> TopicEntry:
        """Store a new route.

        Args:
            topic: The topic.
            route: The answer of a name server.
            gone: Broker sets that the route does not name and that certainly no longer hold the topic.
            now_ms: Monotonic time.
        """
        before = self._entries.get(topic)
        known = {} if before is None else dict(before.write_queue_nums)
        for name in gone:
            known.pop(name, None)
        # A desired set counts even if it is gone: the gateway is about to create the topic there again.
        known = {**self._desired.get(topic, {}), **known}
        known.update({queue.broker_name: queue.write_queue_nums for queue in route.queue_datas})
        if before is None:
            self._make_room()
        entry = TopicEntry(
            route=route,
            publish=publish_info(topic, route, known),
            subscribe_queues=subscribe_queues(topic, route),
            write_queue_nums=known,
            refreshed_at_ms=now_ms,
            used_at_ms=now_ms if before is None else before.used_at_ms,
        )
        self._entries[topic] = entry
        self.brokers.update({broker.broker_name: broker for broker in route.broker_datas})
        return entry

    def set_desired(self, topic: str, write_queue_nums: Mapping[str, int]) -> None:
        """Store the broker sets that should hold a topic, with their write queues.

        The cache forgets the other remembered sets. It keeps the sets that the route names, because the route is newer.
        """
        self._desired[topic] = dict(write_queue_nums)
        entry = self._entries.get(topic)
        if entry is not None:
            named = {queue.broker_name: queue.write_queue_nums for queue in entry.route.queue_datas}
            entry.write_queue_nums = {**write_queue_nums, **named}
            entry.publish = publish_info(topic, entry.route, entry.write_queue_nums)

    def broker_sets(self, topic: str) -> frozenset[str]:
        """Return the broker sets that hold a topic, as far as known, or that should hold it, whether they are up or not."""
        return frozenset(self.write_queue_nums(topic))

    def write_queue_nums(self, topic: str) -> dict[str, int]:
        """Return the number of write queues of a topic on each of its `broker_sets`."""
        entry = self._entries.get(topic)
        return {**self._desired.get(topic, {}), **({} if entry is None else entry.write_queue_nums)}

    def forget(self, topic: str) -> None:
        """Forget a deleted topic and its desired broker sets."""
        self._entries.pop(topic, None)
        self._desired.pop(topic, None)

    def prune_brokers(self) -> None:
        """Forget the broker sets that no route names any more."""
        named = {broker.broker_name for entry in self._entries.values() for broker in entry.route.broker_datas}
        for name in self.brokers.keys() - named:
            del self.brokers[name]

    def _make_room(self) -> None:
        if len(self._entries) >= self.topics_max:
            oldest = min(self._entries, key=lambda topic: self._entries[topic].used_at_ms)
            del self._entries[oldest]


def publish_info(topic: str, route: TopicRoute, write_queue_nums: Mapping[str, int]) -> PublishInfo:
    """Return a topic's publish info, from a route and all sets that are known to hold the topic."""
    masters = {
        broker.broker_name: address for broker in route.broker_datas if (address := broker.master_address) is not None
    }
    if route.order_topic_conf:
        ordered = tuple(_configured_queues(topic, route.order_topic_conf))
        return PublishInfo(
            topic=topic,
            queues=tuple(queue for queue in ordered if queue.broker_name in masters),
            ordering_queues=ordered,
            masters=masters,
        )
    allowed = [queue for queue in route.queue_datas if queue.perm & Perm.WRITE]
    writable = sorted((queue.broker_name, queue.write_queue_nums) for queue in allowed if queue.broker_name in masters)
    return PublishInfo(
        topic=topic,
        queues=tuple(_queues(topic, writable)),
        ordering_queues=tuple(_queues(topic, sorted(write_queue_nums.items()))),
        masters=masters,
        is_read_only=not allowed,
    )


def subscribe_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the readable queues, sorted."""
    readable = ((queue.broker_name, queue.read_queue_nums) for queue in route.queue_datas if queue.perm & Perm.READ)
    return tuple(_queues(topic, sorted(readable)))


def as_new_topic(route: TopicRoute, queue_nums_max: int) -> TopicRoute:
    """Return the route of a topic that brokers will create from TBW102, given the route of TBW102."""

    def narrowed(queue: QueueData) -> QueueData:
        nums = min(queue_nums_max, queue.write_queue_nums)
        return replace(queue, read_queue_nums=nums, write_queue_nums=nums)

    inherited = tuple(narrowed(queue) for queue in route.queue_datas if queue.perm & Perm.INHERIT)
    return replace(route, queue_datas=inherited, order_topic_conf=None)


def _queues(topic: str, counts: Iterable[tuple[str, int]]) -> Iterator[MessageQueue]:
    for broker_name, count in counts:
        for queue_id in range(min(count, QUEUES_MAX)):
            yield MessageQueue(topic, broker_name, queue_id)


def _configured_queues(topic: str, conf: str) -> Iterator[MessageQueue]:
    """Yield the queues of an order configuration, `broker:queues;…`, in its order; leave out malformed items."""
    for item in conf.split(";"):
        broker_name, _, digits = item.partition(":")
        count = parse_digits(digits, _COUNT_MAX)
        if broker_name and count is not None:
            yield from _queues(topic, [(broker_name, count)])
