"""The recalls that the wheel may not know yet. Pure.

A recall stores a deletion, which waits for the same second as its message. Until the deletion has been read from the
timer's queue, and until the second has fired, this table knows it. So a recall that was accepted suppresses its message
even if the second fires before the queue has been read that far, and a second recall of a message finds the first one.
It hits only messages that were stored before it (ADR 0048), so the table has the physical offset of each deletion.

Concurrency: the loop's thread.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.timerdeletion import deletes, deletion_order, key_of

RECALLS_MAX: Final = 10_000
"""Limit of recalls in the table, about 3 MiB. Those that the wheel knows make room."""


class Deletions:
    """The deletions of a second that fires: those that wait in the wheel, and recalls that the wheel may not know."""

    def __init__(self) -> None:
        self._orders: dict[str, int] = {}
        # Each deletion in the wheel was counted as one message of its topic less.
        self._counted = Counter[str]()

    def read(self, deletion: StoredMessage) -> None:
        """Add a deletion that waits in the wheel."""
        key = deletion.properties.get(PropertyName.TIMER_DEL_UNIQKEY, "")
        self._orders[key] = max(self._orders.get(key, 0), deletion_order(deletion))
        self._counted[key] += 1

    def take(self, orders: Mapping[str, int]) -> None:
        """Add what Recalls.close returned."""
        for key, order in orders.items():
            self._orders[key] = max(self._orders.get(key, 0), order)

    def hit(self, message: StoredMessage) -> int | None:
        """Return None if no deletion hits a message; else the change (0 or -1) of its topic's count of waiting messages."""
        key = key_of(message)
        order = self._orders.get(key)
        if order is None or not deletes(order, message):
            return None
        if not self._counted[key]:
            return -1
        self._counted[key] -= 1
        return 0

    def unused(self) -> Iterator[tuple[str, int]]:
        """Return topics, with the number of deletions in the wheel that have hit no message."""
        return ((key.rpartition("+")[0], count) for key, count in self._counted.items())


class _Deletion(NamedTuple):
    physical_offset: int
    queue_offset: int


class Recalls:
    """Recalled messages by the second at which they wait.

    Attributes:
        closed_before: Recalls for earlier seconds come too late: these have fired, or fire now.
    """

    def __init__(self, *, count_max: int = RECALLS_MAX) -> None:
        self.closed_before = 0
        self._count_max = count_max
        # The last deletion by second and deletion key.
        self._deletions: OrderedDict[tuple[int, str], _Deletion] = OrderedDict()

    def __len__(self) -> int:
        return len(self._deletions)

    def order(self, second: int, key: str) -> int | None:
        """Return the order of the last recall of a message, as `delivery.deletes` takes it; None if there is none."""
        deletion = self._deletions.get((second, key))
        return None if deletion is None else deletion.physical_offset

    def has_room(self, read_offset: int) -> bool:
        """Return whether one more recall fits.

        Args:
            read_offset: Offset up to which the timer's queue has been read. The wheel knows the deletions before it.
        """
        while len(self._deletions) >= self._count_max:
            first = next(iter(self._deletions))
            if self._deletions[first].queue_offset >= read_offset:
                return False
            del self._deletions[first]
        return True

    def add(self, second: int, key: str, *, physical_offset: int, queue_offset: int) -> None:
        """Add a recall whose deletion was just appended to the timer's queue."""
        assert second >= self.closed_before, f"second {second} has fired"
        self._deletions[second, key] = _Deletion(physical_offset, queue_offset)
        self._deletions.move_to_end((second, key))

    def close(self, second: int) -> dict[str, int]:
        """Take no more recalls for a second and those before it. Return the order of each deletion key of this second."""
        self.closed_before = max(self.closed_before, second + 1)
        return {key: one.physical_offset for (waits_at, key), one in self._deletions.items() if waits_at == second}

    def forget(self, read_second: int, read_offset: int) -> None:
        """Forget the recalls of seconds before `read_second`, as far as the timer's queue has been read."""
        for recall, deletion in list(self._deletions.items()):
            if recall[0] < read_second and deletion.queue_offset < read_offset:
                del self._deletions[recall]
