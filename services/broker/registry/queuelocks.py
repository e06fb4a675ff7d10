"""Queue locks: which client of a group may consume a queue in order.

A client that consumes in order locks its queues and renews the locks every 20 s. A lock that is not renewed expires
after 60 s, and then another client may take it. The end of a connection does not free its locks: the client may still
be working on messages, and a client that stops unlocks its queues itself.

Theory of operation. Both levels of the table are in the order of their last renewal. So the expired locks of a group
are at its front, and the groups of which all locks have expired are at the front of the table. A request removes the
expired locks of its own group; `expire` removes the groups that no client renews any more.

Source: RocketMQ 5.x RebalanceLockManager.

Concurrency: the loop's thread only.
"""

from collections.abc import Iterable
from typing import Final

from gantry.model.message import MessageQueue

LOCK_EXPIRY_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
"""Largest number of locks. RocketMQ has no limit."""
EXPIRED_GROUPS_MAX: Final = 1_000
"""Largest number of groups that one call of `expire` removes."""

# Client id, and monotonic time of the last renewal in ms.
_Lock = tuple[str, int]


class QueueLocks:
    """Group → queue → the client that has locked it.

    Attributes:
        count: Number of locks, with those that have expired but are still in the table.
        refused: Number of locks that were refused, because another client has the queue.
        taken_over: Number of expired locks that another client took.
    """

    def __init__(self) -> None:
        self.count = 0
        self.refused = 0
        self.taken_over = 0
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks. Return the queues that the client has now.

        A queue that another client has is not locked, and neither is a new one above the limit.
        """
        locks = self._groups.get(group, {})
        locked = []
        for queue in queues:
            held = locks.get(queue)
            if held is not None:
                owner, renewed_ms = held
                if owner != client_id:
                    if now_ms - renewed_ms <= LOCK_EXPIRY_MS:
                        self.refused += 1
                        continue
                    self.taken_over += 1
                # The renewed lock goes to the end of the table.
                del locks[queue]
            elif self.count >= LOCKS_MAX:
                continue
            else:
                self.count += 1
            locks[queue] = (client_id, now_ms)
            locked.append(queue)
        self._remove_expired(locks, now_ms)
        if locked or not locks:
            self._groups.pop(group, None)
        if locked:
            self._groups[group] = locks
        assert self.count >= len(self._groups), "every group in the table has a lock"
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Remove the locks that this client has. Other clients keep theirs."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held[0] == client_id:
                del locks[queue]
                self.count -= 1
        if not locks:
            del self._groups[group]
        assert self.count >= len(self._groups), "every group in the table has a lock"

    def is_group_locked(self, group: str, now_ms: int) -> bool:
        """Return whether a client of the group has a lock that has not expired: the group consumes in order."""
        locks = self._groups.get(group)
        if locks is None:
            return False
        _, renewed_ms = locks[next(reversed(locks))]
        return now_ms - renewed_ms <= LOCK_EXPIRY_MS

    def drop_group(self, group: str) -> None:
        """Remove all locks of a deleted group."""
        self.count -= len(self._groups.pop(group, ()))
        assert self.count >= len(self._groups), "every group in the table has a lock"

    def drop_topic(self, topic: str) -> None:
        """Remove all locks of a deleted topic. A full table takes a few milliseconds."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue in locks if queue.topic == topic]:
                del locks[queue]
                self.count -= 1
            if not locks:
                del self._groups[group]
        assert self.count >= len(self._groups), "every group in the table has a lock"

    def expire(self, now_ms: int) -> None:
        """Remove groups of which all locks have expired, at most EXPIRED_GROUPS_MAX of them."""
        for group in list(self._groups)[:EXPIRED_GROUPS_MAX]:
            if self.is_group_locked(group, now_ms):
                return
            self.drop_group(group)

    def _remove_expired(self, locks: dict[MessageQueue, _Lock], now_ms: int) -> None:
        while locks:
            queue = next(iter(locks))
            if now_ms - locks[queue][1] <= LOCK_EXPIRY_MS:
                return
            del locks[queue]
            self.count -= 1
