"""The results of reading. The edges of the gateway write them as JSON or MessagePack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from gantry.client.consumer.pull import PullStatus
from gantry.model.message import MessageQueue
from services.gateway.usecases.reading.messages import ReadMessage


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """The known facts about a record that is not shown.

    Attributes:
        queue_offset: The record's offset; the expected one if the record does not reveal it.
        stored_id: The record's stored id, or None if it is unknown.
        reason: The damage.
    """

    queue_offset: int
    stored_id: str | None
    reason: str


class QueueRead(msgspec.Struct, frozen=True):
    """The result of reading a queue. It is a struct for speed.

    Attributes:
        status: The result of the pull, after the tags themselves were compared.
        messages: The sound messages, in the order of the queue.
        damaged: The damaged records that the pull returned.
        next_offset: Offset at which to read next.
        min_offset, max_offset: Range of the queue's offsets; the next message gets `max_offset`.
    """

    status: PullStatus
    messages: Sequence[ReadMessage]
    damaged: Sequence[DamagedRecord]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """A queue of a topic; None for unknown values.

    Attributes:
        broker: Name of the broker.
        queue_id: The queue's number on that broker.
        min_offset, max_offset: Range of the queue's offsets; the next message gets `max_offset`.
        is_readable: Whether the queue may be read.
        is_writable: Whether messages may be sent to the queue.
        last_stored_at_ms: Time at which the last message was stored.
    """

    broker: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    is_readable: bool | None
    is_writable: bool | None
    last_stored_at_ms: int | None


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The messages that a search found.

    Attributes:
        messages: The messages, newest first. Each is decompressed when it is taken, because bodies may be large.
        scanned: Number of messages that brokers returned.
        is_truncated: Whether there may be more messages.
    """

    messages: Iterator[ReadMessage]
    scanned: int
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class MissingQueue:
    """A queue whose messages are unknown, and why."""

    queue: MessageQueue
    reason: str


@dataclass(slots=True)
class SearchPage:
    """A page of a search.

    Attributes:
        messages: The messages, the oldest first.
        damaged: The damaged records that were found.
        missing: The queues whose messages are unknown.
        scanned: Number of offsets that were looked at.
        next_cursor: Cursor of the next page; None at the end.
    """

    messages: list[ReadMessage] = field(default_factory=list)
    damaged: list[DamagedRecord] = field(default_factory=list)
    missing: list[MissingQueue] = field(default_factory=list)
    scanned: int = 0
    next_cursor: str | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether there may be more messages than those of this page."""
        return self.next_cursor is not None or bool(self.missing)
