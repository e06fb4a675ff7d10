"""Answers: status, headers and body, and the common ones ready made."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from services.gateway.errors import ProblemError

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")
MSGPACK_TYPE: Final = (b"content-type", b"application/msgpack")
PROBLEM_TYPE: Final = (b"content-type", b"application/problem+json")

REST: Final = "gantry.rest"
"""In the message that carries a body: its other parts, which the server writes behind it."""

encode_json = msgspec.json.Encoder().encode
encode_msgpack = msgspec.msgpack.Encoder().encode


class Answer:
    """What goes back; the request's id and the length are added on the way out.

    Attributes:
        status: The HTTP status.
        body: All of a small body, or the first part of a large one.
        headers: What the route adds.
        rest: The other parts of a large body.
    """

    __slots__ = ("body", "headers", "rest", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        self.status = status
        self.body = body
        self.headers: Headers = [] if headers is None else headers
        self.rest: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """Return how many bytes the body has."""
        return len(self.body) + sum(map(len, self.rest)) if self.rest else len(self.body)


def json_answer(value: Any, status: int = 200, *, etag: str | None = None) -> Answer:
    """Return a value as JSON."""
    headers: Headers = [JSON_TYPE]
    if etag is not None:
        headers.append((b"etag", etag.encode()))
    return Answer(status, encode_json(value), headers)


def value_answer(value: Any, *, binary: bool) -> Answer:
    """Return a value in the coding that was asked for; `value` has been made for it."""
    return Answer(200, encode_msgpack(value), [MSGPACK_TYPE]) if binary else json_answer(value)


def problem_answer(problem: ProblemError, request_id: str) -> Answer:
    """Return a problem."""
    headers: Headers = [PROBLEM_TYPE]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % problem.retry_after_s))
    headers += header_lines(problem.headers)
    return Answer(problem.status, encode_json(problem.to_dict(request_id)), headers)


def last_answer(problem: ProblemError, request_id: str, more: Headers) -> bytes:
    """Return a problem as the bytes of a connection's last answer, for what the application never gets to see."""
    answer = problem_answer(problem, request_id)
    headers = [
        *more,
        *answer.headers,
        (b"x-request-id", request_id.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    phrase = HTTPStatus(problem.status).phrase.encode()
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (problem.status, phrase, lines, answer.body)


def header_lines(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI wants them."""
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
