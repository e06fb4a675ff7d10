"""Bytes of clients' messages that streams hold in memory: counted for each key, with streams that wait for room.

A message in progress counts the bytes received so far; a length that is only declared costs nothing. Beyond the share
of its key, or beyond the total, a stream is not read until others have released bytes. If incomplete messages filled
the share, all of them would wait for each other. So the stream whose message began first is still read as long as whole
messages, which end by themselves, leave room. A client that does not complete its message loses the stream
(`StreamLimits.message_timeout_ms`), and the next stream becomes the first.
"""

import asyncio
from collections.abc import Callable

from services.gateway.quotas import Quota


class Inbound:
    """The messages that all streams of a gateway receive.

    Concurrency: one event loop.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        # Incomplete messages, in the order in which they began: for each key, and for all keys.
        self._begun_by_key: dict[str, dict[Charge, None]] = {}
        self._begun: dict[Charge, None] = {}
        self._begun_bytes_by_key: dict[str, int] = {}
        self._begun_bytes = 0
        self._waiting: dict[Charge, None] = {}
        self._is_waking = False

    def charge_to(self, key_id: str) -> "Charge":
        """Return the count of one stream of a key."""
        return Charge(self, key_id)

    def may_read(self, charge: "Charge") -> bool:
        """Return whether a stream may receive more."""
        quota, key_id = self._quota, charge.key_id
        if quota.has_room(key_id):
            return True
        begun = self._begun_by_key.get(key_id)
        is_first_of_key = begun is not None and next(iter(begun)) is charge
        if not is_first_of_key:
            return False
        if quota.held_by(key_id) - self._begun_bytes_by_key.get(key_id, 0) >= quota.each_max:
            return False
        return quota.used < quota.total_max or (
            next(iter(self._begun)) is charge and quota.used - self._begun_bytes < quota.total_max
        )

    def refuse(self, charge: "Charge") -> None:
        """Count a stream that is not read, and notify it when there is room."""
        if charge in self._waiting:
            return
        self._waiting[charge] = None
        if self._quota.held_by(charge.key_id) >= self._quota.each_max:
            self._quota.refused_each += 1
        else:
            self._quota.refused_total += 1

    def forget(self, charge: "Charge") -> None:
        """Remove a stream from those that wait."""
        self._waiting.pop(charge, None)

    def change(self, charge: "Charge", *, begun: int, whole: int) -> None:
        """Change the bytes that a stream holds: of an incomplete message, and of whole ones."""
        quota, key_id = self._quota, charge.key_id
        count = begun + whole
        if begun:
            self._begun_bytes += begun
            left = self._begun_bytes_by_key.get(key_id, 0) + begun
            if left:
                self._begun_bytes_by_key[key_id] = left
            else:
                del self._begun_bytes_by_key[key_id]
        quota.change(key_id, count)
        if (count < 0 or begun < 0) and self._waiting and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def note_begun(self, charge: "Charge", *, is_begun: bool) -> None:
        """Record that a stream's message has begun, or that it is whole."""
        begun = self._begun_by_key.setdefault(charge.key_id, {})
        if is_begun:
            begun[charge] = self._begun[charge] = None
        else:
            del begun[charge], self._begun[charge]
        if not begun:
            del self._begun_by_key[charge.key_id]

    def _wake(self) -> None:
        self._is_waking = False
        for charge in list(self._waiting):
            if charge in self._waiting and self.may_read(charge):
                del self._waiting[charge]
                charge.has_room()


class Charge:
    """The bytes that one stream holds.

    Attributes:
        key_id: Key that they are counted for.
        has_room: Callback for a stream that was not read for lack of room, and may be read now.
    """

    __slots__ = ("_begun", "_inbound", "_is_closed", "_unread", "has_room", "key_id")

    def __init__(self, inbound: Inbound, key_id: str) -> None:
        self.key_id = key_id
        self.has_room: Callable[[], None] = _do_nothing
        self._inbound = inbound
        self._begun = 0
        self._unread = 0
        self._is_closed = False

    def may_read(self) -> bool:
        """Return whether the stream may be read; if not, `has_room` is called later."""
        if self._is_closed or self._inbound.may_read(self):
            self._inbound.forget(self)
            return True
        self._inbound.refuse(self)
        return False

    def hold_begun(self, count: int) -> None:
        """Count `count` bytes of an incomplete message, in place of the count before."""
        if count == self._begun or self._is_closed:
            return
        if (count > 0) is not (self._begun > 0):
            self._inbound.note_begun(self, is_begun=count > 0)
        change, self._begun = count - self._begun, count
        self._inbound.change(self, begun=change, whole=0)

    def hold_unread(self, count: int) -> None:
        """Count `count` bytes of whole messages that the stream has not processed, in place of the count before."""
        if count != self._unread and not self._is_closed:
            change, self._unread = count - self._unread, count
            self._inbound.change(self, begun=0, whole=change)

    def add_pending(self, count: int) -> None:
        """Count `count` more bytes (or fewer if negative) of publishes in flight; these outlive their stream."""
        self._inbound.change(self, begun=0, whole=count)

    def close(self) -> None:
        """Remove all counts of the stream, because it has ended."""
        self.hold_begun(0)
        self.hold_unread(0)
        self._inbound.forget(self)
        self.has_room = _do_nothing
        self._is_closed = True


def _do_nothing() -> None:
    """Do nothing: no stream waits."""
