"""Pop: acknowledgements of many messages (200151), and the assignment of queues by the broker (400, 401, 402)."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from gantry.remoting.bodies.fastjson import JsonBody, MessageQueueBean
from gantry.remoting.errors import BodyError
from gantry.remoting.wireheader import Int32

OFFSETS_SPAN_MAX: Final = 65_536
"""The maximum distance between the start of a check point and a message of it. The filter of a pop skips messages."""
TAKEN_PLACES_MAX: Final = 256
"""Limit of messages in one request 900040."""
_MASK_BYTES_MAX: Final = OFFSETS_SPAN_MAX // 8
_MASK_CHARS_MAX: Final = (_MASK_BYTES_MAX + 2) // 3 * 4

Count = Annotated[int, msgspec.Meta(ge=0)]


class BatchAck(JsonBody, kw_only=True):
    """Acknowledgements of messages of one pop and one queue. The names on the wire are as short as RocketMQ's.

    Attributes:
        mask: Base64 of a bit map, little-endian: bit n stands for the message at `start_offset + n`.
        group: The consumer group.
        invisible_ms: The invisible time of the pop.
        popped_at_ms: The time of the pop.
        queue_id: The queue.
        retry: The retry flag of the receipts.
        revive_queue_id: The revive queue of the receipts.
        start_offset: The start offset of the receipts.
        topic: The topic to which the message was sent, even if the pop took it from a retry topic.
    """

    mask: str = msgspec.field(name="b")
    group: str = msgspec.field(name="c")
    invisible_ms: int = msgspec.field(name="it")
    popped_at_ms: int = msgspec.field(name="pt")
    queue_id: Int32 = msgspec.field(name="q")
    retry: str = msgspec.field(name="r", default="0")
    revive_queue_id: Int32 = msgspec.field(name="rq")
    start_offset: int = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages, ascending. Raises BodyError if the mask is not a bit map."""
        if len(self.mask) > _MASK_CHARS_MAX:
            raise BodyError("BatchAck", "b", f"more than {OFFSETS_SPAN_MAX} bits")
        try:
            data = b64decode(self.mask, validate=True)
        except ValueError:
            raise BodyError("BatchAck", "b", "is not base64") from None
        return [
            self.start_offset + 8 * index + bit
            for index, byte in enumerate(data)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]


def encode_offsets(start_offset: int, offsets: Iterable[int]) -> str:
    """Return the bit map of queue offsets, none of which is before `start_offset`."""
    bits = 0
    for offset in offsets:
        assert 0 <= offset - start_offset < OFFSETS_SPAN_MAX, f"{offset} is too far from {start_offset}"
        bits |= 1 << offset - start_offset
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class BatchAckRequest(JsonBody, kw_only=True):
    """200151."""

    acks: list[BatchAck] | None = None
    broker_name: str | None = None


class RefusedAck(JsonBody, kw_only=True):
    """One acknowledgement that the broker refused."""

    ack: int
    """The index of its group in the request."""
    code: int
    offset: int | None = None
    """The queue offset; None if the whole group is refused."""
    remark: str


class BatchAckResponse(JsonBody, kw_only=True):
    """Gantry's response to 200151. RocketMQ's has no body, and its broker skips what it refuses."""

    refused: list[RefusedAck]


class QueryAssignmentRequest(JsonBody, kw_only=True):
    """400: ask which queues of a topic a client of a group consumes, and how."""

    client_id: str
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str | None = None
    topic: str


class QueueAssignment(JsonBody, kw_only=True):
    """A queue and the request mode, PULL or POP. A queue with id -1 stands for all queues of its broker."""

    message_queue: MessageQueueBean | None = None
    mode: str = "PULL"


class QueryAssignmentResponse(JsonBody, kw_only=True):
    """The response to 400; without assignments if the broker can't assign queues."""

    message_queue_assignments: Sequence[QueueAssignment] | msgspec.UnsetType | None = msgspec.UNSET


class MessageRequestMode(JsonBody, kw_only=True):
    """401: how the clients of a group request messages of a topic.

    Attributes:
        mode: PULL or POP.
        pop_share_queue_num: With POP, the number of further clients' queues that a client may take messages from;
            0 and -1 mean that all clients share all queues.
    """

    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0
    topic: str


class MessageRequestModes(JsonBody, kw_only=True):
    """402: all modes that were set, by topic and group; also the file messageRequestMode.json."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = msgspec.field(default_factory=dict)


class TakenPlace(JsonBody, kw_only=True):
    """A message: its queue and its offset in it."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    queue_id: Int32


class TakenQuery(JsonBody, kw_only=True):
    """900040, Gantry's own: ask which of these messages a group has taken with receipts and has not acknowledged."""

    consumer_group: str
    places: Annotated[list[TakenPlace], msgspec.Meta(max_length=TAKEN_PLACES_MAX)]
    topic: str


class TakenMessage(JsonBody, kw_only=True):
    """A message that is taken.

    Attributes:
        offset: Its offset in the queue.
        queue_id: Its queue.
        taken_at: Time at which it was taken, or at which its invisible time was changed last (wall ms).
        visible_at: Time until which it is invisible (wall ms). The broker gives it out again soon after that.
    """

    offset: int
    queue_id: int
    taken_at: int
    visible_at: int


class TakenMessages(JsonBody, kw_only=True):
    """The response to 900040: the messages that are taken, by queue and offset."""

    messages: list[TakenMessage]
