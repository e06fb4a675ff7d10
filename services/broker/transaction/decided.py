"""The half messages that op messages name. Pure.

The progress of the check is a position in the half topic. Before it, every half message is decided, or was stored
again behind it. From it on, this table knows which half messages need no attention, and which op message says so. The
progress in the op topic follows: it may not pass an op message that names a half message at or after the position,
because the next start reads the op topic from there.

Concurrency: the loop's thread.
"""

from collections.abc import Iterable


class DecidedOffsets:
    """Queue offsets of half messages that op messages name, from `position` on.

    Attributes:
        position: Queue offset of the first half message that the check has not finished.
    """

    def __init__(self, position: int, op_position: int) -> None:
        self.position = position
        self._op_next = op_position
        # Half offset -> offset of the op message that names it, and op offset -> number of half offsets that it keeps.
        self._decided: dict[int, int] = {}
        self._kept: dict[int, int] = {}

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self._decided

    def __len__(self) -> int:
        return len(self._decided)

    @property
    def op_position(self) -> int:
        """Queue offset of the first op message that the next start must read."""
        return min(self._kept, default=self._op_next)

    def add(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Add the half offsets that an op message names. Those before the position need no op message any more."""
        for half_offset in half_offsets:
            if half_offset >= self.position and half_offset not in self._decided:
                self._decided[half_offset] = op_offset
                self._kept[op_offset] = self._kept.get(op_offset, 0) + 1
        self._op_next = max(self._op_next, op_offset + 1)
        assert len(self._decided) >= len(self._kept), "every op message in the table names a half message"

    def move_to(self, position: int) -> None:
        """Move the position forward, and forget what lies before it."""
        assert position >= self.position, f"the position {self.position} may not go back to {position}"
        if position - self.position > len(self._decided):
            passed = [offset for offset in self._decided if offset < position]
        else:
            passed = [offset for offset in range(self.position, position) if offset in self._decided]
        for half_offset in passed:
            op_offset = self._decided.pop(half_offset)
            self._kept[op_offset] -= 1
            if not self._kept[op_offset]:
                del self._kept[op_offset]
        self.position = position
        assert len(self._decided) >= len(self._kept), "every op message in the table names a half message"
