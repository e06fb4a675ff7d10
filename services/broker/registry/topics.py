"""Topics: their configuration on this broker, and the rules by which they are created.

Concurrency: the loop's thread only.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from gantry.model import names
from gantry.model.topic import (
    DUPLICATE_WINDOW,
    DUPLICATE_WINDOW_MS_MAX,
    DUPLICATE_WINDOW_MS_MIN,
    DataVersion,
    Perm,
    TopicConfig,
)
from gantry.runtime.digits import parse_digits
from services.broker.identity import BrokerIdentity
from services.broker.settings import BrokerSettings

# The limits of requests. RocketMQ has no limit. Each queue needs an object and a folder, and a request of a tool about
# a topic goes through all its queues.
QUEUE_NUMS_MAX = 10_000
TOPICS_MAX = 100_000

SCHEDULE_QUEUE_NUMS = 18
_RWX = int(Perm.READ | Perm.WRITE | Perm.INHERIT)


class TopicTable:
    """Topic name → TopicConfig. `on_change` is called for every new, changed or removed topic.

    `unsaved` holds the names of the topics that are new, changed or removed since the last save.

    A name is closed while its topic is being deleted. If a topic of the same name were created before the deletion is
    on disk, it could not be told from the old one after a crash. Callers of `put` check `is_closed` first.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda topic: None) -> None:
        self.version = DataVersion()
        self.on_change = on_change
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self._table: dict[str, TopicConfig] = {}
        self._closed: set[str] = set()

    def __len__(self) -> int:
        return len(self._table)

    def load(self, version: DataVersion, configs: Iterable[TopicConfig]) -> None:
        """Load the content of the file."""
        self.version = version
        self._table = {config.topic_name: config for config in configs}
        self.unsaved.update(dict.fromkeys(self._table))

    def add_missing(self, configs: Iterable[TopicConfig]) -> list[str]:
        """Add the system's topics that the file lacks, without a new version, as in RocketMQ. Return their names."""
        added = []
        for config in configs:
            if config.topic_name not in self._table:
                self._table[config.topic_name] = config
                self.unsaved[config.topic_name] = None
                added.append(config.topic_name)
        return added

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic, or None."""
        return self._table.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        """Return the table itself; callers must not change it."""
        return self._table

    def close(self, topic: str) -> None:
        """Close a name: no topic of this name may be created or changed."""
        self._closed.add(topic)

    def open(self, topic: str) -> None:
        """Open a name: topics of this name may be created again."""
        self._closed.discard(topic)

    def is_closed(self, topic: str) -> bool:
        """Return whether a topic of this name is being deleted."""
        return topic in self._closed

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Create or replace a topic."""
        assert config.topic_name not in self._closed, f"topic {config.topic_name} is being deleted"
        self._table[config.topic_name] = config
        self._changed(config.topic_name, now_ms)

    def remove(self, topic: str, now_ms: int) -> bool:
        """Remove a topic. Return whether it existed."""
        if self._table.pop(topic, None) is None:
            return False
        self._changed(topic, now_ms)
        return True

    def mark_ordered(self, topics: Iterable[str], now_ms: int) -> None:
        """Set the order flag of topics that a name server has an order configuration for; ignore unknown topics.

        A topic that no name server names keeps its flag, as in RocketMQ 5.x: tools may set the flag alone.
        """
        for topic in self._table.keys() & topics:
            config = self._table[topic]
            if not config.order and topic not in self._closed:
                self.put(dataclasses.replace(config, order=True), now_ms)

    def touch(self, now_ms: int) -> None:
        """Make a new version although no topic has changed, because the perm of the broker has."""
        self.version = self.version.next(now_ms)

    def ensure_retry(self, group: str, queue_nums: int, now_ms: int, *, topic_sys_flag: int = 0) -> bool:
        """Create a group's retry topic if it is missing. Return whether it was created.

        While an old one is being deleted, the topic is not created. The next heart-beat of the group creates it.
        """
        topic = names.retry_topic(group)
        if topic in self._table or topic in self._closed:
            return False
        queue_nums = max(1, queue_nums)
        self.put(
            TopicConfig(topic, queue_nums, queue_nums, int(Perm.READ | Perm.WRITE), topic_sys_flag=topic_sys_flag),
            now_ms,
        )
        return True

    def snapshot(self) -> tuple[DataVersion, dict[str, TopicConfig]]:
        """Return the version and a copy of the table."""
        return self.version, dict(self._table)

    def _changed(self, topic: str, now_ms: int) -> None:
        self.unsaved[topic] = None
        before, self.version = self.version, self.version.next(now_ms)
        assert self.version.counter > before.counter, "name servers take a topic's change only with a new version"
        self.on_change(topic)


def auto_created(
    topic: str, template: TopicConfig | None, wanted_queue_nums: int, settings: BrokerSettings, *, topic_sys_flag: int
) -> TopicConfig | None:
    """Return the topic that a send to an unknown topic creates; pure.

    Args:
        topic: Name of the unknown topic.
        template: Topic from which the new one takes its configuration. The request names it (usually TBW102). None if
            it is unknown too.
        wanted_queue_nums: Number of queues that the client asks for.
        settings: Settings in force; they say whether automatic creation is on.
        topic_sys_flag: System flag of the new topic.

    Returns:
        The new topic, or None if it may not be created.
    """
    if names.is_retry_topic(topic):
        return TopicConfig(topic, 1, 1, int(Perm.READ | Perm.WRITE), topic_sys_flag=topic_sys_flag)
    if template is None:
        return None
    if template.topic_name == names.AUTO_CREATE_TOPIC and not settings.auto_create_topic_enable:
        return None
    if not Perm(template.perm).is_inherited:
        return None
    queue_nums = max(1, min(wanted_queue_nums, template.write_queue_nums))
    return TopicConfig(
        topic,
        queue_nums,
        queue_nums,
        template.perm & ~int(Perm.INHERIT),
        topic_filter_type=template.topic_filter_type,
        topic_sys_flag=topic_sys_flag,
    )


def system_topics(identity: BrokerIdentity, settings: BrokerSettings) -> list[TopicConfig]:
    """Return the topics that every broker has from its start."""
    read_write = int(Perm.READ | Perm.WRITE)
    topics = [_with_equal_queues(names.SELF_TEST_TOPIC, 1)]
    if settings.auto_create_topic_enable:
        topics.append(_with_equal_queues(names.AUTO_CREATE_TOPIC, settings.default_topic_queue_nums, _RWX))
    topics += [
        _with_equal_queues(names.BENCHMARK_TOPIC, 1024),
        _with_equal_queues(identity.cluster, 16, _RWX if settings.cluster_topic_enable else int(Perm.INHERIT)),
        _with_equal_queues(identity.name, 1, _RWX if settings.broker_topic_enable else int(Perm.INHERIT)),
        _with_equal_queues(names.OFFSET_MOVED_EVENT, 1),
        _with_equal_queues(names.SCHEDULE_TOPIC, SCHEDULE_QUEUE_NUMS),
        _with_equal_queues(names.reply_topic(identity.cluster), 1),
        _with_equal_queues(names.revive_topic(identity.cluster), 8),
        _with_equal_queues(f"rmq_sys_SYNC_BROKER_MEMBER_{identity.name}", 1, int(Perm.INHERIT)),
        _with_equal_queues(names.TRANS_HALF_TOPIC, 1, read_write),
        _with_equal_queues(names.TRANS_OP_HALF_TOPIC, 1, read_write),
        _with_equal_queues(names.TIMER_TOPIC, 1, read_write),
    ]
    if settings.trace_topic_enable:
        topics.append(_with_equal_queues(settings.msg_trace_topic_name, 1))
    return topics


def changed_attributes(current: Mapping[str, str], text: str, *, creating: bool) -> dict[str, str]:
    """Return the attributes after the changes in `text` (`+key=value`, `-key`, separated by commas); pure.

    Raises:
        ValueError: An item has another form, a key is unknown or occurs twice, or a value is not allowed.
    """
    attributes = dict(current)
    seen = set()
    for item in filter(None, text.split(",")):
        sign, (key, has_value, value) = item[0], item[1:].partition("=")
        if sign not in "+-" or not key or (sign == "+") != bool(has_value):
            raise ValueError(f"attribute {item!r} is neither +key=value nor -key")
        if key in seen:
            raise ValueError(f"key in deletion or addition stands twice: {key}")
        seen.add(key)
        if key not in _ATTRIBUTES and key != DUPLICATE_WINDOW:
            raise ValueError(f"unsupported key: {key}")
        if sign == "-":
            if creating:
                raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
            attributes.pop(key, None)
            continue
        if key == DUPLICATE_WINDOW:
            if not (parse_digits(value, DUPLICATE_WINDOW_MS_MAX) or 0) >= DUPLICATE_WINDOW_MS_MIN:
                raise ValueError(
                    f"value {value!r} of {key} is not within {DUPLICATE_WINDOW_MS_MIN} and {DUPLICATE_WINDOW_MS_MAX}"
                )
            attributes[key] = str(int(value))
            continue
        allowed = _ATTRIBUTES[key]
        if value not in allowed:
            raise ValueError(f"value {value!r} of {key} is not one of {', '.join(allowed)}")
        attributes[key] = value
    return attributes


# RocketMQ's attributes, with the values that this broker supports. Batch queues and compaction are not implemented, so
# a topic with such a value would break its promise.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}


def _with_equal_queues(topic: str, queue_nums: int, perm: int = int(Perm.READ | Perm.WRITE)) -> TopicConfig:
    return TopicConfig(topic, queue_nums, queue_nums, perm)


def with_perm_of_broker(config: TopicConfig, broker_permission: int) -> TopicConfig:
    """Return the topic with the permissions that clients have: those that both the topic and the broker grant."""
    if config.perm & broker_permission == config.perm & int(Perm.READ | Perm.WRITE):
        return config
    kept = config.perm & ~int(Perm.READ | Perm.WRITE) | config.perm & broker_permission
    return dataclasses.replace(config, perm=kept)
