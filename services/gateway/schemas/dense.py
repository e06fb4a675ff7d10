"""Sliced reading of requests that are large or contain very many values.

Decoding takes time for each value rather than for each byte: 4 MiB of text take 2 ms, 4 MiB of `[],` take more than a
second. All requests share the event loop, so a body that is very large, or large and dense, does not take the fast path
(outgoing.py). The functions here are generators; at each `yield` other tasks may run. `in_slices` runs them.

1. `is_dense` finds such bodies by counting a few bytes. The count is an upper bound: long texts may count as dense. A
   batch of texts of usual size is not counted, because its decoder rejects other values at once.
2. A batch is split into its items without decoding them, and each item is a slice of its own.
3. A dense item is split into its fields. All fields but the body must be short, and are decoded as usual. A body that
   is a text is decoded at once. Any other body stays undecoded, and only its objects are searched for repeated keys.
4. A long body in base64 is decoded piece by piece.
"""

import asyncio
import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from gantry.model.errors import NO_VALUE, InvalidMessageError, InvalidValueError
from gantry.model.names import BODY_BYTES_MAX
from services.gateway.schemas.messages import BASE64
from services.gateway.schemas.outgoing import (
    Item,
    PackedMessage,
    RawMessage,
    Sendable,
    TextMessage,
    check_count,
    read_batch,
    read_message,
    read_packed,
    read_texts,
    split_batch,
    split_frames,
    split_lines,
)
from services.gateway.schemas.reading import READ_ERRORS, DuplicateError, TooLargeError, refuse_duplicates, translate

T = TypeVar("T")
Slices = Generator[None, None, T]

# No smaller body takes longer than 20 ms.
DENSE_BYTES_MIN: Final = 64 * 1024
# From this size on even texts are read in slices: handling a request takes several times as long as decoding it.
LARGE_BYTES_MIN: Final = 1024 * 1024
# Batches up to this size may be read as texts without counting: that takes at most 5 ms.
TEXTS_BYTES_MAX: Final = 256 * 1024
VALUES_AT_ONCE_MAX: Final = 20_000
# Skipping a million values takes 20 ms, and that can't be sliced.
VALUES_MAX: Final = 1_000_000
# Tag, keys and properties take at most 32 KiB decoded; an escape takes six bytes for one.
FIELDS_BYTES_MAX: Final = 256 * 1024
_COUNTED_BYTES: Final = 128 * 1024
# Each value but the first of an array or object follows a comma.
_VALUE_MARKS: Final = (b",", b"[", b"{")
_ESCAPE_MARK: Final = (b"\\",)
_SLICE_BYTES: Final = 64 * 1024
_SLICE_TOKENS: Final = 4_096

# Complete groups of four characters; decoding them takes a millisecond.
_BASE64_CHARACTERS: Final = 256 * 1024
assert _BASE64_CHARACTERS % 4 == 0

_NOTHING: Final = Raw(b"")
_FIELDS: Final = tuple(field for field in RawMessage.__struct_fields__ if field != "body")
_Parts: Any = msgspec.defstruct(
    "_Parts",
    [("body", Raw), *[(field, Raw, _NOTHING) for field in _FIELDS]],
    forbid_unknown_fields=True,
)
_split = msgspec.json.Decoder(_Parts)
_split_packed = msgspec.msgpack.Decoder(_Parts)
_text = msgspec.json.Decoder(TextMessage)
_any_body = msgspec.json.Decoder(RawMessage)
_decode_text = msgspec.json.Decoder(str).decode
_decode_packed = msgspec.msgpack.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode

_QUOTE, _OPEN, _CLOSE = b'"{}'
_OTHER: Final = re.compile(rb'[^"{}]{1,65536}+')
# A piece has at most 4,096 escapes, because each takes longer than a thousand plain bytes.
_STRING_PIECE: Final = re.compile(rb'(?:[^"\\]++|\\.){1,4096}+', re.DOTALL)
_COLON: Final = re.compile(rb"[ \t\r\n]*+:")


def is_dense(data: bytes) -> bool:
    """Return whether a JSON text may contain too many values or escapes to be decoded in one go."""
    if len(data) < DENSE_BYTES_MIN:
        return False
    return any(found > VALUES_AT_ONCE_MAX for found in _counts(data, _VALUE_MARKS + _ESCAPE_MARK))


async def in_slices(slices: Slices[T]) -> T:
    """Run a generator of slices to its end, and let other tasks run between the slices."""
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)


def read_json_batch(data: bytes) -> Slices[Sequence[Item]]:
    """Return the items of a JSON batch. Raises InvalidValueError as read_batch does."""
    if len(data) <= TEXTS_BYTES_MAX and (texts := read_texts(data)):
        return texts
    if len(data) < LARGE_BYTES_MIN and not is_dense(data):
        return read_batch(data)
    yield from _check_values(data, "/messages")
    raws = split_batch(data)
    yield
    return (yield from read_each(raws, read_json_message))


def read_json_lines(data: bytes) -> Slices[Sequence[Item]]:
    """Return the items of NDJSON. Raises InvalidValueError as read_lines does."""
    return (yield from read_each(split_lines(data), read_json_message))


def read_packed_frames(data: bytes) -> Slices[Sequence[Item]]:
    """Return the items of a binary batch. Raises InvalidValueError as read_frames does."""
    return (yield from read_each(split_frames(data), read_packed_message))


def read_each(raws: Sequence[bytes], read: Callable[[bytes, str], Slices[Sendable]]) -> Slices[Sequence[Item]]:
    """Return the items of a batch; an error takes the place of each invalid item.

    Raises:
        InvalidValueError: There is no item, or there are too many.
    """
    check_count(raws)
    items: list[Item] = []
    read_bytes = 0
    for index, raw in enumerate(raws):
        try:
            items.append((yield from read(raw, f"/messages/{index}")))
        except InvalidValueError as error:
            items.append(error)
        read_bytes += len(raw)
        if read_bytes >= _SLICE_BYTES:
            read_bytes = 0
            yield
    return items


def read_json_message(data: bytes, at: str = "") -> Slices[Sendable]:
    """Return one message from a JSON text.

    Raises:
        InvalidValueError: The text is not a valid message.
    """
    dense = is_dense(data)
    if len(data) >= LARGE_BYTES_MIN or dense:
        message = yield from _read_parts(data, at, dense=dense)
        yield
    else:
        message = read_message(data, at)
    return (yield from decode_base64_in_slices(message, at))


def _read_parts(data: bytes, at: str, *, dense: bool) -> Slices[Sendable]:
    """Return one message, decoded field by field. Raises InvalidValueError as read_json_message does."""
    if dense:
        yield from _check_values(data, at or "/")
        # Only escapes and base64 make a body longer in JSON than decoded.
        longer_bytes = len(data) - BODY_BYTES_MAX * 4 // 3 - 2 * FIELDS_BYTES_MAX
        if longer_bytes > 0 and not (yield from _has_more_than(longer_bytes // _ESCAPE_BYTES_MAX, data, _ESCAPE_MARK)):
            raise _too_large_for_one(data, at)
    try:
        parts = _split.decode(data)
    except READ_ERRORS as error:
        raise translate(error, at, data) from None
    yield
    given = _fields_of(parts, at)
    body = bytes(parts.body)
    # Outside the values there is one `:` for each field; if more remain, a field is repeated.
    values = [body, *map(bytes, given.values())]
    if data.count(b":") - sum(value.count(b":") for value in values) != len(values):
        raise DuplicateError(at or "/", NO_VALUE, "repeats a field")
    rest = b"".join(b',"%b":%b' % (name.encode(), bytes(value)) for name, value in given.items())
    try:
        if body[:1] == b'"':
            message: TextMessage | RawMessage = _text.decode(b'{"body":""%b}' % rest)
            refuse_duplicates(b"{%b}" % rest[1:], at)
            yield
            message.body = _decode_text(body)
            return message
        message = _any_body.decode(b'{"body":0%b}' % rest)
        refuse_duplicates(b"{%b}" % rest[1:], at)
    except READ_ERRORS as error:
        raise translate(error, at) from None
    if len(body) > BODY_BYTES_MAX:
        raise TooLargeError(f"{at}/body", len(body), f"bytes, at most {BODY_BYTES_MAX} are allowed")
    message.body = Raw(body)
    yield
    yield from refuse_duplicates_in_slices(body, at)
    return message


def decode_base64_in_slices(message: Sendable, at: str) -> Slices[Sendable]:
    """Return the message with its body decoded to bytes if the body is long and in base64; otherwise the same message.

    Raises:
        InvalidValueError: The body is not base64, or is too large.
    """
    body: Any = message.body
    if message.encoding != BASE64 or not isinstance(body, str) or len(body) < DENSE_BYTES_MIN:
        return message
    if len(body) // 4 * 3 > BODY_BYTES_MAX + 2:
        raise TooLargeError(f"{at}/body", len(body) // 4 * 3, f"bytes, at most {BODY_BYTES_MAX} are allowed")
    padding = body.find("=")
    # Each slice but the last encodes complete bytes. Padding ends the text: the last slice begins with the group before
    # the padding, so the decoder rejects all characters after the padding at once.
    end = max(0, padding // 4 - 1) * 4 if padding >= 0 else len(body)
    parts: list[bytes] = []
    for start in range(0, end, _BASE64_CHARACTERS):
        parts.append(decode_base64(body[start : min(start + _BASE64_CHARACTERS, end)], body, at))
        yield
    parts.append(decode_base64(body[end:], body, at))
    given = {name: getattr(message, name) for name in _FIELDS if name != "encoding"}
    return PackedMessage(body=b"".join(parts), **given)


def decode_base64(text: str, body: str, at: str) -> bytes:
    """Return the bytes of a text in base64. Raises InvalidMessageError, which shows the body."""
    try:
        return a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise InvalidMessageError(f"{at}/body", body, f"is not base64: {error}") from None


def read_packed_message(data: bytes, at: str = "") -> Slices[Sendable]:
    """Return one message from a MessagePack map.

    Raises:
        InvalidValueError: The map is not a valid message.
    """
    if len(data) < DENSE_BYTES_MIN:
        return read_packed(data, at)
    if len(data) > BODY_BYTES_MAX + 2 * FIELDS_BYTES_MAX:
        raise _too_large_for_one(data, at)
    try:
        parts = _split_packed.decode(data)
    except READ_ERRORS as error:
        raise translate(error, at) from None
    yield
    given = _fields_of(parts, at)
    small = b"".join(_pack(name) + bytes(value) for name, value in given.items())
    # The message with nil in place of the body.
    message = read_packed(bytes([0x80 | (len(given) + 1)]) + _pack("body") + b"\xc0" + small, at)
    body = bytes(parts.body)
    # The length shows whether a field is repeated, as in read_packed: otherwise only the head of the map remains.
    if len(data) - len(body) - len(small) - len(_pack("body")) not in _MAP_HEAD_BYTES:
        raise DuplicateError(
            at or "/", NO_VALUE, "repeats a field, or a field name is not in MessagePack's shortest form"
        )
    if not 0xA0 <= body[0] <= 0xBF and body[0] not in _TEXT_OR_BYTES and len(body) >= DENSE_BYTES_MIN:
        limit = DENSE_BYTES_MIN - 1
        reason = f"bytes of MessagePack that are neither text nor bytes; the limit of such a body is {limit}"
        raise TooLargeError(f"{at}/body", len(body), reason)
    try:
        message.body = _decode_packed(body)
    except READ_ERRORS as error:
        raise translate(error, at) from None
    return (yield from decode_base64_in_slices(message, at))


def refuse_duplicates_in_slices(data: bytes, at: str) -> Slices[None]:
    """Raise DuplicateError if an object in a JSON text repeats a key.

    Args:
        data: A JSON text that a decoder has accepted.
        at: JSON pointer to the text in the request, for error texts.
    """
    if not is_dense(data):
        refuse_duplicates(data, at)
        return
    position, end, tokens = 0, len(data), 0
    open_objects: list[set[str]] = []
    while position < end:
        tokens += 1
        if tokens % _SLICE_TOKENS == 0:
            yield
        first = data[position]
        if first == _QUOTE:
            start, position = position, position + 1
            while piece := _STRING_PIECE.match(data, position):
                position = piece.end()
                tokens += 1
                if tokens % _SLICE_TOKENS == 0:
                    yield
            position += 1
            if colon := _COLON.match(data, position):
                key = _decode_text(data[start:position])
                position = colon.end()
                if key in open_objects[-1]:
                    raise DuplicateError(at or "/", key, "appears twice in one object")
                open_objects[-1].add(key)
        elif first == _OPEN:
            open_objects.append(set())
            position += 1
        elif first == _CLOSE:
            open_objects.pop()
            position += 1
        else:
            other = _OTHER.match(data, position)
            assert other is not None, "the byte is none of the others"
            position = other.end()


def _counts(data: bytes, marks: tuple[bytes, ...]) -> Iterator[int]:
    """Yield the number of marks found so far, after each `_COUNTED_BYTES` of data."""
    found = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        for mark in marks:
            found += data.count(mark, start, start + _COUNTED_BYTES)
        yield found


def _has_more_than(limit: int, data: bytes, marks: tuple[bytes, ...]) -> Slices[bool]:
    """Return whether the marks occur more than `limit` times; stop counting at the limit."""
    for found in _counts(data, marks):
        if found > limit:
            return True
        yield
    return False


def _check_values(data: bytes, at: str) -> Slices[None]:
    if (yield from _has_more_than(VALUES_MAX, data, _VALUE_MARKS)):
        reason = f"bytes contain more than {VALUES_MAX} values or commas; send large data as text or bytes"
        raise TooLargeError(at, len(data), reason)


def _too_large_for_one(data: bytes, at: str) -> TooLargeError:
    reason = f"bytes for one message; the limit of its body is {BODY_BYTES_MAX}"
    return TooLargeError(f"{at}/body", len(data), reason)


def _fields_of(parts: Any, at: str) -> dict[str, Raw]:
    """Return the fields of the request without the body. Raises InvalidValueError if a field is too long."""
    given = {name: value for name in _FIELDS if len(value := getattr(parts, name))}
    for name, value in given.items():
        if len(value) > FIELDS_BYTES_MAX:
            reason = f"bytes; the limit of each field but the body is {FIELDS_BYTES_MAX}"
            raise InvalidValueError(f"{at}/{name}", len(value), reason)
    return given


# An escape takes up to six bytes for a character of one byte: five more.
_ESCAPE_BYTES_MAX: Final = 5
# First bytes of MessagePack's str 8, 16, 32 and bin 8, 16, 32.
_TEXT_OR_BYTES: Final = frozenset({0xD9, 0xDA, 0xDB, 0xC4, 0xC5, 0xC6})
# Sizes of the head of a map: with fewer than sixteen fields, or with a count of 2 or 4 bytes.
_MAP_HEAD_BYTES: Final = (1, 3, 5)
