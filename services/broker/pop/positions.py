"""The position of each group in each queue that it pops: the next message to give out.

The committed offset follows the position once the check point of the messages before it is durable. So an offset file
never is ahead of the check points. It may be behind them after a crash. The check points in the revive topic then set
the position: those of one queue are a chain, each begins where the one before it ended.

An offset that somebody else commits (a reset, a consumer that pulls) is the new position. Such a jump is noted as an
anchor in the revive topic, so that check points from before it do not undo it after a crash.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from services.broker.refusal import RefusalError
from services.broker.registry.offsets import OffsetTable

POSITIONS_MAX: Final = 500_000
"""Limit of positions in memory, as that of committed offsets. Beyond it, idle ones are read again when needed."""
SPAN_MAX: Final = 30_000
"""Largest distance from the start of a check point to its last message; beyond it, the chain begins anew."""

QueueKey = tuple[str, str, int]
"""Topic, group and queue id."""


class Position:
    """The position of a group in a queue.

    Attributes:
        next_offset: The next message to give out.
        chain: The offset at which the next check point begins.
        committed: The committed offset that this broker has set or seen.
        pending: Number of check points that are not durable yet.
    """

    __slots__ = ("chain", "committed", "next_offset", "pending")

    def __init__(self, offset: int) -> None:
        self.next_offset = self.chain = self.committed = offset
        self.pending = 0


class Positions:
    """All positions.

    Args:
        offsets: The committed offsets.
        clock: Clock of the table's version.
        on_jump: Called with a queue and the new offset if somebody else has moved a position, or if a chain begins anew.
    """

    def __init__(self, offsets: OffsetTable, clock: Clock, on_jump: Callable[[QueueKey, int], None]) -> None:
        self._offsets = offsets
        self._clock = clock
        self._on_jump = on_jump
        self._table: OrderedDict[QueueKey, Position] = OrderedDict()

    def find(self, key: QueueKey) -> int | None:
        """Return the next message to give out, or None if the group has no position in the queue yet."""
        committed = self._offsets.find(*key)
        if committed is None:
            return None
        position = self._table.get(key)
        return committed if position is None or position.committed != committed else position.next_offset

    def get(self, key: QueueKey, initial: int) -> Position:
        """Return a position, and begin at an offset if there is none yet. Raises RefusalError if there is no room."""
        committed = self._offsets.find(*key)
        position = self._table.get(key)
        if committed is None:
            position = self._begin(key, initial)
            if not self._commit(key, position, initial):
                raise RefusalError(
                    ResponseCode.SYSTEM_BUSY,
                    f"group {key[1]} has no offset on topic {key[0]}, and there is no room for more",
                )
            self._on_jump(key, initial)
        elif position is None:
            position = self._begin(key, committed)
        elif position.committed != committed:
            position = self._begin(key, committed)
            self._on_jump(key, committed)
        return position

    def start(self, key: QueueKey, position: Position, first: int, last: int) -> int:
        """Return the start of the check point for messages from `first` to `last`, the next ones that are given out."""
        assert position.next_offset <= first <= last, f"{first} to {last} at {position.next_offset}"
        if not 0 <= first - position.chain <= last - position.chain <= SPAN_MAX:
            position.chain = first
            self._on_jump(key, first)
        return position.chain

    def move(self, position: Position, last: int, next_offset: int) -> None:
        """Move a position past messages for which a check point is appended; `stored` follows.

        Args:
            position: The position.
            last: Offset of the last message.
            next_offset: The next message to give out; messages that a filter left out may lie between.
        """
        assert position.next_offset <= last < next_offset, f"{last} at {position.next_offset}"
        position.chain = last + 1
        position.next_offset = next_offset
        position.pending += 1

    def skip(self, key: QueueKey, position: Position, next_offset: int) -> None:
        """Move a position past messages that a filter left out, or that are gone."""
        position.next_offset = next_offset
        if not position.pending:
            self._commit(key, position, next_offset)

    def stored(self, key: QueueKey, position: Position, next_offset: int, *, is_durable: bool) -> None:
        """Note that a check point is durable, or that it is unknown whether it is."""
        position.pending -= 1
        is_current = self._table.get(key) is position and self._offsets.find(*key) == position.committed
        if is_current and is_durable:
            self._commit(key, position, next_offset if position.pending else position.next_offset)

    def set(self, key: QueueKey, offset: int) -> None:
        """Set a position and its committed offset: a start has read it from the revive topic."""
        self._commit(key, self._begin(key, offset), offset)

    def reset(self, key: QueueKey, offset: int | None) -> None:
        """Note that the committed offset of a queue was reset; None: it was removed."""
        self._table.pop(key, None)
        if offset is not None:
            self._begin(key, offset)
            self._on_jump(key, offset)

    def forget(self, topic: str | None, group: str | None) -> None:
        """Forget the positions of a deleted topic or group."""
        for key in [key for key in self._table if topic in {None, key[0]} and group in {None, key[1]}]:
            del self._table[key]

    def _begin(self, key: QueueKey, offset: int) -> Position:
        while len(self._table) >= POSITIONS_MAX and key not in self._table:
            oldest, position = self._table.popitem(last=False)
            if position.pending:
                self._table[oldest] = position
                break
        position = self._table[key] = Position(offset)
        return position

    def _commit(self, key: QueueKey, position: Position, offset: int) -> bool:
        topic, group, queue_id = key
        has_room = self._offsets.commit(topic, group, queue_id, offset, self._clock.now_ms())
        if has_room:
            position.committed = offset
        return has_room
