"""The body of a request that commits offsets of a group."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gantry.model.message import MessageQueue
from services.gateway.schemas.configs import BrokerName
from services.gateway.schemas.outgoing import QueueNumber

COMMITS_MAX: Final = 1_000


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of one queue: that of the next message to consume."""

    topic: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+\Z")]
    broker: BrokerName
    queue_id: QueueNumber
    offset: Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,18})\Z")]

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
