"""Answers: the gateway's Starlette responses, and functions that make the common ones: values and problems."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.errors import ProblemError

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")
MSGPACK_TYPE: Final = (b"content-type", b"application/msgpack")
PROBLEM_TYPE: Final = (b"content-type", b"application/problem+json")

BODY_PARTS: Final = "gantry.body_parts"
"""Key of the ASGI body message for the other parts of a large body (`Answer.remaining`; not the REST API). The gateway's
server writes `body` and then these parts."""

_NO_BODY_STATUSES: Final = (204, 304)

encode_json = msgspec.json.Encoder().encode
encode_msgpack = msgspec.msgpack.Encoder().encode


class Answer(Response):
    """A response whose headers and body are bytes. A large body may have several parts, which nobody joins.

    It can be sent only once.

    Attributes:
        status_code: HTTP status.
        body: The whole of a small body, or the first part of a large one.
        raw_headers: Headers that the endpoint adds. Middleware adds others.
        rest: The other parts of a large body, in order; empty for a small one.
    """

    body: bytes

    def __init__(self, status_code: int, body: bytes = b"", headers: Headers | None = None) -> None:
        # Starlette's constructor encodes headers from text; the gateway has them as bytes.
        self.status_code = status_code
        self.body = body
        self.raw_headers = [] if headers is None else headers
        self.background = None
        self.remaining: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """Return the size of the whole body in bytes."""
        return len(self.body) + sum(map(len, self.remaining)) if self.remaining else len(self.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and the body, and drop the body."""
        headers, size = self.raw_headers, self.size
        if size or self.status_code not in _NO_BODY_STATUSES:
            headers.append((b"content-length", b"%d" % size))
        # This object lives until the server has written everything. Without a reference here, the server can free the
        # body as soon as the socket has taken it.
        body: dict[str, Any] = {"type": "http.response.body", "body": self.body}
        if self.remaining:
            body[BODY_PARTS] = self.remaining
            self.remaining = ()
        self.body = b""
        start = {"type": "http.response.start", "status": self.status_code, "headers": headers}
        if scope["type"] == "websocket":
            start["type"], body["type"] = "websocket.http.response.start", "websocket.http.response.body"
        await send(start)
        await send(body)


class StreamedAnswer(Answer):
    """A response whose body is written piece by piece, as fast as the caller takes it. Its length is unknown.

    If the source fails after the first piece, the connection is closed before the last chunk, so the caller sees that
    the answer is not whole.

    Args:
        pieces: The pieces.
        headers: Headers that the endpoint adds.
        held_bytes: Memory that the source takes until the caller has read everything. It counts as unread bytes.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], headers: Headers, held_bytes: int = 0) -> None:
        super().__init__(200, b"", headers)
        self._pieces = pieces
        self._held_bytes = held_bytes

    @property
    def size(self) -> int:
        """Return the memory that the answer takes while it is sent; the size of its body is unknown."""
        return self._held_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head with the first piece, then the other pieces."""
        async with aclosing(self._pieces) as pieces:
            # The first piece comes before the head, so that an error of its source is still answered as a problem.
            first = await anext(pieces, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_answer(value: Any, status: int = 200, *, etag: str | None = None) -> Answer:
    """Return an answer with a value as JSON."""
    headers: Headers = [JSON_TYPE]
    if etag is not None:
        headers.append((b"etag", etag.encode()))
    return Answer(status, encode_json(value), headers)


def value_answer(value: Any, *, binary: bool) -> Answer:
    """Return an answer (200) with a value as MessagePack if `binary`, else as JSON.

    The caller has made `value` for this coding: bodies of messages, for example, are bytes only in MessagePack.
    """
    return Answer(200, encode_msgpack(value), [MSGPACK_TYPE]) if binary else json_answer(value)


def problem_answer(problem: ProblemError, request_id: str) -> Answer:
    """Return an answer with a problem as problem+json (RFC 9457)."""
    headers: Headers = [PROBLEM_TYPE]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % problem.retry_after_s))
    headers += header_lines(problem.headers)
    return Answer(problem.status, encode_json(problem.to_dict(request_id)), headers)


def last_answer(problem: ProblemError, request_id: str, more: Headers) -> bytes:
    """Return the bytes of an HTTP/1.1 answer with a problem, after which the server closes the connection.

    It is for requests that the server refuses before they reach the application.

    Args:
        problem: The problem.
        request_id: The id of the request, for the header and the body.
        more: Headers in addition to those of the problem.
    """
    answer = problem_answer(problem, request_id)
    headers = [
        *more,
        *answer.raw_headers,
        (b"x-request-id", request_id.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    phrase = HTTPStatus(problem.status).phrase.encode()
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (problem.status, phrase, lines, answer.body)


def header_lines(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI wants them: pairs of bytes, names in lower case."""
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
