"""Committed offsets: per (topic, group) and queue, the next message the group wants.

A commit overwrites whatever was there, also with a smaller offset; negative ones come from clients that know nothing
yet and are ignored. What a crash may lose is what was committed since the last write of the file (5 s by default), so
a group sees those messages again: at least once, never lost.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gantry.model.topic import DataVersion

# Commits per new DataVersion; the table changes too often for a version each.
VERSION_STEP = 500
SEPARATOR = "@"

OFFSETS_MAX: Final = 500_000
"""Offsets beyond which no pair of topic and group is added. RocketMQ has no limit, and any client may invent pairs;
so many pairs with one queue each take 400 MB of memory, and 30 MB of the disk with every save."""
QUEUES_RESERVE: Final = 500_000
"""So many more offsets may be added to pairs that are there: their groups go on when a topic gets more queues."""
PULLED_PAIRS_MAX: Final = 100_000
"""Pairs whose pulls are noted; the oldest goes. Tools show them, nothing depends on them."""


class Clamped(NamedTuple):
    """An offset that lay beyond the end of its queue."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int


class QueueOffsets:
    """`topic@group` → queue id → offset, with the names found from both sides.

    Attributes:
        table: The offsets; not to be changed.
        count: How many there are.
    """

    __slots__ = ("_groups", "_topics", "count", "table")

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.count = 0
        self._groups: dict[str, dict[str, None]] = {}
        self._topics: dict[str, dict[str, None]] = {}

    def put(self, topic: str, group: str, queues: dict[int, int]) -> None:
        """Add a pair that is not there."""
        self.table[f"{topic}{SEPARATOR}{group}"] = queues
        self.count += len(queues)
        self._groups.setdefault(topic, {})[group] = None
        self._topics.setdefault(group, {})[topic] = None

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of a group's pairs."""
        return list(self._topics.get(group, ()))

    def groups(self) -> list[str]:
        """Return the groups of all pairs."""
        return list(self._topics)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups of a topic's pairs."""
        return list(self._groups.get(topic, ()))

    def remove(self, topic: str, group: str) -> None:
        """Remove a pair that is there."""
        self.count -= len(self.table.pop(f"{topic}{SEPARATOR}{group}"))
        for table, key, name in ((self._groups, topic, group), (self._topics, group, topic)):
            names = table[key]
            del names[name]
            if not names:
                del table[key]


class OffsetTable:
    """The committed offsets; and beside them, in memory only, how far each queue was pulled.

    Attributes:
        is_dirty: Whether anything was committed or removed since its owner last had the table saved.
        unsaved: The pairs that are new, changed or gone since the last save.
        unsaved_groups: The groups whose topics are not those of the last save.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.is_dirty = False
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self.unsaved_groups: OrderedDict[str, None] = OrderedDict()
        self._committed = QueueOffsets()
        self._pulled = QueueOffsets()
        self._commits = 0

    def load(self, version: DataVersion, table: Mapping[str, Mapping[int, int]]) -> None:
        """Take over what the file says."""
        self.version = version
        for key, queues in table.items():
            topic, _, group = key.partition(SEPARATOR)
            self._committed.put(topic, group, dict(queues))
            self.unsaved[key] = None
            self.unsaved_groups[group] = None

    def clamp(self, end_of: Callable[[str, int], int]) -> list[Clamped]:
        """Set every offset beyond its queue's end back to it, and say which.

        Without that a group would pass over the messages that fill the queue up to its offset.

        Args:
            end_of: Returns a queue's max offset; 0 for a queue that is not there, whose first message will be 0.
        """
        clamped: list[Clamped] = []
        for key, queues in self._committed.table.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    clamped.append(Clamped(topic, group, queue_id, offset, end))
        for topic, group, queue_id, _, end in clamped:
            key = f"{topic}{SEPARATOR}{group}"
            self._committed.table[key][queue_id] = end
            self.unsaved[key] = None
            self.is_dirty = True
        return clamped

    def commit(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Store an offset; a negative one is ignored.

        Returns:
            False: the table is full, and nothing was stored.
        """
        if offset < 0:
            return True
        committed = self._committed
        key = f"{topic}{SEPARATOR}{group}"
        queues = committed.table.get(key)
        if queues is None:
            if committed.count >= OFFSETS_MAX:
                return False
            committed.put(topic, group, {queue_id: offset})
            self.unsaved_groups[group] = None
        else:
            if queue_id not in queues:
                if committed.count >= OFFSETS_MAX + QUEUES_RESERVE:
                    return False
                committed.count += 1
            queues[queue_id] = offset
        self.unsaved[key] = None
        self.is_dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.version = self.version.next(now_ms)
        return True

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the committed offset of one queue, or None."""
        queues = self._committed.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        """Return the committed offsets of a topic's queues."""
        return self._committed.table.get(f"{topic}{SEPARATOR}{group}", {})

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Note how far a group has been given the messages of a queue."""
        pulled = self._pulled
        queues = pulled.table.get(f"{topic}{SEPARATOR}{group}")
        if queues is not None:
            queues[queue_id] = offset
            return
        if len(pulled.table) >= PULLED_PAIRS_MAX:
            oldest, _, owner = next(iter(pulled.table)).partition(SEPARATOR)
            pulled.remove(oldest, owner)
        pulled.put(topic, group, {queue_id: offset})

    def pulled(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return how far a queue was pulled since the start, or None."""
        queues = self._pulled.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has committed offsets."""
        return self._committed.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        return self._committed.groups_of(topic)

    def groups(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return self._committed.groups()

    def all(self) -> Mapping[str, Mapping[int, int]]:
        """Return the table itself; not to be changed."""
        return self._committed.table

    def remove_topic(self, topic: str) -> None:
        """Forget the offsets of a deleted topic."""
        for group in self._committed.groups_of(topic):
            self._remove(topic, group)
        for group in self._pulled.groups_of(topic):
            self._pulled.remove(topic, group)

    def remove_group(self, group: str) -> None:
        """Forget the offsets of a deleted group."""
        for topic in self._committed.topics_of(group):
            self._remove(topic, group)
        for topic in self._pulled.topics_of(group):
            self._pulled.remove(topic, group)

    def _remove(self, topic: str, group: str) -> None:
        self._committed.remove(topic, group)
        self.unsaved[f"{topic}{SEPARATOR}{group}"] = None
        self.unsaved_groups[group] = None
        self.is_dirty = True
