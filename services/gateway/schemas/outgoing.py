"""Messages to send, as requests carry them: JSON, NDJSON and length-prefixed MessagePack.

Decoding is on the hottest path of the gateway, so there are a fast path and an exact path. The fast path decodes a
whole batch in one call into structs whose body is a text. If that fails, the exact path decodes each item separately,
so that one invalid message does not affect the others: its error takes its place in the list.

Missing fields are UNSET, so that an encoded struct has exactly the keys of the request; the search for repeated keys
relies on that (reading.py).
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gantry.model.errors import NO_VALUE, InvalidValueError
from services.gateway.schemas.msgpackkeys import find_duplicate_key
from services.gateway.schemas.reading import (
    ESCAPED_COLON,
    READ_ERRORS,
    DuplicateError,
    TooLargeError,
    UnreadableError,
    find_duplicate,
    refuse_duplicates,
    translate,
)

BATCH_MESSAGES_MAX: Final = 1_000
# Limit of the white space in NDJSON; scanning 8 MiB of it would block the event loop.
BLANK_BYTES_MAX: Final = 1 << 20
_FRAME_LENGTH_BYTES: Final = 4
# Enough bytes to include the `:` of the first key and the byte after it.
_SNIFFED_BYTES: Final = 32

_NOT_BLANK: Final = re.compile(rb"\S")
# A key contains no white space, because RocketMQ separates keys by it, and no invisible characters.
KEY_EXPRESSION: Final = re.compile(r"[^\s\x00-\x20\x7f-\xa0]+")

QueueNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TargetQueue(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An explicit queue."""

    broker: str
    id: QueueNumber


class OutgoingMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to send; the subclasses below add `body`."""

    encoding: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    properties: dict[str, str] | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    queue: TargetQueue | UnsetType = UNSET
    delay_level: Annotated[int, Meta(ge=1, le=18)] | UnsetType = UNSET
    delay: str | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    one_way: bool | UnsetType = UNSET
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


class TextMessage(OutgoingMessage, kw_only=True, gc=False):
    """A message whose body is a JSON string."""

    body: str


class RawMessage(OutgoingMessage, kw_only=True, gc=False):
    """A message whose body is any JSON value; it stays as it was written."""

    body: Raw


class PackedMessage(OutgoingMessage, kw_only=True, gc=False):
    """A message from MessagePack; its body may be bytes."""

    body: Any


Sendable = TextMessage | RawMessage | PackedMessage
Item = Sendable | InvalidValueError


def _batch_decoder(item: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of a batch that rejects the first item beyond the limit at once.

    msgspec checks the length of a list only after it has decoded all items, perhaps millions. So the array is a struct
    with one field for each allowed item.
    """
    fields = [(f"item_{index}", item | UnsetType, UNSET) for index in range(BATCH_MESSAGES_MAX)]
    array = msgspec.defstruct("_Items", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(msgspec.defstruct("_Batch", [("messages", array)], forbid_unknown_fields=True))


def _items_of(batch: Any) -> tuple[Any, ...]:
    items = msgspec.structs.astuple(batch.messages)
    return items if items[-1] is not UNSET else items[: items.index(UNSET)]


_texts = _batch_decoder(TextMessage)
_raws = _batch_decoder(Raw)
_text = msgspec.json.Decoder(TextMessage)
_any_body = msgspec.json.Decoder(RawMessage)
_packed = msgspec.msgpack.Decoder(PackedMessage)
_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into
# Holds the JSON that `_may_have_duplicates` measures. A new buffer would be copied each time it grows: for a batch of
# 100 KB a dozen times.
_scratch = bytearray()
_pack = msgspec.msgpack.Encoder().encode


def read_message(data: bytes | Raw, at: str = "") -> Sendable:
    """Return one message from a JSON text.

    Args:
        data: The text of an object.
        at: JSON pointer to the message in the request, for error texts.

    Raises:
        InvalidValueError: The text is not a valid message.
    """
    text = bytes(data)
    try:
        message = _text.decode(text)
    except READ_ERRORS:
        return _read_any_body(text, at)
    if _may_have_duplicates(text, (message,), keys_outside=0):
        find_duplicate(text, at)
    return message


def read_batch(data: bytes) -> Sequence[Item]:
    """Return the items of a JSON batch `{"messages": […]}`; an error takes the place of each invalid item.

    Raises:
        InvalidValueError: The batch itself is not valid, is empty or has too many items.
    """
    return read_texts(data) or _each(split_batch(data), read_message)


def read_texts(data: bytes) -> tuple[TextMessage, ...]:
    """Return the items of a JSON batch if all are valid and their bodies are texts; otherwise an empty tuple.

    This is the fast path. It decodes only the fields of messages with a text as body, so that even the worst input
    takes less than 20 µs a KiB.
    """
    try:
        texts: tuple[TextMessage, ...] = _items_of(_texts.decode(data))
    except READ_ERRORS:
        return ()
    return () if _may_have_duplicates(data, texts, keys_outside=1) else texts


def read_lines(data: bytes) -> Sequence[Item]:
    """Return the items of NDJSON, one for each line; blank lines are skipped.

    Raises:
        InvalidValueError: There is no item, or there are too many.
    """
    return _each(split_lines(data), read_message)


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of NDJSON that are not blank, at most one more than the limit.

    Raises:
        TooLargeError: There is too much white space.
    """
    lines: list[bytes] = []
    end, blank_bytes = 0, 0
    while len(lines) <= BATCH_MESSAGES_MAX:
        # One search skips many blank lines, because a loop step for each of millions of lines would take too long.
        start = _NOT_BLANK.search(data, end, end + BLANK_BYTES_MAX)
        blank_bytes += (len(data) if start is None else start.start()) - end
        if blank_bytes > BLANK_BYTES_MAX:
            raise TooLargeError("body", blank_bytes, f"bytes of blank lines, at most {BLANK_BYTES_MAX} are allowed")
        if start is None:
            break
        end = data.find(b"\n", start.start())
        end = len(data) if end < 0 else end
        lines.append(data[start.start() : end])
    return lines


def read_frames(data: bytes) -> Sequence[Item]:
    """Return the items of `application/vnd.gantry.batch`: uint32 length and MessagePack map, repeated.

    Raises:
        InvalidValueError: The lengths do not match the body, there is no item, or there are too many.
    """
    return _each(split_frames(data), read_packed)


def split_frames(data: bytes) -> list[bytes]:
    """Return the frames of a binary batch, at most one more than the limit.

    Raises:
        UnreadableError: The lengths do not match the body.
    """
    frames: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        start = at + _FRAME_LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if start > end or at > end:
            raise UnreadableError(
                f"/{len(frames)}",
                end,
                f"is where the body ends, but message {len(frames)} ends at byte {max(at, start)}",
            )
        frames.append(data[start:at])
        if len(frames) > BATCH_MESSAGES_MAX:
            break
    return frames


def read_items(raws: Sequence[Raw | bytes], *, packed: bool, first: int = 0) -> list[Item]:
    """Return items of a batch in another envelope (a WebSocket frame); an error takes the place of each invalid item.

    Args:
        raws: Some items of the batch; `check_count` has accepted the whole batch.
        packed: Whether the items are MessagePack.
        first: Index of the first of these items in the batch.
    """
    return _read_each(raws, read_packed if packed else read_message, first)


def read_packed(data: bytes | Raw, at: str = "") -> Sendable:
    """Return one message from a MessagePack map.

    Raises:
        InvalidValueError: The map is not a valid message.
    """
    packed = bytes(data)
    try:
        message = _packed.decode(packed)
        # Our encoder writes the shortest form. If its length equals that of the request, the decoder dropped nothing.
        twice = None if len(_pack(message)) == len(packed) else find_duplicate_key(packed)
    except READ_ERRORS as error:
        raise translate(error, at) from None
    if twice is not None:
        raise DuplicateError(at or "/", twice, "appears twice in one map")
    return message


def _read_any_body(data: bytes, at: str) -> RawMessage:
    try:
        message = _any_body.decode(data)
    except READ_ERRORS as error:
        raise translate(error, at, data) from None
    refuse_duplicates(data, at)
    return message


def split_batch(data: bytes) -> list[bytes]:
    """Return the undecoded items of a JSON batch.

    Raises:
        InvalidValueError: The batch itself is not valid, or has too many items.
    """
    try:
        raws = [bytes(raw) for raw in _items_of(_raws.decode(data))]
    except READ_ERRORS as error:
        if "of at most length" in str(error):
            raise _too_many() from None
        raise translate(error, data=data) from None
    # Outside the items there is one key, `messages`; if more than one `:` remains, the key is repeated.
    if data.count(b":") - sum(raw.count(b":") for raw in raws) != 1:
        raise DuplicateError("/messages", "messages", "appears twice in one object")
    return raws


def check_count(raws: Sequence[Any]) -> None:
    """Raise InvalidValueError if a batch is empty or has too many items."""
    if not raws:
        raise InvalidValueError("/messages", NO_VALUE, "contains no message")
    if len(raws) > BATCH_MESSAGES_MAX:
        raise _too_many()


def _each(raws: Sequence[Any], read: Callable[[Any, str], Sendable]) -> Sequence[Item]:
    check_count(raws)
    return _read_each(raws, read, 0)


def _read_each(raws: Sequence[Any], read: Callable[[Any, str], Sendable], first: int) -> list[Item]:
    items: list[Item] = []
    for index, raw in enumerate(raws, first):
        try:
            items.append(read(raw, f"/messages/{index}"))
        except InvalidValueError as error:
            items.append(error)
    return items


def _too_many() -> TooLargeError:
    return TooLargeError("/messages", NO_VALUE, f"contains more messages than the limit, {BATCH_MESSAGES_MAX}")


def _may_have_duplicates(data: bytes, messages: Sequence[TextMessage], *, keys_outside: int) -> bool:
    """Return whether a key may be repeated; False is certain (reading.py explains the method).

    For JSON without blanks there is an even cheaper test. Our encoder writes the shortest JSON: no blanks, the shortest
    escapes, and integers have only one valid form. If its output is not shorter than the request, the decoder dropped
    nothing. Otherwise the `:` are counted. The bodies are nearly all of the data, so they are taken out before the rest
    is encoded.
    """
    if b": " not in data[:_SNIFFED_BYTES]:
        envelope = len(b'{"messages":}') if keys_outside else -len(b"[]")
        _encode_into(messages, _scratch)
        if len(_scratch) + envelope == len(data):
            return False
    # A search for one byte is ten times faster than a search for six.
    if b"\\" in data and ESCAPED_COLON in data:
        return True
    bodies = [message.body for message in messages]
    for message in messages:
        message.body = ""
    kept = _encode(messages).count(b":") + keys_outside
    for message, body in zip(messages, bodies, strict=True):
        message.body = body
        kept += body.count(":")
    return kept != data.count(b":")
