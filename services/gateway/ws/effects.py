"""The effects that a session asks of the connection, and the close codes.

Send            one frame
OpenTail        follow the queues of a topic without a group
Join, Leave     become, or cease to be, a consumer of (group, topic)
JoinRetries     become a consumer of the group's retry topic, too
Return          send messages back to their brokers
Poisoned        report a message that holds up its queue
Publish         send messages to brokers
Produce         answer questions about open transactions
Wake            feeds of the subscription may have something to pull now
WakeFeed        one feed that waited for room may pull now
Close           close the connection; always the last effect
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue
from services.gateway.ws.feed import Feed
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription

INTERNAL_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012
PROTOCOL: Final = 4400
IDENTITY: Final = 4401
RIGHT: Final = 4403
TOO_SLOW: Final = 4408
LIMIT: Final = 4429


FrameId = str | int | UnsetType
"""The id of a client's frame, or UNSET if it has none."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes as one frame."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """Become a consumer; `may_make` is whether this may create the group."""

    subscription: Subscription
    start: ConsumeFromWhere
    start_at_ms: int | None
    may_make: bool
    frame_id: FrameId


@dataclass(frozen=True, slots=True)
class OpenTail:
    """Follow the queues of a topic; `start` and `start_at_ms` say where their first messages are."""

    subscription: TailSubscription
    start: ConsumeFromWhere
    start_at_ms: int | None
    frame_id: FrameId


@dataclass(frozen=True, slots=True)
class JoinRetries:
    """Deliver the group's messages that come back, for this subscription."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class ReturnedPart:
    """Messages of one queue to send back.

    Attributes:
        feed: The queue.
        token: The feed's token at that time.
        offsets: Offsets of the messages.
        failures: The number of failed deliveries of each message that was tried again in place.
    """

    feed: Feed
    token: str
    offsets: Sequence[int]
    failures: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Return:
    """Send messages back to their brokers.

    Attributes:
        parts: The messages, by queue.
        delay_ms: Delay of the next delivery; None for that of the group.
        is_dead: Whether they become dead letters at once.
        is_overdue: Whether they were not acknowledged in time.
        frame_id: Id of the frame to answer.
    """

    subscription: Subscription
    parts: Sequence[ReturnedPart]
    delay_ms: int | None = None
    is_dead: bool = False
    is_overdue: bool = False
    frame_id: FrameId = UNSET

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return sum(len(part.offsets) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Report a message of an orderly subscription that failed again; `is_dead` is whether it becomes a dead letter."""

    subscription: Subscription
    queue: MessageQueue
    offset: int
    failures: int
    is_dead: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """Cease to be a consumer; `commits` are the offsets to write first."""

    subscription: Subscription
    commits: Sequence[tuple[MessageQueue, int]]


@dataclass(frozen=True, slots=True)
class Produce:
    """The stream answers questions about open transactions of these groups."""

    groups: Collection[str]


@dataclass(frozen=True, slots=True)
class Publish:
    """Send messages; `size_bytes` is the memory that their frame holds until then."""

    topic: str
    messages: Sequence[msgspec.Raw]
    frame_id: FrameId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Feeds of the subscription may pull."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class WakeFeed:
    """A feed that waited for room may pull."""

    subscription: Subscription
    feed: Feed


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection."""

    code: int
    reason: str


Effect = Send | Join | OpenTail | JoinRetries | Leave | Return | Poisoned | Produce | Publish | Wake | WakeFeed | Close


class Rights(Protocol):
    """The caller's rights. All methods raise ProblemError."""

    def require_publish(self, topic: str) -> None:
        """Raise unless the caller may publish to the topic."""
        ...

    def require_producer(self) -> None:
        """Raise unless the caller may publish to any topic."""
        ...

    def require_consume(self, topic: str, group: str) -> None:
        """Raise unless the caller may consume the topic for the group."""
        ...

    def require_read(self, topic: str) -> None:
        """Raise unless the caller may read the topic's messages."""
        ...
