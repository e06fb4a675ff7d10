"""One queue that is assigned to a stream: its next pull, its held records, and its messages in flight. Pure."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gantry.model.message import MessageQueue
from services.gateway.views.messageparts import QueueFacts
from services.gateway.ws.inflight import Batch, Window, WindowRelease


class Trace(Protocol):
    """Notes deliveries (tracing.py)."""

    def sent(self, queue: MessageQueue, data: bytes | memoryview, offsets: Collection[int], first: int) -> None:
        """Note that the records of these offsets were sent in a frame whose receipt begins with `first`."""
        ...

    def settled(self, queue: MessageQueue, first: int, last: int | None, *, is_success: bool) -> None:
        """Note the end of one delivery, or with `last` of all that are left in a frame."""
        ...

    def forget(self, queue: MessageQueue) -> None:
        """Forget the deliveries of a queue."""
        ...


@dataclass(frozen=True, slots=True)
class PullOrder:
    """A pull to make.

    Attributes:
        bytes_max: Approximate limit; a broker returns at least one message.
        resend: Whether the pull repeats an overdue batch.
        waits: Whether the broker should wait for messages, because none are known to be there.
    """

    queue: MessageQueue
    offset: int
    messages_max: int
    bytes_max: int
    resend: bool
    waits: bool


@dataclass(slots=True)
class HeldRecords:
    """Records that were pulled and not sent yet, from byte `at` on, which is queue offset `offset`."""

    data: bytes
    at: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that cannot be delivered."""

    queue: MessageQueue
    offset: int
    reason: str


class Feed:
    """One queue that is assigned to the connection.

    Attributes:
        token: Identifies the session and the queue's assignment in receipts. A token is never reused, so receipts of
            another session, or from before the queue left and came back, are recognised.
        next_offset: Offset of the next pull.
        committed: Offset that was last committed for the group; None if none was.
        resending: Overdue batch that is being sent again.
        resend_from: Offset from which the overdue batch is pulled next.
        expected_bytes: Part of the session's allowance that the pull in flight takes.
        resume_at_ms: Monotonic time at which the messages in flight are sent again, because the client has returned one;
            None if it has not.
        failures: For queue offsets in flight, the number of times that the client has returned the message. Only an
            orderly subscription counts; elsewhere the broker does.
        returning: Queue offsets in flight that are being sent back to the broker.
        is_draining: Whether the queue is about to move, so that nothing more is sent.
        is_behind: Whether the broker has, or may have, messages from `next_offset` on.
        is_dropped: Whether the queue has moved to another instance; then none of its messages may be sent, acknowledged
            or committed.
    """

    __slots__ = (
        "committed", "expected_bytes", "facts", "failures", "held", "is_behind", "is_draining", "is_dropped",
        "is_waiting", "next_offset", "queue", "resend_from", "resending", "resume_at_ms", "returning", "token", "window",
    )  # fmt: skip

    def __init__(self, token: str, queue: MessageQueue, next_offset: int, facts: QueueFacts) -> None:
        self.token = token
        self.queue = queue
        self.facts = facts
        self.next_offset = next_offset
        self.window = Window(next_offset)
        self.held: deque[HeldRecords] = deque()
        self.committed: int | None = None
        self.expected_bytes = 0
        self.is_behind = True
        self.is_dropped = False
        self.is_waiting = False
        self.resending: Batch | None = None
        self.resend_from = 0
        self.resume_at_ms: int | None = None
        self.failures: dict[int, int] = {}
        self.returning: set[int] = set()
        self.is_draining = False

    def restart_at(self, offset: int) -> WindowRelease:
        """Continue at another offset, because the broker does not have the requested one; return what was in flight."""
        self.is_behind = True
        self.resending = self.resume_at_ms = None
        self.failures.clear()
        self.returning.clear()
        gone = self.window.clear(offset)
        self.next_offset = offset
        return gone

    def find_overdue(self, *, sent_until_ms: int, now_ms: int) -> Sequence[int]:
        """Return the offsets of a batch that was sent at this time or earlier, and give it more time; both monotonic."""
        batch = self.window.find_overdue(sent_until_ms=sent_until_ms)
        if batch is None:
            return ()
        batch.sent_at_ms = now_ms
        return [offset for offset in batch.unsettled() if offset not in self.returning]

    def resend(self, offset: int) -> None:
        """Send the batch of an offset again, unless it is settled or another one is being sent again."""
        if self.resending is None:
            self.resending = self.window.batch_of(offset)
            self.resend_from = self.resending.first if self.resending else 0

    def to_commit(self) -> int | None:
        """Return the offset to commit for the group, or None if it is committed already."""
        point = self.window.commit_point()
        return None if self.is_dropped or point == self.committed else point
