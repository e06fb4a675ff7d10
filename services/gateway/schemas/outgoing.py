"""Messages to send, as requests carry them: JSON, NDJSON and length-prefixed MessagePack.

Decoding is the hottest thing the gateway does with bytes, so it has a fast way and an exact one. The fast way decodes a
whole batch in one call into structs whose body is a text. Where that fails, the exact way takes each item by itself, so
that one bad message never costs the others: its place in the list is taken by its error.

Fields that were not given are UNSET, so that encoding a struct gives back exactly the keys that stood there; that is what
the search for duplicate keys counts on (reading.py).
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
# White space of NDJSON that is skipped; to look at 8 MiB of it would hold up everybody.
BLANK_BYTES_MAX: Final = 1 << 20
_FRAME_LENGTH_BYTES: Final = 4
# Enough to see the first key's `:` and what stands behind it.
_SNIFFED_BYTES: Final = 32

_NOT_BLANK: Final = re.compile(rb"\S")
# A key may hold no white space, since RocketMQ separates keys by it, and nothing that can't be seen.
KEY_EXPRESSION: Final = re.compile(r"[^\s\x00-\x20\x7f-\xa0]+")

QueueNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TargetQueue(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An explicit queue."""

    broker: str
    id: QueueNumber


class OutgoingMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to send; `body` is added by the kinds below."""

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
    """One whose body is a JSON string."""

    body: str


class RawMessage(OutgoingMessage, kw_only=True, gc=False):
    """One whose body is any JSON value, kept as it was written."""

    body: Raw


class PackedMessage(OutgoingMessage, kw_only=True, gc=False):
    """One from MessagePack; the body may be bytes."""

    body: Any


Sendable = TextMessage | RawMessage | PackedMessage
Item = Sendable | InvalidValueError


def _batch_decoder(item: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of a batch that refuses the item behind the last allowed one at once.

    A list's length is only looked at when all of its items, perhaps millions, are in memory. So the array is a struct
    with a field for each item.
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
_pack = msgspec.msgpack.Encoder().encode


def read_message(data: bytes | Raw, at: str = "") -> Sendable:
    """Return one message from a JSON text.

    Args:
        data: The text of an object.
        at: JSON pointer of where it lies in the request, for what is said about it.

    Raises:
        InvalidValueError: It can't be read as a message.
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
    """Return the items of a JSON batch `{"messages": […]}`; a bad one is its error.

    Raises:
        InvalidValueError: The batch as such can't be read, is empty or too long.
    """
    return read_texts(data) or _each(split_batch(data), read_message)


def read_texts(data: bytes) -> tuple[TextMessage, ...]:
    """Return the items of a JSON batch if all are fine and their bodies are texts; else nothing.

    This is the fast way. It decodes no other value than those of a message with a text, so that even the worst bytes
    take less than 20 µs a KiB.
    """
    try:
        texts: tuple[TextMessage, ...] = _items_of(_texts.decode(data))
    except READ_ERRORS:
        return ()
    return () if _may_have_duplicates(data, texts, keys_outside=1) else texts


def read_lines(data: bytes) -> Sequence[Item]:
    """Return the items of NDJSON, one a line; lines of white space only are no items.

    Raises:
        InvalidValueError: There is none, or too many.
    """
    return _each(split_lines(data), read_message)


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of NDJSON that hold more than white space, up to one more than are allowed.

    Raises:
        TooLargeError: There is too much white space.
    """
    lines: list[bytes] = []
    end, blank_bytes = 0, 0
    while len(lines) <= BATCH_MESSAGES_MAX:
        # One search for many blank lines; millions of them must not cost a step each.
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
        InvalidValueError: The lengths don't add up, there is no item, or too many.
    """
    return _each(split_frames(data), read_packed)


def split_frames(data: bytes) -> list[bytes]:
    """Return the frames of a binary batch, up to one more than are allowed.

    Raises:
        UnreadableError: The lengths don't add up.
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
    """Return items of a batch that came in another envelope (a WebSocket frame); a bad one is its error.

    Args:
        raws: Some of them; `check_count` has passed all.
        packed: They are MessagePack.
        first: Which is the first of these.
    """
    return _read_each(raws, read_packed if packed else read_message, first)


def read_packed(data: bytes | Raw, at: str = "") -> Sendable:
    """Return one message from a MessagePack map.

    Raises:
        InvalidValueError: It can't be read as a message.
    """
    packed = bytes(data)
    try:
        message = _packed.decode(packed)
        # Encoded again it is as short as can be. As long as what came means that nothing was dropped.
        twice = None if len(_pack(message)) == len(packed) else find_duplicate_key(packed)
    except READ_ERRORS as error:
        raise translate(error, at) from None
    if twice is not None:
        raise DuplicateError(at or "/", twice, "stands twice in one map")
    return message


def _read_any_body(data: bytes, at: str) -> RawMessage:
    try:
        message = _any_body.decode(data)
    except READ_ERRORS as error:
        raise translate(error, at, data) from None
    refuse_duplicates(data, at)
    return message


def split_batch(data: bytes) -> list[bytes]:
    """Return the items of a JSON batch as they stand in it.

    Raises:
        InvalidValueError: The batch as such can't be read, or is too long.
    """
    try:
        raws = [bytes(raw) for raw in _items_of(_raws.decode(data))]
    except READ_ERRORS as error:
        if "of at most length" in str(error):
            raise _too_many() from None
        raise translate(error, data=data) from None
    # Outside the items there is one key, `messages`; if more than one `:` is left over, it stands twice.
    if data.count(b":") - sum(raw.count(b":") for raw in raws) != 1:
        raise DuplicateError("/messages", "messages", "stands twice in one object")
    return raws


def check_count(raws: Sequence[Any]) -> None:
    """Raise InvalidValueError for a batch that is empty or too long."""
    if not raws:
        raise InvalidValueError("/messages", NO_VALUE, "holds no message")
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
    return TooLargeError("/messages", NO_VALUE, f"holds more than the {BATCH_MESSAGES_MAX} messages that are allowed")


def _may_have_duplicates(data: bytes, messages: Sequence[TextMessage], *, keys_outside: int) -> bool:
    """Say whether a key may stand twice; False is certain (reading.py says how).

    Without blanks there is an even cheaper way: what comes out of our encoder is as short as JSON can be (no blanks, the
    shortest escapes; integers are read in one form only), so where the whole has not become shorter, nothing can have been
    dropped. Otherwise the `:` are counted, with the bodies taken out before the rest is encoded: they are nearly all there
    is.
    """
    if b": " not in data[:_SNIFFED_BYTES]:
        envelope = len(b'{"messages":}') if keys_outside else -len(b"[]")
        if len(_encode(messages)) + envelope == len(data):
            return False
    # Looking for one byte is ten times faster than looking for six.
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
