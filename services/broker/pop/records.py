"""The records of the revive topic: check points, acknowledgements, and states of queues popped in order. Pure.

A check point names the messages of one queue that one pop gave out. An acknowledgement names messages of a check point
that are done. docs/formats/pop.md has the bytes; they are those of RocketMQ 5.3 (PopCheckPoint, AckMsg, BatchAckMsg).

Two kinds are Gantry's own. A check point without messages, an anchor, sets the position of a group. A record with the
tag `order` has the state of a queue that a group pops in order. RocketMQ's broker skips both.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.remoting.bodies.fastjson import decode_json
from gantry.remoting.errors import BodyError
from services.broker.newmessage import NewMessage

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
ORDER_TAG: Final = "order"

_encode = msgspec.json.Encoder().encode
_NO_OFFSET = -1
# More than a pop gives out.
_MESSAGES_MAX: Final = 4096


class CheckPointBody(msgspec.Struct, kw_only=True):
    """The JSON of a check point, with its members in the order in which RocketMQ writes them.

    Attributes:
        attempt_id: Attempt id of the pop. The member is Gantry's own; RocketMQ's broker skips it.
    """

    bm: int = 0
    bn: str | None = None
    c: str
    d: list[int] | None = None
    it: int
    n: Annotated[int, msgspec.Meta(ge=0, le=_MESSAGES_MAX)]
    pt: int
    q: int
    revive_at: int = msgspec.field(name="reviveTime", default=0)
    ro: int = 0
    so: int
    t: str
    attempt_id: str | msgspec.UnsetType = msgspec.field(name="gantryAttemptId", default=msgspec.UNSET)

    def offsets(self) -> list[int]:
        """Return the queue offsets of its messages. Old check points have no list: their messages are consecutive."""
        return [self.so + diff for diff in (self.d or range(self.n))]


class AckBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The JSON of an acknowledgement of one message (`ao`) or of many (`aol`)."""

    ao: int
    aol: list[int] | None = None
    bn: str | None = None
    c: str
    pt: int
    q: int
    so: int
    t: str

    def offsets(self) -> Sequence[int]:
        """Return the queue offsets of the messages."""
        return [self.ao] if self.aol is None else self.aol


class OrderBody(msgspec.Struct, kw_only=True):
    """The state of a queue that a group pops in order; `info` is that of consumerOrderInfo.json, or null."""

    c: str
    info: Any = None
    next_offset: int = msgspec.field(name="no")
    q: int
    t: str


class CheckPointKey(NamedTuple):
    """Identifies a check point of this broker."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    popped_at_ms: int


def check_point_record(
    key: CheckPointKey,
    offsets: Sequence[int],
    invisible_ms: int,
    broker_name: str,
    *,
    now_ms: int,
    host: bytes,
    attempt_id: str | None = None,
) -> NewMessage:
    """Return the record of a check point; its revive queue is not set yet. Without offsets, it is an anchor."""
    topic, group, queue_id, start, popped_at = key
    body = CheckPointBody(
        bn=broker_name,
        c=group,
        d=[offset - start for offset in offsets],
        it=invisible_ms,
        n=len(offsets),
        pt=popped_at,
        q=queue_id,
        revive_at=popped_at + invisible_ms,
        so=start,
        t=topic,
        attempt_id=msgspec.UNSET if attempt_id is None else attempt_id,
    )
    name = f"{topic}@{queue_id}@{start}@{group}@{popped_at}@{broker_name}@ck"
    return _record(CHECK_POINT_TAG, name, _encode(body), now_ms, host)


def ack_record(key: CheckPointKey, offsets: Sequence[int], broker_name: str, *, now_ms: int, host: bytes) -> NewMessage:
    """Return the record of an acknowledgement of messages of a check point."""
    topic, group, queue_id, start, popped_at = key
    is_batch = len(offsets) > 1
    acked = _NO_OFFSET if is_batch else offsets[0]
    body = AckBody(
        ao=acked,
        aol=list(offsets) if is_batch else None,
        bn=broker_name,
        c=group,
        pt=popped_at,
        q=queue_id,
        so=start,
        t=topic,
    )
    name = f"{topic}@{queue_id}@{acked}@{group}@{popped_at}@{broker_name}@ack"
    return _record(BATCH_ACK_TAG if is_batch else ACK_TAG, name, _encode(body), now_ms, host)


def order_record(queue: tuple[str, str, int], info: Any, next_offset: int, *, now_ms: int, host: bytes) -> NewMessage:
    """Return the record of the state of a queue (topic, group, queue id) that a group pops in order."""
    topic, group, queue_id = queue
    body = OrderBody(c=group, info=info, next_offset=next_offset, q=queue_id, t=topic)
    return _record(ORDER_TAG, f"{topic}@{queue_id}@{next_offset}@{group}@order", _encode(body), now_ms, host)


def _record(tag: str, name: str, body: bytes, now_ms: int, host: bytes) -> NewMessage:
    # RocketMQ's broker takes the deliver time of the newest record as its clock for check points. Its records wait for
    # that time in the timer; ours do not, so it is the time at which they are stored.
    properties = {
        PropertyName.TIMER_DELIVER_MS: str(now_ms),
        PropertyName.UNIQ_KEY: name,
        PropertyName.TAGS: tag,
    }
    return NewMessage("", 0, body, properties, born_at_ms=now_ms, born_host=host)


_KINDS: Mapping[str, type[CheckPointBody] | type[AckBody] | type[OrderBody]] = {
    CHECK_POINT_TAG: CheckPointBody,
    ACK_TAG: AckBody,
    BATCH_ACK_TAG: AckBody,
    ORDER_TAG: OrderBody,
}


def read_record(message: StoredMessage) -> CheckPointBody | AckBody | OrderBody | None:
    """Return the content of a record of the revive topic, or None if it is none of these."""
    kind = _KINDS.get(message.tag or "")
    if kind is None:
        return None
    try:
        return decode_json(kind, message.body)
    except BodyError:
        return None
