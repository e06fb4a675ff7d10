"""Keeps the offsets of a reset: a consumer must read the new offset before it may commit again.

A reset sets the committed offset of a group in a queue. Consumers of the group still have offsets from before the reset
in memory, and requests under way. A commit of such an offset would undo the reset. So for an hour after a reset
(registry/resets.py), the broker decides for each pull and each commit whether it comes from before or after the reset.

Gantry's own consumers tell: the answer to request 14 has the epoch of the queue's latest reset, and their pulls and
commits repeat it. A request with an older epoch comes from before the reset.

Other consumers don't know epochs. For them, the broker keeps a state for each connection and queue:

    state       the connection has                      pulls                          commits
    (none)      read nothing since the reset            only from the committed        refused
                                                        offset, others get 21
    told        got the offset, by 21 or by 220         the same                       only of the offset that it was
                                                                                       told, as a sign that it follows
    pulling     pulled from the new offset              all                            within the range that it has
                                                                                       pulled since the reset
    free        asked for the committed offset (14),    all                            all
                or committed the offset it was told

An answer with 21 alone does not make a connection free: RocketMQ's 4.9 clients go on to commit old offsets for 10 s
after 21 and after 220. Both kinds of clients then commit the new offset and ask for it with 14.

Tools commit too (mqadmin resetOffsetByTimeOld, cloneGroupOffset), without reading. A commit is a tool's if the sender
waits for an answer, is not a member of the group, and has neither pulled, asked nor committed for the group before.

Concurrency: the loop's thread only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gantry.runtime.clock import Clock
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.resets import Reset

GROUPS_OF_CONNECTION_MAX: Final = 100_000
"""Limit of groups that are noted for a connection. Beyond it, every commit counts as that of a consumer."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a pull or a commit.

    Attributes:
        connection: Its connection.
        epoch: Epoch of the reset that it knows; None if it does not know epochs.
        waits: Whether it waits for an answer.
    """

    connection: Any
    epoch: int | None = None
    waits: bool = False


class QueueKey(NamedTuple):
    """A queue of a group."""

    topic: str
    group: str
    queue_id: int


class _Reader:
    """The state of a connection and a queue since the reset with this epoch."""

    __slots__ = ("end", "epoch", "first", "is_free", "told")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.told: int | None = None
        self.first: int | None = None
        self.end = 0
        self.is_free = False


class ResetFence:
    """Decides which pulls and commits come from before a reset.

    Args:
        is_member: Returns whether a connection has a member of a group.
    """

    def __init__(self, offsets: OffsetTable, clock: Clock, is_member: Callable[[str, Any], bool]) -> None:
        self._offsets = offsets
        self._resets = offsets.resets
        self._clock = clock
        self._is_member = is_member
        self._readers: dict[Any, dict[QueueKey, _Reader]] = {}
        self._groups: dict[Any, set[str]] = {}

    @property
    def is_armed(self) -> bool:
        """Whether any reset holds."""
        until_ms = self._resets.holds_until_ms
        return until_ms > 0 and self._clock.now_ms() < until_ms

    def note(self, connection: Any, group: str) -> None:
        """Note that a connection consumes for a group. Every pull and every request 14 calls this."""
        groups = self._groups.get(connection)
        if groups is None:
            groups = self._groups[connection] = set()
        if len(groups) < GROUPS_OF_CONNECTION_MAX:
            groups.add(group)

    def forget(self, connection: Any) -> None:
        """Forget a closed connection."""
        self._readers.pop(connection, None)
        self._groups.pop(connection, None)

    def move_pull(self, sender: Sender, key: QueueKey, offset: int) -> int | None:
        """Return the offset at which a pull must go on instead, or None if the pull may read from its own offset."""
        reset = self._holding(key)
        if reset is None:
            return None
        committed = self._offsets.find(*key)
        if sender.epoch is not None:
            return committed if sender.epoch < reset.epoch else None
        reader = self._reader(sender.connection, key, reset)
        if reader.is_free or reader.first is not None:
            return None
        if committed is None or offset in (committed, reader.told):
            reader.first = reader.end = offset
            return None
        reader.told = committed
        return committed

    def served(self, sender: Sender, key: QueueKey, offset: int, next_offset: int) -> None:
        """Note that a pull was answered with the messages from `offset` up to `next_offset`."""
        if sender.epoch is None and (reset := self._holding(key)) is not None:
            reader = self._reader(sender.connection, key, reset)
            if reader.first is not None:
                reader.first = min(reader.first, offset)
                reader.end = max(reader.end, next_offset)

    def told(self, connection: Any, key: QueueKey, offset: int) -> None:
        """Note that a connection was told the offset of a reset (220)."""
        reset = self._holding(key)
        if reset is not None:
            self._reader(connection, key, reset).told = offset

    def read(self, connection: Any, key: QueueKey) -> int | None:
        """Note that a connection got the committed offset (14). Return the epoch of the latest reset, if there is one."""
        reset = self._holding(key)
        if reset is None:
            return None
        self._reader(connection, key, reset).is_free = True
        return reset.epoch

    def epoch(self, key: QueueKey) -> int | None:
        """Return the epoch of a queue's latest reset if it holds."""
        reset = self._holding(key)
        return None if reset is None else reset.epoch

    def refused(self, sender: Sender, key: QueueKey, offset: int) -> Reset | None:
        """Return the reset against which a commit must not be stored, or None if the commit may be stored."""
        reset = self._holding(key) if self.is_armed else None
        if reset is None:
            if sender.epoch is None:
                self.note(sender.connection, key.group)
            return None
        if sender.epoch is not None:
            return reset if sender.epoch < reset.epoch else None
        if self._is_tool(sender, key.group):
            return None
        reader = self._reader(sender.connection, key, reset)
        if offset == reader.told:
            reader.is_free = True
        if reader.is_free or (reader.first is not None and reader.first <= offset <= reader.end):
            return None
        return reset

    def _is_tool(self, sender: Sender, group: str) -> bool:
        groups = self._groups.get(sender.connection, ())
        is_consumer = group in groups or len(groups) >= GROUPS_OF_CONNECTION_MAX
        return sender.waits and not is_consumer and not self._is_member(group, sender.connection)

    def _holding(self, key: QueueKey) -> Reset | None:
        return self._resets.holding(*key, self._clock.now_ms())

    def _reader(self, connection: Any, key: QueueKey, reset: Reset) -> _Reader:
        readers = self._readers.setdefault(connection, {})
        reader = readers.get(key)
        if reader is None or reader.epoch != reset.epoch:
            reader = readers[key] = _Reader(reset.epoch)
        return reader
