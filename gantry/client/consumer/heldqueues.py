"""The queues that a member of a group holds: for each, the committed offset and the epoch of the latest reset it knows.

A commit is made for an epoch. If the offset of the group is reset while the commit is under way, its end says nothing
about the queue any more.

Concurrency: the event loop's thread.
"""

from collections.abc import Iterator

from gantry.model.message import MessageQueue


class HeldQueues:
    """The held queues."""

    def __init__(self) -> None:
        self._queues: dict[MessageQueue, tuple[int | None, int]] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(list(self._queues))

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: MessageQueue, committed_offset: int | None, epoch: int) -> None:
        """Add a queue."""
        self._queues[queue] = (committed_offset, epoch)

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue, if it is held."""
        self._queues.pop(queue, None)

    def clear(self) -> None:
        """Remove all queues."""
        self._queues.clear()

    def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset on a queue, as far as the member knows it; None if there is none."""
        return self._queues.get(queue, (None, 0))[0]

    def epoch(self, queue: MessageQueue) -> int:
        """Return the epoch of the latest reset that the member knows of a queue; 0 if it knows of none."""
        return self._queues.get(queue, (None, 0))[1]

    def committed(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        """Note the end of a commit that was made for this epoch."""
        if queue in self._queues and self.epoch(queue) == epoch:
            self._queues[queue] = (offset, epoch)

    def reset(self, queue: MessageQueue, offset: int, epoch: int) -> bool:
        """Note a reset. Return False if the queue is not held, or the reset is known."""
        if queue not in self._queues or epoch <= self.epoch(queue):
            return False
        self._queues[queue] = (offset, epoch)
        return True
