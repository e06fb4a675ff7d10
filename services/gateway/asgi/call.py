"""Call: one request on its way through the gateway, and the bounded reading of its body."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope

from services.gateway.addresses import address_group
from services.gateway.auth.principal import NOBODY, Principal
from services.gateway.bodies import SMALL_BYTES, Body
from services.gateway.errors import DUPLICATE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, ProblemError, invalid
from services.gateway.limits import RequestSlot, Unsent
from services.gateway.rates import RateLine
from services.gateway.schemas.dense import VALUES_AT_ONCE_MAX, is_dense
from services.gateway.schemas.reading import read_json
from services.gateway.settings import METADATA_BYTES_MAX, REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from services.gateway.asgi.gate import Gate

T = TypeVar("T")

CONNECTION: Final = "gantry.connection"
"""Extension of the scope: the connection of a request (httpconnection.py) or of a stream (streamprotocol.py)."""
CALL: Final = "gantry.call"
"""Key of the scope: the call, from the middleware to the route. The middleware removes it at the end, since call and
scope would keep each other in memory."""
UNMATCHED: Final = "unmatched"
_NO_EXTENSIONS: Final[Mapping[str, Any]] = {}

# Headers that must not be repeated: the result would depend on which one is used.
_SINGLE_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"traceparent",
        b"x-request-id",
    }
)


class _NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an operation that takes none."""


_no_fields: Final = msgspec.json.Decoder(_NoFields)


class ClientGoneError(Exception):
    """The caller has closed the connection and does not wait for the answer."""


class Call(Request):
    """A Starlette request with everything that the gateway knows about it.

    Its body is read with `read_body` or `read_json`, which count and limit it; never with Starlette's `body`.

    Attributes:
        gate: Identity and limits of the gateway.
        request_id: Id of the request, from the caller or from the gateway.
        bad_id: Problem of an id that the caller gave in invalid form.
        principal: Holder of the key, or user of the session; only public routes are called without one.
        session_cookie: Cookie of the session that identifies the caller; None for the holder of a key.
        query: Query parameters, each declared by the route.
        header_values: Headers by lower-case name; of a repeated header the last value.
        path_label: Template of the route, for metrics; `unmatched` until a route has accepted the request.
        outcome: Outcome of a send that fails from here on; None for other requests.
        rates: Limits of its key and its address, and what is left of them; empty if there are none.
        slot: Its place among the requests in progress; None for probes and public routes.
        unsent: Bytes of its answer that count for its caller; None while none do.
        status: Status of the answer; 0 until the answer begins.
        duration_ms: Time until the answer began.
        sent_bytes: Bytes of the answer's body.
    """

    request_id = ""
    bad_id: ProblemError | None = None
    query: Mapping[str, str] = MappingProxyType({})
    principal: Principal = NOBODY
    path_label = UNMATCHED
    outcome: str | None = None
    session_cookie: str | None = None
    rates: Sequence[RateLine] = ()
    slot: RequestSlot | None = None
    unsent: Unsent | None = None
    status = 0
    duration_ms = 0
    sent_bytes = 0
    _counted: Body | None = None

    def __init__(self, scope: Scope, receive: Receive, gate: "Gate") -> None:
        super().__init__(scope, receive)
        self.gate = gate
        self.header_values: Mapping[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> str | None:
        """Return a header's value, or None if it is missing. Raises ProblemError (400) if it is not ASCII."""
        value = self.header_values.get(name)
        if value is None:
            return None
        try:
            return value.decode("ascii")
        except UnicodeDecodeError:
            raise invalid(name.decode(), value, "is not ASCII") from None

    @property
    def media_type(self) -> str | None:
        """Return the content type without its parameters, in lower case; None where it is missing or empty."""
        return _content_type(self.header_values.get(b"content-type", b""))[0] or None

    @property
    def wants_msgpack(self) -> bool:
        """Return whether `Accept` prefers MessagePack to JSON."""
        accept = self.header_values.get(b"accept")
        return accept is not None and b"application/msgpack" in accept and _prefers_msgpack(accept.decode("latin-1"))

    async def read_body(self) -> bytes:
        """Return the whole body.

        Raises:
            ProblemError: 401: the key was revoked while the body came. 408: the body is too slow. 413: it is too large;
                raised before the whole body is read. 415: it is compressed. 429, 503: bodies of the key, or of all keys,
                take too much memory.
            ClientGoneError: The caller has gone.
        """
        headers = self.header_values
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise ProblemError(
                UNSUPPORTED_MEDIA_TYPE, "Content-Encoding: compressed bodies are not read", field="Content-Encoding"
            )
        # The HTTP parser has checked that it is a number.
        length = headers.get(b"content-length")
        if length is not None and int(length) > REQUEST_BYTES_MAX:
            raise _too_large(int(length))
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        # A small body that came at once is not counted: `in_flight_max` bounds their sum, and counting costs more.
        if more or len(body) >= SMALL_BYTES:
            body = await self._read_counted(body, more=more)
        # The body may have taken a minute, and the work for it has not begun.
        self.principal.require_unrevoked()
        return body

    def require_presence(self) -> None:
        """Raise ClientGoneError if the caller has gone while the request stood in line."""
        connection = self.scope.get("extensions", _NO_EXTENSIONS).get(CONNECTION)
        if connection is not None and connection.transport.is_closing():
            raise ClientGoneError

    async def read_json(self, decoder: msgspec.json.Decoder[T], *, bytes_max: int = METADATA_BYTES_MAX) -> T:
        """Return the body as a value.

        Raises:
            ProblemError: 413: the body exceeds `bytes_max`, or holds too many values to be read at once. 415: it is not
                JSON. Also those of `read_body`.
            InvalidValueError: The JSON does not have the form that `decoder` expects.
        """
        length = self.header_values.get(b"content-length")
        is_sent = length != b"0" and (length is not None or b"transfer-encoding" in self.header_values)
        if is_sent:  # An empty body needs no content type: it is refused because it is missing.
            self.require_json()
        if length is not None and int(length) > bytes_max:
            raise _too_large(int(length), bytes_max)
        return _decoded(await self.read_body(), decoder, bytes_max)

    async def read_optional_json(self, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """Return the body as a value, or the default if there is no body.

        An empty body needs no content type, but some clients send one with every request.

        Raises:
            ProblemError, InvalidValueError: As `read_json`.
        """
        body = await self.read_body()
        if not body:
            return default
        self.require_json()
        return _decoded(body, decoder, METADATA_BYTES_MAX)

    async def require_empty(self) -> None:
        """Read the body of an operation that takes none. An empty object is allowed.

        Raises:
            ProblemError, InvalidValueError: As `read_json`: every field is unknown.
        """
        if self.header_values.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.header_values:
            await self.read_optional_json(_no_fields, _NoFields())

    def require_json(self) -> None:
        """Raise ProblemError (415) unless the content type is JSON in UTF-8."""
        if self.media_type != "application/json":
            raise wrong_media_type(self.media_type, "is not application/json")
        self.require_utf8()

    def require_utf8(self) -> None:
        """Raise ProblemError (415) if the content type names a character set other than UTF-8."""
        _, charset = _content_type(self.header_values.get(b"content-type", b""))
        if charset is not None:
            raise ProblemError(
                UNSUPPORTED_MEDIA_TYPE, f"Content-Type: charset {charset!r} is not UTF-8", field="Content-Type"
            )

    def check_headers(self) -> None:
        """Raise ProblemError (400) for an invalid request id, and for a repeated header that must be single."""
        if self.bad_id is not None:
            raise self.bad_id
        if len(self.header_values) == len(self.scope["headers"]):
            return
        seen: set[bytes] = set()
        for name, _ in self.scope["headers"]:
            if name in seen and (name in _SINGLE_HEADERS or name.startswith(b"gantry-")):
                shown = name.decode("latin-1")
                raise ProblemError(DUPLICATE, f"{shown}: is given twice", field=shown)
            seen.add(name)

    @property
    def address(self) -> str:
        """Return the address that the caller counts for."""
        client = self.scope.get("client")
        return "" if client is None else address_group(client[0])

    @property
    def key_id(self) -> str:
        """Return the id of the caller's key."""
        return self.principal.key_id

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which the request waits. Entering it raises ProblemError (429, 503) if too many wait."""
        assert self.slot is not None, "probes and public routes wait for nothing"
        return self.slot.waiting()

    async def take_turn(self, size: int = 0) -> None:
        """Wait until it is the turn of a piece of work of about `size` bytes; many are often ready at the same moment."""
        assert self.slot is not None, "probes and public routes do no such work"
        await self.slot.take_turn(size)

    def require_room(self) -> None:
        """Raise ProblemError (429, 503) if the key has too many unread answers; called before work on a large answer."""
        assert self.slot is not None, "probes and public routes give no large answers"
        self.slot.require_room()

    def expect_answer(self, size: int) -> None:
        """Reserve `size` bytes for the answer. Raises ProblemError (429, 503) if the key has too many unread answers."""
        assert self.slot is not None, "probes and public routes change nothing"
        self.unsent = self.slot.expect_answer(size)

    def count_answer(self, size: int) -> None:
        """Count an answer until its caller has read it. Raises ProblemError (429, 503) for a GET without room."""
        if self.unsent is None:
            self.unsent = self.gate.limits.unsent_of(self.key_id if self.slot is not None else None, self.address)
        if self.method == "GET":
            self.unsent.take(size)
        else:
            # The answer reports a change that has been made.
            self.unsent.take_back(size)

    def require_send(self) -> None:
        """Raise ProblemError (429) if the key may not send now; called before the body is read."""
        if self.principal.limits is not None:
            self.gate.limits.key_rates.require_send(self.principal)

    def count_send(self, messages: int, size_bytes: int) -> None:
        """Count the messages of a send, and the bytes of its body, for the key."""
        if self.principal.limits is not None:
            self.gate.limits.key_rates.count_send(self.principal, messages, size_bytes)

    def release(self) -> None:
        """Free the place among the requests in progress, and the bytes of the body."""
        if self.slot is not None:
            self.slot.leave()
            self.slot = None
        if self._counted is not None:
            self._counted.close()
            self._counted = None

    async def _read_counted(self, part: bytes, *, more: bool) -> bytes:
        """Return the whole body, counted from its first byte to the answer."""
        body = self._counted = self._open_body()
        body.grow(len(part))
        if more:
            # A list of parts with a few bytes each would take ten times the memory.
            whole = bytearray(part)
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                if len(whole) + len(part) > REQUEST_BYTES_MAX:
                    raise _too_large(len(whole) + len(part))
                body.grow(len(part))
                whole += part
                more = message.get("more_body", False)
            part = bytes(whole)
        body.finish()
        return part

    def _open_body(self) -> Body:
        if self.slot is None:
            return self.gate.limits.bodies.of_address(self.address)
        connection = self.scope.get("extensions", _NO_EXTENSIONS).get(CONNECTION)
        if connection is None:
            return self.gate.limits.bodies.of_key(self.key_id)

        def give_up(problem: ProblemError) -> bool:
            if connection.body_since is None:
                return False
            connection.refuse(problem, "slow_body")
            return True

        return self.gate.limits.bodies.of_key(self.key_id, give_up)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T], bytes_max: int) -> T:
    if len(body) > bytes_max:
        raise _too_large(len(body), bytes_max)
    if is_dense(body):
        reason = f"holds more than {VALUES_AT_ONCE_MAX} values in {len(body)} bytes; split it over several requests"
        raise ProblemError(TOO_LARGE, f"request: {reason}", field="request")
    return read_json(body, decoder)


def wrong_media_type(found: str | None, reason: str) -> ProblemError:
    """Return the problem (415) of a content type that is missing or not supported, with a hint what to write."""
    shown = "Content-Type: is missing" if found is None else f"Content-Type: {found!r} {reason}"
    detail = f"{shown}; for JSON write -H 'Content-Type: application/json'"
    return ProblemError(UNSUPPORTED_MEDIA_TYPE, detail, field="Content-Type")


# Callers send the same few values thousands of times a second.
@lru_cache(maxsize=64)
def _content_type(value: bytes) -> tuple[str, str | None]:
    """Return the media type without its parameters, in lower case, and the first character set that is not UTF-8."""
    media_type, *parameters = value.decode("latin-1").lower().split(";")
    for parameter in parameters:
        name, _, charset = parameter.strip().partition("=")
        if name == "charset" and charset.strip('" ') not in ("utf-8", "utf8"):
            return media_type.strip(" \t"), charset
    return media_type.strip(" \t"), None


def _too_large(size: int, bytes_max: int = REQUEST_BYTES_MAX) -> ProblemError:
    return ProblemError(TOO_LARGE, f"request: at least {size} bytes, and {bytes_max} are allowed", field="request")


def _prefers_msgpack(accept: str) -> bool:
    weights: dict[str, float] = {}
    for item in accept.split(","):
        media_type, *parameters = [part.strip().lower() for part in item.split(";")]
        weights[media_type] = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weights[media_type] = float(parameter[2:])
                except ValueError:
                    weights[media_type] = 0.0
    json_weight = max(weights.get(name, 0.0) for name in ("application/json", "application/*", "*/*"))
    msgpack_weight = weights.get("application/msgpack", 0.0)
    # With equal weights MessagePack wins, since a caller names it only on purpose.
    return msgpack_weight > 0 and (msgpack_weight >= json_weight or "application/json" not in weights)
