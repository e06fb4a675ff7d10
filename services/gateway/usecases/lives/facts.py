"""The facts about one message that were found, and the parts of its life that are told from them. Pure values."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.tracedata import Trace
from gantry.remoting.bodies.queuestates import QueueState


class Copy(NamedTuple):
    """A record with the id of the message, and the name of its broker. A message is stored once in each phase."""

    record: StoredMessage
    broker: str

    @property
    def queue(self) -> MessageQueue:
        """The queue of the record."""
        return MessageQueue(self.record.topic, self.broker, self.record.queue_id)


class ClientTrace(NamedTuple):
    """A record of trace data, and the address of the client that wrote it."""

    trace: Trace
    client: str


class Taken(NamedTuple):
    """When a record was taken with a receipt, and until when it is invisible to the group (wall ms)."""

    at_ms: int
    visible_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts about one group.

    Attributes:
        group: Name of the group.
        retries: Records of its retry topic, and of its pop retry topics for the topic of the message.
        letters: Records of its dead-letter topic.
        redriven_at_ms: Times at which letters were sent again (wall ms), by stored id.
        queues: States of queues that hold records of this message, with the group's committed offsets. The state of a
            queue whose broker did not answer is missing.
        is_connected: Whether an instance is connected; None if a broker did not answer.
        accepts: Whether the group's filter lets the message through; None if that is not known.
        filter: The group's filter; None if it is not known.
        is_broadcasting: Whether each instance consumes all messages and keeps its own offsets.
        moved_at_ms: Time at which offsets of the topic were last set by hand (wall ms); None if that is not known.
        taken: Records that the group has taken with receipts and not acknowledged, by queue and queue offset.
    """

    group: str
    retries: Sequence[Copy] = ()
    letters: Sequence[Copy] = ()
    redriven_at_ms: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueState] = field(default_factory=dict)
    is_connected: bool | None = None
    accepts: bool | None = None
    filter: str | None = None
    is_broadcasting: bool = False
    moved_at_ms: int | None = None
    taken: Mapping[tuple[MessageQueue, int], Taken] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about one message.

    Attributes:
        topic: Topic of the message.
        message_id: Id of the message.
        stored: Records in the topic: the message as consumers get it.
        waiting: Records in the topics of delay levels and of the timer, for the topic or for a retry topic.
        halves: Half messages and their copies.
        given_up: Half messages that the broker set aside after too many checks.
        ended_at_ms: Time at which the newest half message was marked as decided (wall ms), by broker.
        traces: Trace data about the message.
        groups: Groups that consume the topic, or have had this message.
        missing: Reasons why facts are not known.
    """

    topic: str
    message_id: str
    stored: Sequence[Copy] = ()
    waiting: Sequence[Copy] = ()
    halves: Sequence[Copy] = ()
    given_up: Sequence[Copy] = ()
    ended_at_ms: Mapping[str, int] = field(default_factory=dict)
    traces: Sequence[ClientTrace] = ()
    groups: Sequence[GroupFacts] = ()
    missing: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.stored or self.waiting or self.halves or self.given_up or self.traces)


class Kind(enum.StrEnum):
    """Kinds of events, in the order in which events of one millisecond are told."""

    HALF = "half"
    CHECKED = "checked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    SCHEDULED = "scheduled"
    RECALLED = "recalled"
    REDRIVEN = "redriven"
    STORED = "stored"
    RETRY_DUE = "retry_due"
    DELIVERED = "delivered"
    CONSUMED = "consumed"
    FAILED = "failed"
    SENT_BACK = "sent_back"
    DEAD = "dead"
    EXPIRED = "expired"


class State(enum.StrEnum):
    """States of a message in a group."""

    CONSUMED = "consumed"
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    RETRYING = "retrying"
    DEAD = "dead"
    FILTERED = "filtered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the message.

    Attributes:
        at_ms: Time (wall ms): the store time of the record that proves it, or the time in the trace data.
        kind: Kind of the event.
        detail: More about it.
        broker: Broker that stores the record; None for an event from trace data.
        group: Consumer group, or producer group of a transaction; None if the event concerns none.
        client: Address of the client; None if it is not known.
        attempt: Number of the delivery, from 1 on; for a check, the number of the check; else None.
    """

    at_ms: int
    kind: Kind
    detail: str
    broker: str | None = None
    group: str | None = None
    client: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of the message in a group.

    Attributes:
        group: Name of the group.
        state: The state.
        since_ms: Beginning of this state (wall ms); None if it is not known.
        why: The facts that prove the state, or the reason why it is not known.
    """

    group: str
    state: State
    since_ms: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Life:
    """The life of a message: its events by time, the states of its groups, and what is not known with the reasons."""

    topic: str
    message_id: str
    events: Sequence[Event]
    groups: Sequence[GroupState]
    missing: Sequence[str]
