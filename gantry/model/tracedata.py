"""Trace data: the records by which clients tell what they did with messages.

Clients send them as messages of the topic RMQ_SYS_TRACE_TOPIC, whose keys are the ids and the keys of the messages that
the records are about.

Format: each record ends with 0x02, and 0x01 separates its fields. The first field is the kind, the others are those of
the classes below, in their order. Text that a Java client does not know is `null` or empty. Older clients omit the last
fields.

Source: RocketMQ 5.3 client/trace/TraceDataEncoder.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from gantry.runtime.digits import parse_digits

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"

PUB: Final = "Pub"
SUB_BEFORE: Final = "SubBefore"
SUB_AFTER: Final = "SubAfter"
END_TRANSACTION: Final = "EndTransaction"
RECALL: Final = "Recall"

NORMAL_MESSAGE: Final = 0
HALF_MESSAGE: Final = 1
DELAYED_MESSAGE: Final = 3
"""Kinds of messages, as in RocketMQ's MessageType."""

CONSUMED: Final = 0
FAILED: Final = 4
RESULTS: Final = ("success", "time-out", "exception", "no result", "failure")
"""Names of the context codes, as in RocketMQ's ConsumeReturnType."""

_INT64_MAX: Final = 2**63 - 1


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """A send that a broker answered.

    Attributes:
        at_ms: Start of the send (wall ms).
        region: Region of the broker; None if it is not known.
        group: Producer group.
        topic: Topic of the message.
        message_id: Id of the message. A Java client joins the ids of a batch with commas.
        tag: Tag of the message, or None.
        keys: Keys of the message, separated by spaces, or None.
        store_host: Address of the broker.
        body_bytes: Size of the body.
        cost_ms: Duration of the send.
        message_kind: 0 normal, 1 half, 2 committed, 3 delayed, 4 ordered.
        stored_id: Stored id; None if an old client omits it.
        is_success: Whether the broker answered SEND_OK.
        client_host: Address of the client; None if the client omits it.
    """

    at_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tag: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    message_kind: int
    stored_id: str | None
    is_success: bool
    client_host: str | None = None


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer begins to process a message.

    Attributes:
        at_ms: Time of the beginning (wall ms).
        region: Region of the broker; None if it is not known.
        group: Consumer group.
        request_id: Id that this record shares with the record of the end.
        message_id: Id of the message.
        retry_times: Number of earlier deliveries that failed.
        keys: Keys of the message, separated by spaces, or None.
    """

    at_ms: int
    region: str | None
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str | None


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer has processed a message.

    Attributes:
        request_id: Id that this record shares with the record of the beginning.
        message_id: Id of the message.
        cost_ms: Duration of the processing.
        is_success: Whether the message was consumed.
        keys: Keys of the message, separated by spaces, or None.
        code: 0 success, 1 time-out, 2 exception, 3 no result, 4 failure; None if an old client omits it.
        at_ms: Time of the end (wall ms); None if the client omits it.
        group: Consumer group; None if the client omits it.
    """

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    code: int | None = None
    at_ms: int | None = None
    group: str | None = None


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A producer sends the decision on a transaction.

    Attributes:
        at_ms: Time of the decision (wall ms).
        group: Producer group.
        topic: Topic of the message.
        message_id: Id of the message.
        store_host: Address of the broker.
        state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW (sic).
        is_from_check: Whether the producer answers a check of the broker.
    """

    at_ms: int
    group: str
    topic: str
    message_id: str
    store_host: str
    state: str
    is_from_check: bool


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """A client recalls a message that waits for its time.

    Attributes:
        at_ms: Time of the request (wall ms).
        group: Producer group.
        topic: Topic of the message.
        message_id: Id of the message.
        is_success: Whether the broker accepted the request.
    """

    at_ms: int
    group: str
    topic: str
    message_id: str
    is_success: bool


Trace: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction | Recall
Written: TypeAlias = Pub | SubBefore | SubAfter
"""The records that Gantry's clients write."""


def encode_trace(trace: Written) -> str:
    """Return the record, as clients of RocketMQ 5.3 write it."""
    fields: Sequence[object]
    match trace:
        case Pub():
            fields = (
                PUB, trace.at_ms, trace.region, trace.group, trace.topic, trace.message_id, trace.tag, trace.keys,
                trace.store_host, trace.body_bytes, trace.cost_ms, trace.message_kind, trace.stored_id,
                trace.is_success,
            )  # fmt: skip
        case SubBefore():
            fields = (
                SUB_BEFORE, trace.at_ms, trace.region, trace.group, trace.request_id, trace.message_id,
                trace.retry_times, trace.keys,
            )  # fmt: skip
        case SubAfter():
            fields = (
                SUB_AFTER, trace.request_id, trace.message_id, trace.cost_ms, trace.is_success, trace.keys, trace.code,
                trace.at_ms, trace.group,
            )  # fmt: skip
    return FIELD_SEPARATOR.join(map(_text, fields)) + RECORD_SEPARATOR


def decode_traces(body: bytes) -> tuple[list[Trace], int]:
    """Return the records of a trace message that can be read, and the number of the others. This never fails."""
    traces: list[Trace] = []
    unreadable = 0
    for line in body.decode("utf-8", "replace").split(RECORD_SEPARATOR):
        if not line:
            continue
        fields = line.split(FIELD_SEPARATOR)
        decode = _DECODERS.get(fields[0], _unknown_kind)
        try:
            traces.append(decode(fields))
        except (IndexError, ValueError):
            unreadable += 1
    return traces, unreadable


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _known(fields: Sequence[str], at: int) -> str | None:
    """Return a field, or None if it is missing, empty or Java's `null`."""
    text = fields[at] if at < len(fields) else ""
    return None if text in ("", "null") else text


def _number(text: str) -> int:
    number = parse_digits(text, _INT64_MAX)
    if number is None:
        raise ValueError("number")
    return number


def _unknown_kind(fields: Sequence[str]) -> Trace:
    raise ValueError(fields[0])


def _pub(fields: Sequence[str]) -> Pub:
    # Without a stored id, the last of 13 fields is the success.
    has_stored_id = len(fields) > 13
    return Pub(
        at_ms=_number(fields[1]),
        region=_known(fields, 2),
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tag=_known(fields, 6),
        keys=_known(fields, 7),
        store_host=fields[8],
        body_bytes=_number(fields[9]),
        cost_ms=_number(fields[10]),
        message_kind=_number(fields[11]),
        stored_id=_known(fields, 12) if has_stored_id else None,
        is_success=fields[13 if has_stored_id else 12] == "true",
        client_host=_known(fields, 14),
    )


def _sub_before(fields: Sequence[str]) -> SubBefore:
    return SubBefore(
        at_ms=_number(fields[1]),
        region=_known(fields, 2),
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=_number(fields[6]),
        keys=_known(fields, 7),
    )


def _sub_after(fields: Sequence[str]) -> SubAfter:
    code, at_ms = _known(fields, 6), _known(fields, 7)
    return SubAfter(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=_number(fields[3]),
        is_success=fields[4] == "true",
        keys=_known(fields, 5),
        code=None if code is None else _number(code),
        at_ms=None if at_ms is None else _number(at_ms),
        group=_known(fields, 8),
    )


def _end_transaction(fields: Sequence[str]) -> EndTransaction:
    return EndTransaction(
        at_ms=_number(fields[1]),
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        store_host=fields[8],
        state=fields[11],
        is_from_check=fields[12] == "true",
    )


def _recall(fields: Sequence[str]) -> Recall:
    return Recall(
        at_ms=_number(fields[1]),
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        is_success=fields[6] == "true",
    )


_DECODERS: Final[dict[str, Callable[[Sequence[str]], Trace]]] = {
    PUB: _pub,
    SUB_BEFORE: _sub_before,
    SUB_AFTER: _sub_after,
    END_TRANSACTION: _end_transaction,
    RECALL: _recall,
}
