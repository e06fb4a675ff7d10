"""Writing large answers in slices, so that the event loop is never held for long.

JSON escapes a control character with six bytes, so a body of 4 MiB may take 50 ms to write, and a list of them a second.
Here two large answers at most are written at once, a slice of each whenever the loop turns, and keys take turns. Others
wait with what brokers gave, which takes a sixth of the memory. The parts of an answer are handed to the server as they
are: joining them would take as long again.

Small answers are written at once.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

from services.gateway.asgi.answer import JSON_TYPE, MSGPACK_TYPE, Answer, encode_json, encode_msgpack, value_answer
from services.gateway.schemas.dense import Slices, in_slices
from services.gateway.schemas.messages import BASE64, TEXT
from services.gateway.usecases.reading.fairgate import FairGate

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""What an answer with several messages has at most; one message of any size is always shown."""

_AT_ONCE_MAX: Final = 2
# 1 ms where every character is escaped. A multiple of 3, as base64 needs, and of 4.
SLICE_BYTES: Final = 48 * 1024
_LIST32: Final = 0xDD
_FIXMAP_ENTRIES_MAX: Final = 15


class AnswerWriter:
    """Writes answers that hold messages; their views have large bodies left as bytes (schemas/messages.py).

    Concurrency: the event loop's thread; a task a request.
    """

    def __init__(self) -> None:
        self._turns = FairGate(_AT_ONCE_MAX)

    async def message(self, view: dict[str, Any], key_id: str, *, binary: bool) -> Answer:
        """Return the answer that shows one message."""
        if binary or not isinstance(view["body"], bytes):
            return value_answer(view, binary=binary)
        return _answer(await self._run(_write_message(view, binary=False), key_id), binary=False)

    async def queue(self, answer: dict[str, Any], key_id: str, *, binary: bool) -> Answer:
        """Return the answer to a read of a queue, which a pull has kept small but for single messages."""
        views = answer["messages"]
        if sum([view["size"] for view in views]) <= SLICE_BYTES:
            return value_answer(answer, binary=binary)
        fields = {name: value for name, value in answer.items() if name != "messages"}
        parts = await self._run(_write_page(fields, "messages", iter(views), binary=binary, bytes_max=None), key_id)
        return _answer(parts, binary=binary)

    async def page(
        self, fields: dict[str, Any], views: Iterable[dict[str, Any]], key_id: str, *, binary: bool
    ) -> Answer:
        """Return the answer that shows a list of messages as `items`, as many as fit, and other fields.

        Where some do not fit, the field `truncated` is true. Each view is made, written and dropped before the next.
        """
        slices = _write_page(fields, "items", iter(views), binary=binary, bytes_max=ANSWER_BYTES_MAX)
        return _answer(await self._run(slices, key_id), binary=binary)

    async def _run(self, slices: Slices[list[bytes]], key_id: str) -> list[bytes]:
        try:
            next(slices)
        except StopIteration as stop:
            parts: list[bytes] = stop.value
            return parts  # A small one waits for nobody.
        async with self._turns.enter(key_id):
            return await in_slices(slices)


def _answer(parts: list[bytes], *, binary: bool) -> Answer:
    answer = Answer(200, parts[0], [MSGPACK_TYPE if binary else JSON_TYPE])
    answer.rest = parts[1:]
    return answer


def _write_page(
    fields: dict[str, Any], name: str, views: Iterator[dict[str, Any]], *, binary: bool, bytes_max: int | None
) -> Slices[list[bytes]]:
    parts: list[bytes] = []
    # Many small parts would each cost the server more than a copy.
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
    if binary:
        start = encode_msgpack(fields)
        assert len(fields) < _FIXMAP_ENTRIES_MAX, "a longer map has a longer header"
        head = b"%c%b%b%c%b" % (start[0] + 1, start[1:], encode_msgpack(name), _LIST32, count.to_bytes(4, "big"))
        return [head, *parts]
    return [b'%b,"%b":[' % (encode_json(fields)[:-1], name.encode()), *parts, b"]}"]


def _write_message(view: dict[str, Any], *, binary: bool, bytes_max: int | None = None) -> Slices[list[bytes]]:
    """Return one message; where it turns out to be larger than `bytes_max`, a part of it that is too large."""
    body = view["body"]
    if binary or not isinstance(body, bytes):
        return [encode_msgpack(view) if binary else encode_json(view)]
    pieces, encoding = yield from _write_body(body, bytes_max)
    others = {name: value for name, value in view.items() if name != "body"} | {"encoding": encoding}
    return [b'%b,"body":"' % encode_json(others)[:-1], *pieces, b'"}']


def _write_body(body: bytes, bytes_max: int | None) -> Slices[tuple[list[bytes], str]]:
    """Return a body as the inside of a JSON string, and its encoding; cut once it has more than `bytes_max`."""
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
