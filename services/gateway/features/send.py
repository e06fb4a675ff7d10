"""`POST /v1/topics/{topic}/messages` and `…/messages:batch`: sends, the hot routes."""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from services.gateway.asgi.answer import JSON_TYPE, Answer, encode_json
from services.gateway.asgi.call import Call, wrong_media_type
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.paths import decode_escapes
from services.gateway.core import Core, Feature
from services.gateway.errors import (
    DUPLICATE,
    STORED,
    UNKNOWN,
    UNKNOWN_FIELD,
    ProblemError,
    invalid,
)
from services.gateway.limits import RESULT_BYTES
from services.gateway.schemas.dense import (
    DENSE_BYTES_MIN,
    in_slices,
    read_json_batch,
    read_json_lines,
    read_json_message,
    read_packed_frames,
)
from services.gateway.schemas.outgoing import (
    Item,
    PackedMessage,
    Sendable,
    read_message,
)
from services.gateway.turns import MESSAGE_BYTES
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.views.sends import outcome_counts, result_views, single_view

JSON_MEDIA: Final = "application/json"
LINES_MEDIA: Final = "application/x-ndjson"
FRAMES_MEDIA: Final = "application/vnd.gantry.batch"

# Tools send these types by default. A caller who means the bytes as they are sends application/octet-stream.
_FORM_MEDIA: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
TRACE_PROPERTY: Final = "traceparent"
NO_DETECTION: Final = (b"gantry-duplicate-detection", b"none")
"""The message, if it is sent again, may be stored again: it has no key, or its topic has no duplicate window."""
DETECTION: Final = (b"gantry-duplicate-detection", b"window")
"""A message with the same key is stored once in the duplicate window of the topic."""
REPLAY: Final = (b"idempotent-replay", b"true")

# The shortest message of a batch has a dozen bytes, and reading it takes as long as MESSAGE_BYTES of other work.
_READING_FACTOR: Final = 4
_PROPERTY_HEADER: Final = b"gantry-property-"
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
# W3C Trace Context: a value of another form is ignored; later versions may be longer.
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def send_feature(core: Core) -> Feature:
    """Return the routes of sending."""
    return Feature(send_routes(core.sending))


def send_routes(sending: SendMessages) -> list[Operation]:
    """Return the routes of sending."""

    async def send_one(call: Call) -> Answer:
        topic = call.path_params["topic"]
        sending.check_topic(topic)
        call.principal.require_publish(topic)
        call.require_send()
        message = await _read_one(call)
        # From here on the broker may have the message, even if the gateway fails.
        call.outcome = UNKNOWN
        try:
            result = await sending.send_one(topic, message)
        except ProblemError as problem:
            raise _with_detection(problem, sending, topic, (message,)) from None
        status = 201 if result.outcome == STORED else 202
        headers = [JSON_TYPE, detection(sending, topic, (message,))]
        if result.is_replayed:
            headers.append(REPLAY)
        return Answer(status, encode_json(single_view(result, topic)), headers)

    async def send_batch(call: Call) -> Answer:
        topic = call.path_params["topic"]
        sending.check_topic(topic)
        call.principal.require_publish(topic)
        call.require_send()
        items = await _read_many(call)
        # Once messages are stored, the gateway must answer, so it reserves room for the answer first.
        call.expect_answer(len(items) * RESULT_BYTES)
        call.outcome = UNKNOWN
        try:
            report = await sending.send_many(topic, items, turn=call.take_turn)
        except ProblemError as problem:
            raise _with_detection(problem, sending, topic, items) from None
        await call.take_turn(len(items) * MESSAGE_BYTES)
        view = {"results": result_views(report, call.request_id), **outcome_counts(report)}
        return Answer(200, encode_json(view), [JSON_TYPE, detection(sending, topic, items)])

    return [
        Operation("POST", "/v1/topics/{topic}/messages", send_one, is_send=True, is_bare=True),
        Operation("POST", "/v1/topics/{topic}/messages:batch", send_batch, is_send=True),
    ]


async def _read_one(call: Call) -> Sendable:
    key = idempotency_key_of(call)
    media_type = call.media_type
    if media_type != JSON_MEDIA:
        if media_type is None or media_type in _FORM_MEDIA:
            raise wrong_media_type(media_type, "is the type of a web form, which curl -d sends by default")
        message: Sendable = await _read_raw(call)
    else:
        call.require_utf8()
        refuse_metadata_headers(call, "belong into the JSON of the message")
        body = await call.read_body()
        call.count_send(1, len(body))
        message = read_message(body) if len(body) < DENSE_BYTES_MIN else await in_slices(read_json_message(body))
        set_trace(call, (message,))
        if message.idempotency_key is not UNSET:
            raise ProblemError(
                UNKNOWN_FIELD,
                "/idempotency_key: of a single message it is the header Idempotency-Key",
                field="/idempotency_key",
            )
    if key is not None:
        message.idempotency_key = key
    return message


async def _read_many(call: Call) -> Sequence[Item]:
    if b"idempotency-key" in call.header_values:
        raise invalid(
            "Idempotency-Key", call.header(b"idempotency-key"), "is one message's; in a batch use `idempotency_key`"
        )
    refuse_metadata_headers(call, "belong into the messages of a batch")
    media_type = call.media_type
    read = _BATCHES.get(media_type or "")
    if read is None:
        raise wrong_media_type(media_type, f"is not one of {', '.join(_BATCHES)}")
    call.require_utf8()
    body = await call.read_body()
    await call.take_turn(_READING_FACTOR * len(body))
    items = await in_slices(read(body))
    call.count_send(len(items), len(body))
    set_trace(call, items)
    return items


def set_trace(call: Call, items: Sequence[Item]) -> None:
    """Set the caller's trace on the messages that have none."""
    given = call.header_values.get(b"traceparent")
    if given is None or _TRACE_PARENT.fullmatch(given) is None:
        return
    trace = given.decode("ascii")
    for item in items:
        if isinstance(item, InvalidValueError):
            continue
        if not item.properties:
            item.properties = {TRACE_PROPERTY: trace}
        else:
            item.properties.setdefault(TRACE_PROPERTY, trace)


def detection(sending: SendMessages, topic: str, items: Sequence[Item]) -> tuple[bytes, bytes]:
    """Return the header that says whether duplicates of these messages are detected."""
    if not sending.detects_duplicates(topic):
        return NO_DETECTION
    has_key = any(not isinstance(item, InvalidValueError) and item.idempotency_key is not UNSET for item in items)
    return DETECTION if has_key else NO_DETECTION


def _with_detection(problem: ProblemError, sending: SendMessages, topic: str, items: Sequence[Item]) -> ProblemError:
    """Return the problem of a send with the same header as an answer."""
    problem.headers["Gantry-Duplicate-Detection"] = detection(sending, topic, items)[1].decode()
    return problem


async def _read_raw(call: Call) -> PackedMessage:
    """Return a message whose body is the request's, with its metadata from headers."""
    fields: dict[str, Any] = {}
    properties: dict[str, str] = {}
    for name, value in call.scope["headers"]:
        if not name.startswith(b"gantry-"):
            continue
        shown = name.decode("latin-1")
        if name.startswith(_PROPERTY_HEADER) and len(name) > len(_PROPERTY_HEADER):
            properties[shown[len(_PROPERTY_HEADER) :]] = _header_text(value, shown)
        elif name == b"gantry-keys":
            fields["keys"] = [_header_text(part.strip(), shown) for part in value.split(b",")]
        elif name in _HEADER_FIELDS:
            fields[_HEADER_FIELDS[name]] = _header_text(value, shown)
        else:
            raise ProblemError(UNKNOWN_FIELD, f"{shown}: there is no such header", field=shown)
    carried = {"content-type": call.header(b"content-type")}
    if _TRACE_PARENT.fullmatch(call.header_values.get(b"traceparent", b"")):
        carried[TRACE_PROPERTY] = call.header(b"traceparent")
    for name, value in carried.items():
        if value:
            if name in properties:
                raise ProblemError(DUPLICATE, f"gantry-property-{name}: is given as {name}, too", field=name)
            properties[name] = value
    body = await call.read_body()
    call.count_send(1, len(body))
    message = PackedMessage(body=body, **fields)
    if properties:
        message.properties = properties
    return message


def refuse_metadata_headers(call: Call, why: str) -> None:
    """Raise ProblemError (400) for a Gantry-* header where it would be ignored."""
    for name in call.header_values:
        if name.startswith(b"gantry-"):
            shown = name.decode("latin-1")
            raise ProblemError(UNKNOWN_FIELD, f"{shown}: such headers are for raw bodies; here they {why}", field=shown)


def idempotency_key_of(call: Call) -> str | None:
    """Return the caller's idempotency key. Raises ProblemError (400)."""
    if b"idempotency-key" not in call.header_values:
        return None
    key = call.header(b"idempotency-key") or ""
    if _IDEMPOTENCY_KEY.fullmatch(key) is None:
        raise invalid("Idempotency-Key", key, "is not 1 to 255 visible ASCII characters")
    return key


def _header_text(value: bytes, name: str) -> str:
    if not value.isascii():
        raise invalid(name, value, "is not ASCII; other characters are percent-encoded UTF-8")
    return decode_escapes(value, name)


_HEADER_FIELDS: Final = {
    b"gantry-tag": "tag",
    b"gantry-ordering-key": "ordering_key",
    b"gantry-delay": "delay",
    b"gantry-deliver-at": "deliver_at",
}
_BATCHES: Final = {JSON_MEDIA: read_json_batch, LINES_MEDIA: read_json_lines, FRAMES_MEDIA: read_packed_frames}
