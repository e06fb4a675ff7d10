"""The parts of the gateway that a stream needs, as protocols, so that tests can replace them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gantry.client.errors import ClientError
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue
from services.gateway.auth.principal import Principal
from services.gateway.errors import ProblemError
from services.gateway.schemas.outgoing import Item
from services.gateway.turns import Turn
from services.gateway.usecases.sending.results import BatchReport
from services.gateway.ws.feed import Trace

OnReset = Callable[[MessageQueue, int], None]
"""Receives a queue whose offset was reset, and the offset to go on at."""


class OnChange(Protocol):
    """Receives changes of the queues that a connection has."""

    async def __call__(
        self, added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue], *, skipped: int = 0
    ) -> None:
        """Process added queues, each with the offset to start at, and removed queues.

        `skipped` is the number of messages before the starts of a new group.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull.

    Attributes:
        data: Consecutive records; empty if no message before `next_offset` matched.
        is_moved: Whether the requested offset does not exist, and the next pull must start at `next_offset`.
        is_reset: Whether the group's offset was reset, and the next pull must start at `next_offset`.
        is_behind: Whether the broker has more from `next_offset` on.
    """

    data: bytes
    next_offset: int
    is_moved: bool = False
    is_reset: bool = False
    is_behind: bool = False


class Puller(Protocol):
    """Pulls the messages of a subscription."""

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        """Pull messages, and wait a while for them if `waits`.

        A broker may return fewer messages than asked for, and more bytes if a single message is larger. Raises
        ClientError.
        """
        ...


class Membership(Puller, Protocol):
    """A connection's membership in a group, for one topic."""

    consume_timeout_ms: int

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset. Raises ClientError."""
        ...

    async def send_back(
        self,
        queue: MessageQueue,
        offsets: Sequence[int],
        *,
        delay_ms: int | None,
        is_dead: bool,
        failures: Mapping[int, int],
    ) -> Mapping[int, ClientError | ProblemError]:
        """Send messages back to their broker, which delivers them again later; return those that it did not take.

        Args:
            queue: The queue.
            offsets: Offsets of the messages, ascending.
            delay_ms: Delay of the next delivery; None for that of the group.
            is_dead: Whether they become dead letters at once.
            failures: The number of failed deliveries of each message that was tried again in place.
        """
        ...

    async def leave(self) -> None:
        """Give all queues back."""
        ...


@dataclass(frozen=True, slots=True)
class TailPull:
    """The result of a pull of a tail, and the end of its queue at that moment."""

    found: Pulled
    end: int


class TailSource(Protocol):
    """Reads topics for tails."""

    async def queues(self, topic: str, *, refresh: bool) -> Sequence[MessageQueue]:
        """Return the readable queues of a topic; with `refresh`, as the name servers know them now.

        Raises:
            ProblemError: 404: the topic does not exist; 503: it can't be reached.
        """
        ...

    async def start_of(self, queue: MessageQueue, start: ConsumeFromWhere, start_at_ms: int | None) -> int:
        """Return the offset at which a tail begins. Raises ClientError."""
        ...

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        *,
        messages_max: int,
        bytes_max: int,
        waits: bool,
    ) -> TailPull:
        """Pull messages as `Puller.pull` does. Raises ClientError."""
        ...


class Consumers(Protocol):
    """Makes connections consumers of groups."""

    def trace(self, group: str) -> Trace | None:
        """Return what notes the deliveries of a new subscription; None if tracing is off."""
        ...

    async def exists(self, group: str) -> bool:
        """Return whether a broker that answers has the group. Raises ClientError, ProblemError: none answers."""
        ...

    async def join(
        self,
        client_id: str,
        group: str,
        data: SubscriptionData,
        *,
        start: ConsumeFromWhere,
        start_at_ms: int | None,
        may_make: bool,
        is_orderly: bool,
        failures_max: int | None,
        on_change: OnChange,
        on_reset: OnReset,
        on_deleted: Callable[[], None],
    ) -> Membership:
        """Join a group as a consumer instance; `on_change` is called at once, and at every later change.

        An orderly instance gets only queues that no other orderly instance has. `failures_max` is the number of retries
        of a message that is sent back; None for that of the group. `on_deleted` is called, perhaps several times, when a
        broker says that the group was deleted.

        Raises:
            ClientError, ProblemError: The topic does not exist, or the group does not and `may_make` is False, or no
                broker can be reached.
        """
        ...


class Publisher(Protocol):
    """Sends the messages that streams publish (usecases/sending/send.py)."""

    def check_topic(self, topic: str) -> None:
        """Raise InvalidNameError for an invalid topic name, ProblemError (403) for a topic that takes no sends."""
        ...

    async def send_many(self, topic: str, items: Sequence[Item], *, turn: Turn) -> BatchReport:
        """Send a batch and return the result of each message. Raises ProblemError."""
        ...


class KnownCallers(Protocol):
    """Knows the valid keys and sessions."""

    def principal_of(self, credential: str) -> Principal | None:
        """Return the current principal of a key or a session; None if it is no longer valid."""
        ...


class FrameReading(Protocol):
    """The reading of one stream's frames, done by the connection's protocol (streamprotocol.py).

    Attributes:
        waits_for_room: Whether reading is suspended because the key, or all keys together, have no room for more.
    """

    waits_for_room: bool

    def message_ms(self) -> int:
        """Return the time since the incomplete message began, in ms; 0 if there is none."""
        ...

    def resume_if_room(self) -> None:
        """Resume reading if there is room again; called periodically."""
        ...
