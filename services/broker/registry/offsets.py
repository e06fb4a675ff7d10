"""Committed offsets: per (topic, group) and queue, the next message the group wants.

A commit overwrites whatever was there, also with a smaller offset; negative ones come from clients that know nothing
yet and are ignored. What a crash may lose is what was committed since the last write of the file (5 s by default), so
a group sees those messages again: at least once, never lost.

Concurrency: the loop's thread only.
"""

from collections.abc import Iterable, Iterator, Mapping

from gantry.model.topic import DataVersion

# Commits per new DataVersion; the table changes too often for a version each.
VERSION_STEP = 500
SEPARATOR = "@"


class OffsetTable:
    """`topic@group` → queue id → committed offset; and beside it, in memory only, how far each queue was pulled."""

    def __init__(self) -> None:
        self.version = DataVersion()
        self.is_dirty = False
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._commits = 0

    def load(self, version: DataVersion, table: Mapping[str, Mapping[int, int]]) -> None:
        """Take over what the file says."""
        self.version = version
        self._table = {key: dict(queues) for key, queues in table.items()}

    def commit(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Store an offset; a negative one is ignored."""
        if offset < 0:
            return
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        queues[queue_id] = offset
        self.is_dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.version = self.version.next(now_ms)

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the committed offset of one queue, or None."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        """Return the committed offsets of a topic's queues."""
        return self._table.get(f"{topic}{SEPARATOR}{group}", {})

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Note how far a group has been given the messages of a queue."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def pulled(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return how far a queue was pulled since the start, or None."""
        queues = self._pulled.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has committed offsets."""
        return [topic for topic, owner in self._names() if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        return [owner for name, owner in self._names() if name == topic]

    def group_topics(self) -> dict[str, tuple[str, ...]]:
        """Return each group's topics."""
        return topics_by_group(self._table)

    def all(self) -> Mapping[str, Mapping[int, int]]:
        """Return the table itself; not to be changed."""
        return self._table

    def remove_topic(self, topic: str) -> None:
        """Forget the offsets of a deleted topic."""
        self._remove(f"{topic}{SEPARATOR}", at_start=True)

    def remove_group(self, group: str) -> None:
        """Forget the offsets of a deleted group."""
        self._remove(f"{SEPARATOR}{group}", at_start=False)

    def snapshot(self) -> dict[str, dict[int, int]]:
        """Return a copy that another thread may encode, and count as clean from here on."""
        self.is_dirty = False
        return {key: dict(queues) for key, queues in self._table.items()}

    def _names(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group

    def _remove(self, part: str, *, at_start: bool) -> None:
        for table in (self._table, self._pulled):
            for key in [key for key in table if (key.startswith(part) if at_start else key.endswith(part))]:
                del table[key]
                self.is_dirty = True


def topics_by_group(keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the topics of each group, from keys of the form `topic@group`."""
    topics: dict[str, list[str]] = {}
    for key in keys:
        topic, _, group = key.partition(SEPARATOR)
        topics.setdefault(group, []).append(topic)
    return {group: tuple(names) for group, names in topics.items()}
