"""One queue that is assigned to a stream: where it is pulled, what is held of it, and what is in flight. Pure."""

from collections import deque
from dataclasses import dataclass

from gantry.model.message import MessageQueue
from services.gateway.ws.inflight import Batch, Settled, Window
from services.gateway.ws.messagewriter import QueueFacts


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What to ask the broker for.

    Attributes:
        bytes_max: At most about so many; a broker gives one message at least.
        resend: It is to send once more what is overdue.
        waits: The broker is to wait for messages: as far as is known, there are none.
    """

    queue: MessageQueue
    offset: int
    messages_max: int
    bytes_max: int
    resend: bool
    waits: bool


@dataclass(slots=True)
class Held:
    """Records that were pulled and not sent yet: from byte `at`, which is queue offset `offset`, on."""

    data: bytes
    at: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that can't be delivered."""

    queue: MessageQueue
    offset: int
    reason: str


class Feed:
    """One queue that is assigned to the connection.

    Attributes:
        token: Stands for the session and the queue's assignment in receipts. It is never used again, so that a receipt
            of another session, or from before the queue went and came back, is known to be foreign or old.
        next_offset: Where the next pull starts.
        committed: What the group's offset was last told to be; None for not yet.
        resending: The overdue batch that is being sent again, and `resend_from`, the offset from which that is to do.
        expected_bytes: What its pull under way takes of the session's allowance.
        is_behind: The broker has, or may have, messages from `next_offset` on.
        is_dropped: The queue has gone to another instance: nothing of it may be sent, acked or committed.
    """

    __slots__ = (
        "committed", "expected_bytes", "facts", "held", "is_behind", "is_dropped", "is_waiting", "next_offset", "queue",
        "resend_from", "resending", "token", "window",
    )  # fmt: skip

    def __init__(self, token: str, queue: MessageQueue, next_offset: int, facts: QueueFacts) -> None:
        self.token = token
        self.queue = queue
        self.facts = facts
        self.next_offset = next_offset
        self.window = Window(next_offset)
        self.held: deque[Held] = deque()
        self.committed: int | None = None
        self.expected_bytes = 0
        self.is_behind = True
        self.is_dropped = False
        self.is_waiting = False
        self.resending: Batch | None = None
        self.resend_from = 0

    def restart_at(self, offset: int) -> Settled:
        """Go on elsewhere: the broker does not have what was asked for. What is in flight can't come again."""
        self.is_behind = True
        self.resending = None
        gone = self.window.clear(offset)
        self.next_offset = offset
        return gone

    def to_commit(self) -> int | None:
        """Return what the group's offset should be, or None when it is that already."""
        point = self.window.commit_point()
        return None if self.is_dropped or point == self.committed else point
