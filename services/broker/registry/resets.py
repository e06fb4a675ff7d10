"""Resets of committed offsets: for each (topic, group) and queue, the latest one.

A reset has an epoch, a number that grows with each reset on this broker. `resetfence.py` compares epochs to recognise
what a consumer has read before the reset. The undo of a reset needs the offset before it.

The rows survive a restart of the broker: a client that connects again still has the offsets in memory that it had
before the reset.

Concurrency: the loop's thread only.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

HOLDS_MS: Final = 3_600_000
"""Time for which a reset holds against offsets from before it.

A client that uses its connection learns of a reset within 30 s. One that is silent for longer than
`channelExpiredTimeout` (2 minutes) loses its connection and its queues. An hour also covers a machine that was
suspended.
"""
KEPT_MS: Final = 24 * 3_600_000
"""Time for which a reset can be undone."""
RESETS_MAX: Final = 100_000
"""Limit of rows, one for each queue. They take about 20 MB of memory, and 6 MB of the disk with every reset."""
_SEPARATOR: Final = "@"


class Reset(NamedTuple):
    """The latest reset of one queue for one group.

    Attributes:
        epoch: Number of the reset; the same for all queues of one call.
        at_ms: Wall time.
        from_offset: Committed offset before the reset; None if there was none.
        offset: Committed offset that the reset has set; None if it has removed the offset.
    """

    epoch: int
    at_ms: int
    from_offset: int | None
    offset: int | None


class ResetTable:
    """The latest resets.

    Attributes:
        is_dirty: Whether a row was added or removed since the owner last saved the table.
        unsaved: Pairs that have changed since the last save.
        holds_until_ms: Wall time up to which some reset holds.
    """

    def __init__(self) -> None:
        self.is_dirty = False
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self.holds_until_ms = 0
        self._table: dict[str, dict[int, Reset]] = {}
        self._count = 0
        self._epoch = 0
        # The epoch and the key of each reset, by epoch. Some may be superseded.
        self._made: list[tuple[int, str]] = []

    @property
    def epoch(self) -> int:
        """The epoch of the latest reset; 0 if there was none."""
        return self._epoch

    def load(self, table: Mapping[str, Mapping[int, Reset]]) -> None:
        """Load the content of the file."""
        for key, queues in table.items():
            self._table[key] = dict(queues)
            self._count += len(queues)
            self.unsaved[key] = None
            for reset in queues.values():
                self._epoch = max(self._epoch, reset.epoch)
                self.holds_until_ms = max(self.holds_until_ms, reset.at_ms + HOLDS_MS)
        self._made = sorted({(reset.epoch, key) for key, queues in self._table.items() for reset in queues.values()})

    def made_after(self, epoch: int, count: int) -> list[tuple[int, str, str]]:
        """Return epoch, topic and group of the first `count` resets after an epoch, by epoch."""
        start = bisect_right(self._made, epoch, key=itemgetter(0))
        found = []
        for later, key in self._made[start : start + count]:
            topic, _, group = key.partition(_SEPARATOR)
            found.append((later, topic, group))
        return found

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues with a reset, of any epoch."""
        return len(self._table.get(f"{topic}{_SEPARATOR}{group}", {}))

    def queues_of(self, topic: str, group: str, epoch: int) -> dict[int, Reset]:
        """Return the queues whose latest reset has this epoch."""
        queues = self._table.get(f"{topic}{_SEPARATOR}{group}", {})
        return {queue_id: reset for queue_id, reset in sorted(queues.items()) if reset.epoch == epoch}

    def has_room(self, topic: str, group: str, queue_ids: Sequence[int], now_ms: int) -> bool:
        """Return whether rows for these queues fit. Old rows make room: first those that can't be undone any more."""
        known = self._table.get(f"{topic}{_SEPARATOR}{group}", {})
        new = sum(queue_id not in known for queue_id in queue_ids)
        for age_ms in (KEPT_MS, HOLDS_MS):
            if self._count + new <= RESETS_MAX:
                return True
            self._remove_older(now_ms - age_ms)
        return self._count + new <= RESETS_MAX

    def put(self, topic: str, group: str, moves: Mapping[int, tuple[int | None, int | None]], now_ms: int) -> int:
        """Add the rows of one reset, for which there is room.

        Args:
            topic: Topic of the queues.
            group: The group.
            moves: Queue id → offsets before and after the reset.
            now_ms: Wall time.

        Returns:
            The epoch of the reset.
        """
        key = f"{topic}{_SEPARATOR}{group}"
        # The clock makes epochs grow even if the table was lost.
        self._epoch = epoch = max(self._epoch + 1, now_ms)
        queues = self._table.setdefault(key, {})
        self._count -= len(queues)
        queues.update({queue_id: Reset(epoch, now_ms, before, after) for queue_id, (before, after) in moves.items()})
        self._count += len(queues)
        self.holds_until_ms = max(self.holds_until_ms, now_ms + HOLDS_MS)
        self._made.append((epoch, key))
        if len(self._made) > 2 * RESETS_MAX:
            del self._made[:RESETS_MAX]
        self._changed(key)
        return epoch

    def find(self, topic: str, group: str, queue_id: int, now_ms: int) -> Reset | None:
        """Return the latest reset of a queue if it can still be undone."""
        return self._younger(topic, group, queue_id, now_ms - KEPT_MS)

    def holding(self, topic: str, group: str, queue_id: int, now_ms: int) -> Reset | None:
        """Return the latest reset of a queue if it holds. One that has removed the offset holds against nothing."""
        reset = self._younger(topic, group, queue_id, now_ms - HOLDS_MS)
        return None if reset is None or reset.offset is None else reset

    def rows(self, key: str) -> dict[str, Reset] | None:
        """Return the rows of a pair in the form of the file; None if there are none."""
        queues = self._table.get(key)
        return None if queues is None else {str(queue_id): reset for queue_id, reset in sorted(queues.items())}

    def remove_topic(self, topic: str) -> None:
        """Remove the rows of a deleted topic."""
        self._remove([key for key in self._table if key.partition(_SEPARATOR)[0] == topic])

    def remove_group(self, group: str) -> None:
        """Remove the rows of a deleted group."""
        self._remove([key for key in self._table if key.partition(_SEPARATOR)[2] == group])

    def _younger(self, topic: str, group: str, queue_id: int, since_ms: int) -> Reset | None:
        reset = self._table.get(f"{topic}{_SEPARATOR}{group}", {}).get(queue_id)
        return None if reset is None or reset.at_ms <= since_ms else reset

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._count -= len(self._table.pop(key))
            self._changed(key)

    def _remove_older(self, since_ms: int) -> None:
        for key, queues in list(self._table.items()):
            kept = {queue_id: reset for queue_id, reset in queues.items() if reset.at_ms > since_ms}
            if len(kept) < len(queues):
                self._count -= len(queues) - len(kept)
                if kept:
                    self._table[key] = kept
                else:
                    del self._table[key]
                self._changed(key)

    def _changed(self, key: str) -> None:
        self.unsaved[key] = None
        self.is_dirty = True
