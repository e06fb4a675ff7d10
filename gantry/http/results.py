"""Results of calls: typed, with offsets as integers, bodies as bytes and times as text.

Fields that a later version of the gateway adds are ignored.
"""

from typing import Any

import msgspec

from gantry.http.errors import Problem


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message."""

    message_id: str
    stored_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    body: bytes
    encoding: str
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    born_at: str
    stored_at: str
    born_host: str
    reconsume_times: int
    size: int
    receipt: str = ""
    system_properties: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body, decoded as JSON. Raises one of `errors.DECODE_ERRORS`."""
        return msgspec.json.decode(self.body)


class OutgoingMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to send; `queue` is `{"broker": …, "id": …}`.

    At most one of `delay` (`"10s"`), `deliver_at` (a time) and `delay_level` (1 to 18) delays it.
    """

    body: bytes | str
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    ordering_key: str | None = None
    queue: dict[str, Any] | None = None
    idempotency_key: str | None = None
    delay: str | None = None
    deliver_at: str | None = None
    delay_level: int | None = None


class SendResult(msgspec.Struct, frozen=True):
    """The outcome of one message: `stored`, `not_stored` or `unknown`.

    A delayed message has the time of its delivery, and a handle by which it can be recalled; None with a delay level.
    It has no position in a queue until it is delivered. `replayed`: an earlier send with the same key stored the message.
    """

    outcome: str
    status: str | None = None
    message_id: str | None = None
    stored_id: str | None = None
    topic: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    problem: Problem | None = None
    handle: str | None = None
    deliver_at: str | None = None
    replayed: bool = False


class BatchResult(msgspec.Struct, frozen=True):
    """The outcome of each message of a batch, in their order."""

    results: list[SendResult]
    stored: int
    not_stored: int
    unknown: int


class DamagedRecord(msgspec.Struct, frozen=True):
    """A record whose checksum is wrong."""

    queue_offset: int
    stored_id: str
    reason: str


class QueueMessages(msgspec.Struct, frozen=True):
    """The messages that were read from a queue; the next read begins at `next_offset`."""

    status: str
    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: list[DamagedRecord] = []


class MissingQueue(msgspec.Struct, frozen=True):
    """A queue that a search could not read, and why: its messages are unknown."""

    broker: str
    queue_id: int
    reason: str


class FoundMessages(msgspec.Struct, frozen=True):
    """Messages found by key, the newest first; or a page of a search, the oldest first."""

    items: list[Message]
    scanned: int
    truncated: bool
    next_cursor: str | None = None
    damaged: list[DamagedRecord] = []
    missing: list[MissingQueue] = []


class LifeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a message. `client`, and `attempt` from 1 on, are None if they are not known."""

    at: str
    kind: str
    broker: str | None
    group: str | None
    client: str | None
    attempt: int | None
    detail: str


class LifeGroup(msgspec.Struct, frozen=True):
    """The state of a message in a group, and the facts that prove it; `since` is None if it is not known."""

    group: str
    state: str
    since: str | None
    why: str


class MessageLife(msgspec.Struct, frozen=True):
    """The life of a message: events by time, the states of its groups, and the parts that are not known."""

    message_id: str
    topic: str
    events: list[LifeEvent]
    groups: list[LifeGroup]
    missing: list[str]


class Queue(msgspec.Struct, frozen=True):
    """One queue of a topic. Unknown values are None, for example if the queue's broker can't be asked."""

    broker: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    read: bool | None
    write: bool | None
    last_stored_at: str | None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic."""

    topic: str
    read_queues: int
    write_queues: int
    perm: str
    order: bool
    brokers: list[str] | None
    state: str
    pending: list[str]
    origin: str
    observed: list[dict[str, Any]]
    metadata: str
    created_at: str | None
    updated_at: str | None
    etag: str | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group.

    Attributes:
        retry_policy: When failed messages are delivered again; None if each broker keeps the policy that it has.
    """

    group: str
    retry_max_times: int
    retry_queues: int
    consume: bool
    from_min: bool
    broadcast: bool
    orderly: bool
    consume_timeout_minutes: int
    notify_changes: bool
    retry_policy: dict[str, Any] | None = None
    state: str
    pending: list[str]
    origin: str
    observed: list[dict[str, Any]]
    metadata: str
    created_at: str | None
    updated_at: str | None
    etag: str | None = None


class GroupOffset(msgspec.Struct, frozen=True):
    """A group's position in a queue; unknown values are None."""

    topic: str
    broker: str
    queue_id: int
    committed_offset: int | None
    min_offset: int | None
    max_offset: int | None
    lag: int | None


class OffsetCommit(msgspec.Struct, frozen=True):
    """The offset of the next message to consume."""

    topic: str
    broker: str
    queue_id: int
    offset: int


class OffsetCommitResult(msgspec.Struct, frozen=True):
    """The outcome of one commit: `committed` or `refused`."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    outcome: str
    problem: Problem | None = None


class GroupClient(msgspec.Struct, frozen=True):
    """A connected consumer instance."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]
    message_model: str
    consume_type: str
    from_where: str


class GroupSubscription(msgspec.Struct, frozen=True):
    """A subscription of a group's instances, present or past."""

    topic: str
    filter: str
    filter_type: str
    message_model: str
    client_kind: str
    clients: list[str]
    clients_count: int
    active: bool
    verdict: str
    first_seen_at: str | None
    last_seen_at: str


class DifferingSide(msgspec.Struct, frozen=True):
    """Members of a group on one side of a difference; `clients` has at most 100 of them."""

    value: str
    clients: list[str]
    clients_count: int
    since: str


class GroupDifference(msgspec.Struct, frozen=True):
    """A difference between members of a group: `models`, `topics` or `filters`. `topic` is None for `models`."""

    kind: str
    topic: str | None
    sides: list[DifferingSide]


class GroupConsistency(msgspec.Struct, frozen=True):
    """Whether the connected members of a group agree; `consistent` is None if a broker does not answer."""

    consistent: bool | None
    since: str | None
    differences: list[GroupDifference]
    missing: list[str]


class NameServer(msgspec.Struct, frozen=True):
    """A name server."""

    address: str
    reachable: bool
    detail: str | None = None


class Broker(msgspec.Struct, frozen=True):
    """A broker; `store` is None if the broker can't be asked."""

    cluster: str
    broker: str
    broker_id: int
    role: str
    address: str
    reachable: bool
    version: str | None
    store: dict[str, Any] | None
    detail: str | None = None


class Cluster(msgspec.Struct, frozen=True):
    """Name servers and brokers as they are now."""

    name_servers: list[NameServer]
    brokers: list[Broker]
    metadata: str


class ConsumeRights(msgspec.Struct, frozen=True):
    """Patterns for consuming: both the topic and the group must match."""

    topics: list[str] = []
    groups: list[str] = []


class Rights(msgspec.Struct, frozen=True):
    """The rights of a key; names may be patterns with `*`."""

    publish: list[str] = []
    consume: ConsumeRights = ConsumeRights()
    admin: bool = False
    metrics: bool = False


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a key on each gateway; None: none of its own."""

    messages_per_s: int | None = None
    bytes_per_s: int | None = None
    connections: int | None = None
    in_flight: int | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key; only the answer that creates or rotates it contains `key`."""

    id: str
    name: str
    rights: Rights
    created_at: str
    limits: KeyLimits = KeyLimits()
    expires_at: str | None = None
    rotated_at: str | None = None
    previous_valid_until: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None
    key: str | None = None


class Ticket(msgspec.Struct, frozen=True):
    """A one-use ticket for a browser's WebSocket."""

    ticket: str
    expires_at: str


class AuditEntry(msgspec.Struct, frozen=True):
    """A change of metadata."""

    id: str
    at: str
    actor: str
    action: str
    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None
