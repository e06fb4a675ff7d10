"""Encoding of large answers in slices, so that no answer occupies the event loop for long.

JSON escapes a control character with six bytes, so a body of 4 MiB may take 50 ms to encode, and a list of them a second.
At most two large answers are encoded at the same time, a slice of each in one iteration of the loop, and keys take
turns. The other answers wait in the form in which they came from brokers, which takes a sixth of the memory. The server
gets the parts of an answer, because joining them would take as long again.

Small answers are encoded at once.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from services.gateway.asgi.answer import (
    JSON_TYPE,
    MSGPACK_TYPE,
    Answer,
    StreamedAnswer,
    encode_json,
    encode_msgpack,
    value_answer,
)
from services.gateway.schemas.dense import Slices, in_slices
from services.gateway.schemas.messages import BASE64, TEXT, ShownMessage
from services.gateway.usecases.reading.fairgate import FairGate

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest answer with several messages; an answer with one message may have any size."""

_AT_ONCE_MAX: Final = 2
# 1 ms if every character is escaped. A multiple of 3, as base64 needs, and of 4.
SLICE_BYTES: Final = 48 * 1024
_BODY_FIELDS: Final = ("body", "encoding")
_LIST32: Final = 0xDD
_FIXMAP_ENTRIES_MAX: Final = 15

View = dict[str, Any] | ShownMessage
"""A message, whose large body stays bytes."""


class AnswerWriter:
    """Encodes answers that hold messages, whose views keep large bodies as bytes (views/messages.py).

    Concurrency: the event loop's thread; one task for each request.
    """

    def __init__(self) -> None:
        self._turns = FairGate(_AT_ONCE_MAX)

    async def message(self, view: dict[str, Any], key_id: str, *, binary: bool) -> Answer:
        """Return the answer that shows one message."""
        if binary or not isinstance(view["body"], bytes):
            return value_answer(view, binary=binary)
        return _answer(await self._run(_write_message(view, binary=False), key_id), binary=False)

    async def queue(self, answer: dict[str, Any], key_id: str, *, binary: bool) -> Answer:
        """Return the answer to a read of a queue; a pull limits it, unless a single message is larger."""
        views = answer["messages"]
        # A body that is compressed in the store is larger than its record.
        if sum([max(view["size"], len(view["body"])) for view in views]) <= SLICE_BYTES:
            return value_answer(answer, binary=binary)
        fields = {name: value for name, value in answer.items() if name != "messages"}
        parts = await self._run(_write_page(fields, "messages", iter(views), binary=binary, bytes_max=None), key_id)
        return _answer(parts, binary=binary)

    async def pulled(
        self, fields: dict[str, Any], messages: Sequence[ShownMessage], key_id: str, *, binary: bool
    ) -> Answer:
        """Return the answer to a pull of a group, with `fields` and all messages."""
        if sum([max(message.size, len(message.body)) for message in messages]) <= SLICE_BYTES:
            return value_answer({**fields, "messages": messages}, binary=binary)
        slices = _write_page(fields, "messages", iter(messages), binary=binary, bytes_max=None)
        parts = await self._run(slices, key_id)
        return _answer(parts, binary=binary)

    def streamed(
        self, fields: dict[str, Any], count: int, messages: Iterator[ShownMessage], *, binary: bool
    ) -> StreamedAnswer:
        """Return the answer of `pulled` for messages that are too large for memory together.

        Each message is made, encoded and sent before the next one, as fast as the caller reads.
        """
        pieces = _stream_page(fields, "messages", count, messages, binary=binary)
        return StreamedAnswer(pieces, [MSGPACK_TYPE if binary else JSON_TYPE], held_bytes=ANSWER_BYTES_MAX)

    async def items(
        self, fields: dict[str, Any], views: Iterable[dict[str, Any]], key_id: str, *, binary: bool
    ) -> Answer:
        """Return an answer with `fields` and with all messages as `items`; the caller limits their size."""
        slices = _write_page(fields, "items", iter(views), binary=binary, bytes_max=None)
        return _answer(await self._run(slices, key_id), binary=binary)

    async def page(
        self, fields: dict[str, Any], views: Iterable[dict[str, Any]], key_id: str, *, binary: bool
    ) -> Answer:
        """Return an answer with `fields` and with messages as `items`, as many as fit.

        If some do not fit, the field `truncated` is true. Each view is created, encoded and dropped before the next.
        """
        slices = _write_page(fields, "items", iter(views), binary=binary, bytes_max=ANSWER_BYTES_MAX)
        return _answer(await self._run(slices, key_id), binary=binary)

    async def _run(self, slices: Slices[list[bytes]], key_id: str) -> list[bytes]:
        try:
            next(slices)
        except StopIteration as stop:
            parts: list[bytes] = stop.value
            return parts  # A small answer does not wait.
        async with self._turns.enter(key_id):
            return await in_slices(slices)


def _answer(parts: list[bytes], *, binary: bool) -> Answer:
    if sum(map(len, parts)) <= SLICE_BYTES:
        parts = [b"".join(parts)]
    answer = Answer(200, parts[0], [MSGPACK_TYPE if binary else JSON_TYPE])
    answer.remaining = parts[1:]
    return answer


def _write_page(
    fields: dict[str, Any], name: str, views: Iterator[View], *, binary: bool, bytes_max: int | None
) -> Slices[list[bytes]]:
    parts: list[bytes] = []
    # Each small part would cost the server more than a copy.
    small: list[bytes] = []
    count, size, small_bytes = 0, 0, 0
    for view in views:
        room = None if bytes_max is None or not count else bytes_max - size
        written = yield from _write_message(view, binary=binary, bytes_max=room)
        length = sum(map(len, written))
        if room is not None and length > room:
            fields["truncated"] = True
            break
        if count and not binary:
            small.append(b",")
        small += written
        count, size, small_bytes = count + 1, size + length, small_bytes + length
        if small_bytes >= SLICE_BYTES:
            parts += small if len(written) > 1 else [b"".join(small)]
            small, small_bytes = [], 0
            yield
    parts += small if small_bytes > SLICE_BYTES else [b"".join(small)]
    start, end = _page_frame(fields, name, count, binary=binary)
    return [start, *parts, end]


async def _stream_page(
    fields: dict[str, Any], name: str, count: int, views: Iterator[View], *, binary: bool
) -> AsyncGenerator[bytes, None]:
    start, end = _page_frame(fields, name, count, binary=binary)
    for view in views:
        parts = await in_slices(_write_message(view, binary=binary))
        del view  # It has the whole body.
        yield start + parts[0]
        for part in parts[1:]:
            yield part
        start = b"" if binary else b","
    yield end


def _page_frame(fields: dict[str, Any], name: str, count: int, *, binary: bool) -> tuple[bytes, bytes]:
    """Return the bytes before and after the messages of a page."""
    if binary:
        start = encode_msgpack(fields)
        assert len(fields) < _FIXMAP_ENTRIES_MAX, "a longer map has a longer header"
        head = b"%c%b%b%c%b" % (start[0] + 1, start[1:], encode_msgpack(name), _LIST32, count.to_bytes(4, "big"))
        return head, b""
    start = encode_json(fields)[:-1] + b"," if fields else b"{"
    return b'%b"%b":[' % (start, name.encode()), b"]}"


def _write_message(view: View, *, binary: bool, bytes_max: int | None = None) -> Slices[list[bytes]]:
    """Return the parts of one message; if it is larger than `bytes_max`, so many of them that they exceed it."""
    if isinstance(view, ShownMessage):
        if binary or not isinstance(view.body, bytes):
            return [encode_msgpack(view) if binary else encode_json(view)]
        view = msgspec.structs.asdict(view)
    body = view["body"]
    if binary or not isinstance(body, bytes):
        return [encode_msgpack(view) if binary else encode_json(view)]
    head = encode_json({name: value for name, value in view.items() if name not in _BODY_FIELDS})[:-1]
    pieces, encoding = yield from _write_body(body, bytes_max)
    return [b'%b,"encoding":"%b","body":"' % (head, encoding.encode()), *pieces, b'"}']


def _write_body(body: bytes, bytes_max: int | None) -> Slices[tuple[list[bytes], str]]:
    """Return a body as the content of a JSON string, and its encoding; cut once it exceeds `bytes_max`."""
    pieces: list[bytes] = []
    size, at = 0, 0
    try:
        while at < len(body) and (bytes_max is None or size <= bytes_max):
            end = min(at + SLICE_BYTES, len(body))
            while end < len(body) and body[end] & 0xC0 == 0x80 and end > at + SLICE_BYTES - 4:
                end -= 1  # Within a character.
            piece = encode_json(body[at:end].decode())[1:-1]
            pieces.append(piece)
            size += len(piece)
            at = end
            yield
    except UnicodeDecodeError:
        pass
    else:
        return pieces, TEXT
    pieces, size = [], 0
    for start in range(0, len(body), SLICE_BYTES):
        if bytes_max is not None and size > bytes_max:
            break
        pieces.append(b64encode(body[start : start + SLICE_BYTES]))
        size += len(pieces[-1])
        yield
    return pieces, BASE64
