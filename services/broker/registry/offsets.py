"""Committed offsets: for each (topic, group) and queue, the next message that the group wants.

A commit overwrites the old offset, even with a smaller one. A client without an offset commits a negative one, which is
ignored. A crash may lose the commits since the last write of the file (5 s by default). The group then receives these
messages again: delivery is at least once, and no message is lost.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from gantry.model.topic import DataVersion
from services.broker.registry.resets import ResetTable

# Number of commits for each new DataVersion. The table changes too often for a version after each commit.
VERSION_STEP = 500
SEPARATOR = "@"

OFFSETS_MAX: Final = 500_000
"""Limit of offsets: beyond it, no new pair of topic and group is added.

RocketMQ has no limit, and any client may invent pairs. This many pairs with one queue each take 400 MB of memory, and
30 MB of the disk with every save.
"""
QUEUES_RESERVE: Final = 500_000
"""Number of further offsets that existing pairs may add. Their groups can go on when a topic gets more queues."""
PULLED_PAIRS_MAX: Final = 100_000
"""Number of pairs whose pulls are recorded; the oldest pair is removed. Only tools show them."""


class ClampedOffset(NamedTuple):
    """An offset that was past the end of its queue."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int


class QueueOffsets:
    """`topic@group` → queue id → offset, with indexes from topic to groups and from group to topics.

    Attributes:
        table: The offsets; callers must not change them.
        count: Number of offsets.
    """

    __slots__ = ("_groups", "_topics", "count", "table")

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.count = 0
        self._groups: dict[str, dict[str, None]] = {}
        self._topics: dict[str, dict[str, None]] = {}

    def put(self, topic: str, group: str, queues: dict[int, int]) -> None:
        """Add a new pair."""
        self.table[f"{topic}{SEPARATOR}{group}"] = queues
        self.count += len(queues)
        self._groups.setdefault(topic, {})[group] = None
        self._topics.setdefault(group, {})[topic] = None

    def put_queue(self, queues: dict[int, int], queue_id: int, offset: int) -> None:
        """Set the offset of one queue of a pair, whose offsets in the table are `queues`."""
        if queue_id not in queues:
            self.count += 1
        queues[queue_id] = offset

    def remove_queue(self, queues: dict[int, int], queue_id: int) -> None:
        """Remove the offset of one queue of a pair that has more of them."""
        del queues[queue_id]
        self.count -= 1
        assert queues, "a pair has an offset"

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
        """Remove an existing pair."""
        key = f"{topic}{SEPARATOR}{group}"
        assert key in self.table, f"{key} is unknown"
        self.count -= len(self.table.pop(key))
        assert self.count >= 0, f"{self.count} offsets after {key} was removed"
        for table, owner, name in ((self._groups, topic, group), (self._topics, group, topic)):
            names = table[owner]
            del names[name]
            if not names:
                del table[owner]


class OffsetTable:
    """The committed offsets, and the pull progress of each queue, which is in memory only.

    Attributes:
        is_dirty: Whether an offset was committed or removed since the owner last saved the table.
        unsaved: Pairs that are new, changed or removed since the last save.
        unsaved_groups: Groups whose list of topics has changed since the last save.
        resets: The latest resets.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.resets = ResetTable()
        self.is_dirty = False
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self.unsaved_groups: OrderedDict[str, None] = OrderedDict()
        self._committed = QueueOffsets()
        self._pulled = QueueOffsets()
        self._commits = 0

    def load(self, version: DataVersion, table: Mapping[str, Mapping[int, int]]) -> None:
        """Load the content of the file."""
        self.version = version
        for key, queues in table.items():
            topic, _, group = key.partition(SEPARATOR)
            self._committed.put(topic, group, dict(queues))
            self.unsaved[key] = None
            self.unsaved_groups[group] = None

    def clamp(self, end_of: Callable[[str, int], int]) -> list[ClampedOffset]:
        """Set every offset past the end of its queue back to the end, and return these offsets.

        Otherwise a group would skip the messages that fill the queue up to its offset.

        Args:
            end_of: Function that returns the max offset of a queue; 0 for a missing queue, whose first message gets
                offset 0.
        """
        clamped: list[ClampedOffset] = []
        for key, queues in self._committed.table.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    clamped.append(ClampedOffset(topic, group, queue_id, offset, end))
        for topic, group, queue_id, _, end in clamped:
            key = f"{topic}{SEPARATOR}{group}"
            self._committed.table[key][queue_id] = end
            self.unsaved[key] = None
            self.is_dirty = True
        return clamped

    def commit(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Store an offset. A negative one is ignored.

        Returns:
            False if the table is full and the offset was not stored, else True.
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
            if queue_id not in queues and committed.count >= OFFSETS_MAX + QUEUES_RESERVE:
                return False
            committed.put_queue(queues, queue_id, offset)
        self.unsaved[key] = None
        self.is_dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.version = self.version.next(now_ms)
        return True

    def has_room(self, topic: str, group: str, queue_ids: Collection[int]) -> bool:
        """Return whether offsets of these queues fit into the table."""
        queues = self._committed.table.get(f"{topic}{SEPARATOR}{group}")
        if queues is None:
            return self._committed.count < OFFSETS_MAX
        new = sum(queue_id not in queues for queue_id in queue_ids)
        return new == 0 or self._committed.count + new <= OFFSETS_MAX + QUEUES_RESERVE

    def remove_queue(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the offset of one queue, if there is one."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._committed.table.get(key)
        if queues is None or queue_id not in queues:
            return
        if len(queues) == 1:
            self._remove(topic, group)
            return
        self._committed.remove_queue(queues, queue_id)
        self.unsaved[key] = None
        self.is_dirty = True

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the committed offset of one queue, or None."""
        queues = self._committed.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        """Return the committed offsets of a topic's queues."""
        return self._committed.table.get(f"{topic}{SEPARATOR}{group}", {})

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Record the offset up to which the group has received the messages of a queue."""
        pulled = self._pulled
        queues = pulled.table.get(f"{topic}{SEPARATOR}{group}")
        if queues is not None:
            pulled.put_queue(queues, queue_id, offset)
            return
        if len(pulled.table) >= PULLED_PAIRS_MAX:
            oldest, _, owner = next(iter(pulled.table)).partition(SEPARATOR)
            pulled.remove(oldest, owner)
        pulled.put(topic, group, {queue_id: offset})

    def pulled(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset up to which the group has pulled a queue since the start, or None."""
        queues = self._pulled.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics on which a group has committed offsets."""
        return self._committed.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets on a topic."""
        return self._committed.groups_of(topic)

    def groups(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return self._committed.groups()

    def all(self) -> Mapping[str, Mapping[int, int]]:
        """Return the table itself; callers must not change it."""
        return self._committed.table

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic."""
        for group in self._committed.groups_of(topic):
            self._remove(topic, group)
        for group in self._pulled.groups_of(topic):
            self._pulled.remove(topic, group)
        self.resets.remove_topic(topic)

    def remove_group(self, group: str) -> None:
        """Remove the offsets of a deleted group."""
        for topic in self._committed.topics_of(group):
            self._remove(topic, group)
        for topic in self._pulled.topics_of(group):
            self._pulled.remove(topic, group)
        self.resets.remove_group(group)

    def _remove(self, topic: str, group: str) -> None:
        self._committed.remove(topic, group)
        self.unsaved[f"{topic}{SEPARATOR}{group}"] = None
        self.unsaved_groups[group] = None
        self.is_dirty = True
