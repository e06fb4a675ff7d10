"""Bytes of clients' messages that streams hold in memory: counted for each API key, with streams that wait for room.

The bytes are of two kinds:
    begun   of an incomplete message: the bytes received so far. A length that is only declared costs nothing.
    whole   of complete messages: those that the session has not processed, and publishes in flight.

While its key holds the key's share (`Quota.each_max`), or all keys together hold the total, a stream is not read. It
waits until other streams release bytes. Whole messages release theirs without help from the client. But if incomplete
messages filled the share, all of them would wait for each other. So the stream whose message began first is read
nevertheless, as long as whole messages alone do not fill the share. If its client does not complete the message in time
(`StreamLimits.message_timeout_ms`), the stream is closed, and the next one becomes the first.
"""

import asyncio
from collections.abc import Callable

from services.gateway.quotas import Quota


class Inbound:
    """The count of all streams of a gateway. Streams use it through their `Charge`.

    Concurrency: one event loop.
    """

    def __init__(self, quota: Quota) -> None:
        """Create a count without streams; `quota` limits the bytes, also those of HTTP bodies."""
        self._quota = quota
        # Incomplete messages, in the order in which they began: for each key, and for all keys.
        self._begun_by_key: dict[str, dict[Charge, None]] = {}
        self._begun: dict[Charge, None] = {}
        self._begun_bytes_by_key: dict[str, int] = {}
        self._begun_bytes = 0
        self._waiting: dict[Charge, None] = {}
        self._is_waking = False

    def charge_to(self, key_id: str) -> "Charge":
        """Return the count of a new stream; its bytes are charged to the key."""
        return Charge(self, key_id)

    def may_read(self, charge: "Charge") -> bool:
        """Return whether a stream may be read now."""
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

    def add_waiting(self, charge: "Charge") -> None:
        """Let a stream wait for room, and count this as a rejection by the share or by the total."""
        if charge in self._waiting:
            return
        self._waiting[charge] = None
        if self._quota.held_by(charge.key_id) >= self._quota.each_max:
            self._quota.refused_each += 1
        else:
            self._quota.refused_total += 1

    def remove_waiting(self, charge: "Charge") -> None:
        """Remove a stream from those that wait, if it does."""
        self._waiting.pop(charge, None)

    def change(self, charge: "Charge", *, begun: int, whole: int) -> None:
        """Add to the bytes that a stream holds; negative numbers release bytes, and wake streams that wait.

        Args:
            charge: The stream.
            begun: Change of the bytes of its incomplete message.
            whole: Change of the bytes of its whole messages.
        """
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
        """Record that a stream's message has begun, or that it is complete or dropped."""
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
                charge.on_room()


class Charge:
    """The bytes that one stream holds.

    Attributes:
        key_id: API key that the bytes are charged to.
        on_room: Callback for a stream that was not read for lack of room, and may be read now.
    """

    __slots__ = ("_begun", "_inbound", "_is_closed", "_unread", "key_id", "on_room")

    def __init__(self, inbound: Inbound, key_id: str) -> None:
        self.key_id = key_id
        self.on_room: Callable[[], None] = _do_nothing
        self._inbound = inbound
        self._begun = 0
        self._unread = 0
        self._is_closed = False

    def may_read(self) -> bool:
        """Return whether the stream may be read now; if not, it waits, and `on_room` is called when it may."""
        if self._is_closed or self._inbound.may_read(self):
            self._inbound.remove_waiting(self)
            return True
        self._inbound.add_waiting(self)
        return False

    def hold_begun(self, count: int) -> None:
        """Set the bytes of the incomplete message; 0 if there is none."""
        if count == self._begun or self._is_closed:
            return
        if (count > 0) is not (self._begun > 0):
            self._inbound.note_begun(self, is_begun=count > 0)
        change, self._begun = count - self._begun, count
        self._inbound.change(self, begun=change, whole=0)

    def hold_unread(self, count: int) -> None:
        """Set the bytes of the whole messages that the session has not processed."""
        if count != self._unread and not self._is_closed:
            change, self._unread = count - self._unread, count
            self._inbound.change(self, begun=0, whole=change)

    def add_pending(self, count: int) -> None:
        """Add to the bytes of publishes in flight; a negative `count` releases bytes, also after `close`."""
        self._inbound.change(self, begun=0, whole=count)

    def close(self) -> None:
        """Release the bytes of the stream, which has ended. Publishes in flight release theirs themselves."""
        self.hold_begun(0)
        self.hold_unread(0)
        self._inbound.remove_waiting(self)
        self.on_room = _do_nothing
        self._is_closed = True


def _do_nothing() -> None:
    """Do nothing: the stream has not started or has ended, so it is not read."""
