"""A call of the REST API as a value, and helpers to build calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec

from gantry.http.errors import DECODE_ERRORS, GantryProblem, GantryProtocolError, Problem

T = TypeVar("T")

JSON: Final = "application/json"
PAGE_ITEMS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the function that reads its answer.

    Attributes:
        wait_ms: Time for which the server may hold the request, in addition to the client's time-out.
    """

    method: str
    path: str
    read: Callable[[bytes, Mapping[str, str]], T]
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_ms: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


class PageOf(Protocol):
    """A page of items of any type, perhaps with more fields."""

    @property
    def items(self) -> list[Any]:
        """Items of the page."""
        ...

    @property
    def next_cursor(self) -> str | None:
        """Cursor of the next page; None on the last page."""
        ...


Paged = TypeVar("Paged", bound=PageOf)


def read_answer(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    """Return the result in an answer.

    Raises:
        GantryProblem: The gateway refused or could not serve.
        GantryProtocolError: The answer does not follow the contract.
    """
    if not 200 <= status < 300:
        raise read_problem(status, headers, content)
    try:
        return call.read(content, headers)
    except DECODE_ERRORS as error:
        raise GantryProtocolError(
            f"{call.method} {call.path}: {status} with a body that can't be read: {error}"
        ) from None


def read_problem(status: int, headers: Mapping[str, str], content: bytes) -> GantryProblem:
    """Return the problem of an answer. If the answer is not a gateway's, make a problem from its status and text."""
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except DECODE_ERRORS:
        text = content[:200].decode("utf-8", "replace").strip()
        problem = Problem(
            "about:blank", "No problem body", status, text or f"HTTP {status}", retryable=status in (502, 503)
        )
    seconds = headers.get("retry-after", "")
    return GantryProblem(problem, retry_after_ms=int(seconds) * 1_000 if seconds.isdecimal() else None)


@cache
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type, from a cache: making a decoder takes longer than decoding most answers."""
    return msgspec.json.Decoder(kind, strict=False)


@cache
def _msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def json_of(kind: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    """Return a function that reads a JSON answer."""
    decode: Callable[[bytes], T] = json_decoder(cast("Any", kind)).decode
    return lambda content, _: decode(content)


def msgpack_of(kind: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    """Return a function that reads a MessagePack answer."""
    decode: Callable[[bytes], T] = _msgpack_decoder(cast("Any", kind)).decode
    return lambda content, _: decode(content)


def read_nothing(content: bytes, headers: Mapping[str, str]) -> None:
    """Read an answer without a result."""
    del content, headers


def if_match(etag: str | None) -> dict[str, str]:
    """Return the header that makes a change conditional on an ETag; no header if there is none."""
    return {} if etag is None else {"if-match": etag}


def path_of(*parts: str) -> str:
    """Return the API path with these segments, percent-encoded."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def params_of(**params: str | None) -> dict[str, str]:
    """Return the parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}


def page_of(cursor: str | None, **params: str | None) -> dict[str, str]:
    """Return the parameters of a page of a list."""
    return params_of(limit=str(PAGE_ITEMS), cursor=cursor, **params)
