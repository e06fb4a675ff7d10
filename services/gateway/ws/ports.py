"""What a stream needs of the rest of the gateway, as protocols, so that a test can stand in for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue
from services.gateway.auth.principal import Principal
from services.gateway.schemas.outgoing import Item
from services.gateway.turns import Turn
from services.gateway.usecases.sending.results import BatchReport


class OnChange(Protocol):
    """Takes a change of the queues that a connection has."""

    async def __call__(
        self, added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue], *, skipped: int = 0
    ) -> None:
        """Take queues that were given, each with the offset to start at, and queues that were taken away.

        `skipped` is how many messages lie before the starts of a group that begins now.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull found.

    Attributes:
        data: Records, one behind the other; empty where there was nothing wanted before `next_offset`.
        is_moved: The offset that was asked for does not exist: `next_offset` is the one to go on at.
        is_behind: The broker has more from `next_offset` on.
    """

    data: bytes
    next_offset: int
    is_moved: bool = False
    is_behind: bool = False


class Membership(Protocol):
    """A connection's place in a group, for one topic."""

    consume_timeout_ms: int

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        """Pull, and where there is nothing yet wait a while if asked to.

        A broker may give fewer messages than asked for, and more bytes where a single message has more. Raises ClientError.
        """
        ...

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Write the group's offset. Raises ClientError."""
        ...

    async def leave(self) -> None:
        """Give all queues back."""
        ...


class Consumers(Protocol):
    """Makes connections consumers of groups."""

    async def join(
        self,
        client_id: str,
        group: str,
        data: SubscriptionData,
        *,
        start: ConsumeFromWhere,
        start_at_ms: int | None,
        may_make: bool,
        on_change: OnChange,
    ) -> Membership:
        """Become a consumer instance; `on_change` is called at once, and at every change from then on.

        Raises:
            ClientError, ProblemError: The topic is not known, or the group is not and `may_make` forbids to make it, or no
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


class Keys(Protocol):
    """Knows which keys are still good."""

    def principal_of(self, key_id: str) -> Principal | None:
        """Return what a key's id opens now; None once it is revoked."""
        ...


class Reading(Protocol):
    """The reading of one stream's frames, which the connection's protocol does (streamprotocol.py).

    Attributes:
        waits_for_room: Whether nothing is read since the key, or all together, have no room for more.
    """

    waits_for_room: bool

    def message_ms(self) -> int:
        """Return for how long the message has been read that is not whole; 0 where there is none."""
        ...

    def look_for_room(self) -> None:
        """Read on if there is room again; called now and then."""
        ...
