"""The handshake of a stream: how its request is read, and how it is rejected."""

from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from services.gateway.addresses import address_group
from services.gateway.asgi.answer import problem_answer
from services.gateway.asgi.call import CONNECTION
from services.gateway.asgi.query import parse_query
from services.gateway.errors import DUPLICATE, INVALID_FIELD, NOT_FOUND, ProblemError
from services.gateway.requestids import RequestIds
from services.gateway.turns import Turn
from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import IDENTITY, LIMIT, RIGHT
from services.gateway.ws.frames import CODECS, Codec
from services.gateway.ws.inbound import Charge
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.ports import FrameReading

_QUERY: Final = frozenset({"ticket"})
_CLOSE_CODES: Final = {401: IDENTITY, 403: RIGHT, 429: LIMIT, 503: LIMIT}


def choose_codec(scope: Scope) -> Codec:
    """Return the first offered coding that is known. Raises ProblemError (400)."""
    for subprotocol in scope.get("subprotocols", ()):
        if subprotocol in CODECS:
            return CODECS[subprotocol]()
    known = " and ".join(CODECS)
    offered = ", ".join(scope.get("subprotocols", ())) or "none"
    detail = f"Sec-WebSocket-Protocol: {offered} was offered; {known} are supported"
    raise ProblemError(INVALID_FIELD, detail, field="Sec-WebSocket-Protocol")


def read_identity(scope: Scope) -> tuple[bytes | None, str | None]:
    """Return the Authorization header and the ticket; at most one may be given. Raises ProblemError (400)."""
    ticket = parse_query(scope.get("query_string", b""), _QUERY).get("ticket")
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) > 1:
        raise ProblemError(DUPLICATE, "Authorization: is given twice", field="Authorization")
    if ticket is not None and values:
        detail = "ticket: there is an Authorization header as well; send one of them"
        raise ProblemError(INVALID_FIELD, detail, field="ticket")
    return (values[0] if values else None), ticket


def address_of(scope: Scope) -> str:
    """Return the address that the client counts for."""
    client = scope.get("client")
    return address_group(client[0]) if client else "unknown"


async def refuse(scope: Scope, receive: Receive, send: Send, problem: ProblemError, request_id: str) -> None:
    """Reject the handshake, with a body if the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    answer = problem_answer(problem, request_id)
    answer.raw_headers.append((b"x-request-id", request_id.encode()))
    await answer(scope, receive, send)


class UnknownStream:
    """An ASGI application that rejects handshakes at paths without a WebSocket."""

    def __init__(self, known_paths: Iterable[str]) -> None:
        self._detail = f"path: only {' and '.join(known_paths)} is a WebSocket"
        self._request_ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a handshake."""
        await receive()
        problem = ProblemError(NOT_FOUND, self._detail, field="path")
        await refuse(scope, receive, send, problem, self._request_ids.of(scope["headers"]))


async def say_goodbye(send: Send, codec: Codec, name: str, problem: ProblemError) -> None:
    """Send a goodbye to a browser, which cannot read why a handshake fails."""
    after_ms = problem.retry_after_ms or 0
    goodbye = Answers(name, codec).goodbye(problem.detail, retry=problem.retryable, after_ms=after_ms).data
    frame = {"text": goodbye.decode()} if codec.is_text else {"bytes": goodbye}
    await send({"type": "websocket.send", **frame})
    code = _CLOSE_CODES[problem.status]
    await send({"type": "websocket.close", "code": code, "reason": problem.kind.name})


async def wait_until_taken(scope: Scope) -> None:
    """Wait until the socket has taken all but a little of what was written.

    uvicorn's `send` waits before it writes and not after it, so it does not tell how long a frame stays with the
    transport. With another server, this does not wait.
    """
    connection = _connection_of(scope)
    if connection is not None:
        await connection.writable.wait()


def start_reading(scope: Scope, charge: Charge, limits: StreamLimits) -> FrameReading:
    """Have the connection (streamprotocol.py) read frames, and count them for the key.

    The connections of another server read frames without these limits.
    """
    connection = _connection_of(scope)
    if connection is None:
        return UnreportedReading()
    connection.open(charge, small_frames_per_s_max=limits.small_frames_per_s_max)
    reading: FrameReading = connection
    return reading


def in_turn(receive: Receive, send: Send, turn: Turn) -> tuple[Receive, Send]:
    """Return both functions, taking a turn of the loop for each frame, because processing a frame takes a while."""

    async def receive_in_turn() -> MutableMapping[str, Any]:
        event = await receive()
        await turn(_size_of(event))
        return event

    async def send_in_turn(event: MutableMapping[str, Any]) -> None:
        await turn(_size_of(event))
        await send(event)

    return receive_in_turn, send_in_turn


def _size_of(event: MutableMapping[str, Any]) -> int:
    return len(event.get("text") or event.get("bytes") or b"")


class UnreportedReading:
    """The reading of a server that reports nothing about it."""

    waits_for_room = False

    def message_ms(self) -> int:
        """Return 0: no message is known to be late."""
        return 0

    def resume_if_room(self) -> None:
        """Do nothing: this reading never waits for room."""


def abort(scope: Scope) -> None:
    """Drop a connection with all bytes that wait to be written to it.

    ASGI has no event for this. With another server nothing happens, and the system's time-outs have to do.
    """
    connection = _connection_of(scope)
    if connection is not None:
        connection.transport.abort()


def _connection_of(scope: Scope) -> Any:
    """Return the connection of a stream (streamprotocol.py); None with another server, or once it has ended."""
    return scope.get("extensions", {}).get(CONNECTION)
