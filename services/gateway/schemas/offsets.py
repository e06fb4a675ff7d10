"""The bodies of requests that commit, reset and clone offsets of a group."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gantry.model.message import MessageQueue
from services.gateway.schemas.configs import BrokerName
from services.gateway.schemas.outgoing import QueueNumber

COMMITS_MAX: Final = 1_000
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

TopicOfGroup = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+\Z")]
OffsetText = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,18})\Z")]


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of one queue: that of the next message to consume."""

    topic: TopicOfGroup
    broker: BrokerName
    queue_id: QueueNumber
    offset: OffsetText

    @property
    def queue(self) -> MessageQueue:
        """Return the queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def queue_offset(self) -> int:
        """Return the offset."""
        return int(self.offset)


class Commits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a commit request."""

    offsets: Annotated[list[Commit], Meta(min_length=1, max_length=COMMITS_MAX)]


class QueueOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset to which a reset moves one queue."""

    broker: BrokerName
    queue_id: QueueNumber
    offset: OffsetText

    @property
    def queue_offset(self) -> int:
        """Return the offset."""
        return int(self.offset)


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a reset. `to` is `earliest`, `latest`, a time, or a list of queues."""

    topic: TopicOfGroup
    to: str | Annotated[list[QueueOffset], Meta(min_length=1, max_length=COMMITS_MAX)]
    dry_run: bool = False


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an undo."""

    undo: Annotated[str, Meta(min_length=1)]


class CloneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a clone; without a topic, all topics of the other group."""

    from_group: Annotated[str, Meta(min_length=1, max_length=255)]
    topic: TopicOfGroup | None = None
    dry_run: bool = False
