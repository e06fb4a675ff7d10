"""Bodies: bytes of requests in memory, by key, or by address while the key is not known yet.

Bytes count as they are received, because a length is easily declared. The last eighth of the total is reserved for
bodies of up to 64 KiB, so that large ones never shut small ones out. If there is no room, bodies that make no progress
are ended: those of the same holder for its share, and those of the holder with the most bytes for the total.

Usage:

    body = limits.bodies.of_key(key_id)
    body.grow(count)    # before each part is kept; raises ProblemError (429, 503)
    body.finish()       # the body is whole and no longer has to make progress
    body.close()        # nothing of it is in memory any more; a second call changes nothing
"""

from collections.abc import Callable
from typing import Final

from gantry.runtime.clock import Clock
from services.gateway.errors import SLOW_REQUEST, ProblemError
from services.gateway.quotas import ADDRESS, KEY, Quota
from services.gateway.settings import BODY_RESERVE_PART, GatewaySettings

SMALL_BYTES: Final = 64 * 1024
# A body that receives fewer bytes than this within this time makes no progress. It may continue while there is room for
# all.
PROGRESS_BYTES: Final = 64 * 1024
PROGRESS_MS: Final = 2_000
# A scan of two thousand bodies takes a millisecond, so one list of those without progress is used for this long.
SCAN_INTERVAL_MS: Final = 250
# Bodies behind a request that is not answered yet: only pipelining clients have them, and few clients pipeline.
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024

GiveUp = Callable[[ProblemError], bool]
"""Ends an incomplete body, and returns whether it was incomplete."""


class Body:
    """Bytes of one body, counted for its holder until it is closed."""

    __slots__ = ("_bodies", "_ended_by", "_fresh_bytes", "bytes", "give_up", "holder", "progress_ms", "quota")

    def __init__(self, bodies: "Bodies", quota: Quota, holder: str, give_up: GiveUp | None) -> None:
        self.quota = quota
        self.holder = holder
        self.give_up = give_up
        self.bytes = 0
        self.progress_ms = bodies.now_ms()
        self._bodies = bodies
        self._fresh_bytes = 0
        self._ended_by: ProblemError | None = None

    def grow(self, count: int) -> None:
        """Count `count` more bytes.

        Raises:
            ProblemError: 429: the holder's share is exhausted. 503: the total is exhausted. 408: the body was ended to
                make room for others.
        """
        if self._ended_by is not None:
            raise self._ended_by
        self._bodies.make_room(self, count)
        self.quota.take(self.holder, count, spare=self._bodies.spare_for(self, count))
        self.bytes += count
        self._fresh_bytes += count
        if self._fresh_bytes >= PROGRESS_BYTES:
            self._fresh_bytes = 0
            self.progress_ms = self._bodies.now_ms()

    def finish(self) -> None:
        """Record that the body is whole."""
        self._bodies.forget(self)

    def close(self) -> None:
        """Remove all counts of the body."""
        self._give_back()
        self._ended_by = None  # A raised exception refers to this object.

    def end(self) -> None:
        """End the body to make room for others, unless it has become whole meanwhile."""
        assert self.give_up is not None
        problem = ProblemError(
            SLOW_REQUEST,
            f"body: less than {PROGRESS_BYTES} bytes arrived in {PROGRESS_MS // 1_000} s while others waited for room",
        )
        if self.give_up(problem):
            self._ended_by = problem
            self._give_back()
        else:
            self._bodies.forget(self)

    def _give_back(self) -> None:
        self._bodies.forget(self)
        if self.bytes:
            self.quota.give(self.holder, self.bytes)
            self.bytes = 0


class Bodies:
    """All bodies of one gateway.

    Attributes:
        by_key: Bytes of bodies, by key.
        by_address: Bytes of bodies whose key is not known yet, by address.
        now_ms: Returns the monotonic time, in ms.

    Concurrency: the event loop's thread.
    """

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self.by_key = Quota(
            "body_bytes", KEY, each_max=settings.key_body_bytes_max, total_max=settings.body_bytes_total_max
        )
        self.by_address = Quota(
            "body_bytes",
            ADDRESS,
            each_max=settings.address_body_bytes_max,
            total_max=max(WAITING_BYTES_MAX, settings.address_body_bytes_max),
        )
        self.now_ms = clock.monotonic_ms
        self._reserved_bytes = settings.body_bytes_total_max // BODY_RESERVE_PART
        # Incomplete bodies that can be ended.
        self._open: dict[Body, None] = {}
        self._stalled: list[Body] = []
        self._scanned_at_ms: int | None = None

    def of_key(self, key_id: str, give_up: GiveUp | None = None) -> Body:
        """Return the count of a body; without `give_up` it is never ended for others."""
        body = Body(self, self.by_key, key_id, give_up)
        if give_up is not None:
            self._open[body] = None
        return body

    def of_address(self, address: str) -> Body:
        """Return the count of bytes received before their key is known."""
        return Body(self, self.by_address, address, None)

    def forget(self, body: Body) -> None:
        """Stop requiring progress of a body."""
        self._open.pop(body, None)

    def spare_for(self, body: Body, count: int) -> int:
        """Return the number of bytes that a body has to leave to small ones."""
        return self._reserved_bytes if body.quota is self.by_key and body.bytes + count > SMALL_BYTES else 0

    def make_room(self, body: Body, count: int) -> None:
        """End bodies without progress until this one has room for `count` bytes, or no such body is left."""
        quota, holder = body.quota, body.holder
        while quota.held_by(holder) + count > quota.each_max:
            if not self._end_one(body, lambda other: other.holder == holder):
                return
        total_max = quota.total_max - self.spare_for(body, count)
        while quota.used + count > total_max:
            # A holder with more bytes than others makes no room at their expense.
            if not self._end_one(body, lambda other: quota.held_by(other.holder) >= quota.held_by(holder)):
                return

    def _end_one(self, asking: Body, may_end: Callable[[Body], bool]) -> bool:
        now_ms = self.now_ms()
        if self._scanned_at_ms is None or now_ms - self._scanned_at_ms >= SCAN_INTERVAL_MS:
            self._scanned_at_ms = now_ms
            self._stalled = [body for body in self._open if now_ms - body.progress_ms >= PROGRESS_MS]
        found = [
            body
            for body in self._stalled
            if body.bytes
            and body is not asking
            and body.quota is asking.quota
            and body in self._open
            and now_ms - body.progress_ms >= PROGRESS_MS
            and may_end(body)
        ]
        if not found:
            self._stalled = [body for body in self._stalled if body in self._open]
            return False
        max(found, key=lambda body: (body.quota.held_by(body.holder), now_ms - body.progress_ms)).end()
        return True
