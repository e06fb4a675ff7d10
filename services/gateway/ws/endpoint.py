"""`/v1/stream` as an ASGI application: the handshake, and all streams that are open."""

import asyncio
import re
from typing import Any, Final

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng, secret_bytes
from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import problem_answer
from services.gateway.asgi.call import Receive, Scope, Send
from services.gateway.asgi.query import parse_query
from services.gateway.auth.keyring import KeyRing
from services.gateway.auth.principal import Principal
from services.gateway.auth.tickets import Tickets
from services.gateway.errors import (
    CONFLICT,
    DUPLICATE,
    FORBIDDEN,
    INVALID_FIELD,
    OVERLOADED,
    STOPPING,
    ProblemError,
    problem_of,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.ws.answers import Answers
from services.gateway.ws.connection import StreamConnection
from services.gateway.ws.effects import IDENTITY, RIGHT, SERVICE_RESTART
from services.gateway.ws.frames import CODECS, Codec
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.messagewriter import JsonMessageWriter, MessageWriter, MsgpackMessageWriter, PropertyCache
from services.gateway.ws.ports import Consumers, Publisher
from services.gateway.ws.session import Session

log = logger("gateway.ws")

CONNECTIONS_MAX: Final = 2_000
# Clients come back to another gateway or to this one's successor; not all in the same moment.
RESTART_AFTER_MS: Final = 1_000
_GIVEN_ID: Final = re.compile(rb"[!-~]{1,128}")
_QUERY: Final = frozenset({"ticket"})


class StreamEndpoint:
    """Opens streams and knows all of them.

    Concurrency: one event loop.
    """

    def __init__(
        self,
        *,
        keys: KeyRing,
        tickets: Tickets,
        consumers: Consumers,
        publisher: Publisher,
        metrics: GatewayMetrics,
        clock: Clock,
        rng: Rng,
        client_ip: str = "127.0.0.1",
        limits: StreamLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._keys = keys
        self._tickets = tickets
        self._consumers = consumers
        self._publisher = publisher
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._client_ip = client_ip
        self._limits = limits or StreamLimits()
        self._connections_max = connections_max
        self._connections: set[StreamConnection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._is_stopping = False
        writers: tuple[MessageWriter, MessageWriter] = (JsonMessageWriter(), MsgpackMessageWriter())
        self._writers = {
            is_text: (writer, PropertyCache()) for is_text, writer in zip((True, False), writers, strict=True)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket."""
        event = await receive()
        assert event["type"] == "websocket.connect", event
        name = secret_bytes(8).hex()
        try:
            codec = _choose_codec(scope)
            ticket = _read_ticket(scope)
            principal = self._authenticate(_read_authorization(scope), ticket)
            self._require_room()
        except (ProblemError, InvalidValueError) as error:
            await _refuse(scope, send, problem_of(error), _request_id(scope, name))
            return
        await send({"type": "websocket.accept", "subprotocol": codec.subprotocol})
        if principal is None:
            assert ticket is not None, "either key or ticket"
            try:
                principal = _may_stream(self._tickets.redeem(ticket))
            except ProblemError as problem:
                await _dismiss(send, codec, name, problem)
                return
        await self._serve(name, codec, principal, receive, send)

    async def stop(self, *, timeout_ms: int) -> None:
        """Take no more streams, say goodbye to all and wait until they have ended, at most that long."""
        self._is_stopping = True
        for connection in list(self._connections):
            after_ms = self._rng.jitter_ms(RESTART_AFTER_MS, 0.5)
            connection.close(SERVICE_RESTART, "the gateway restarts", retry=True, after_ms=after_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._all_closed.wait()
        except TimeoutError:
            log.warning("streams did not end in time", count=len(self._connections))

    async def _serve(self, name: str, codec: Codec, principal: Principal, receive: Receive, send: Send) -> None:
        writer, cache = self._writers[codec.is_text]
        session = Session(
            name,
            f"{self._client_ip}@{name}",
            codec=codec,
            writer=writer,
            cache=cache,
            rights=principal,
            limits=self._limits,
            wall_ms=self._clock.now_ms,
        )
        connection = StreamConnection(
            session,
            is_text=codec.is_text,
            receive=receive,
            send=send,
            abort=lambda: _abort(receive),
            consumers=self._consumers,
            publisher=self._publisher,
            keys=self._keys,
            key_id=principal.key_id,
            limits=self._limits,
            metrics=self._metrics,
            clock=self._clock,
            rng=self._rng,
        )
        self._connections.add(connection)
        self._all_closed.clear()
        self._metrics.count("streams_opened")
        self._metrics.gauges["streams"] = len(self._connections)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._metrics.gauges["streams"] = len(self._connections)
            if not self._connections:
                self._all_closed.set()
            log.info("stream ended", session=name, client=session.client_name, code=connection.close_code)

    def _authenticate(self, authorization: bytes | None, ticket: str | None) -> Principal | None:
        """Return who opens the stream; None where that is up to a ticket."""
        if ticket is None:
            return _may_stream(self._keys.authenticate(authorization))
        if authorization is not None:
            raise ProblemError(CONFLICT, "ticket: there is an Authorization header as well", field="ticket")
        return None

    def _require_room(self) -> None:
        if self._is_stopping:
            raise ProblemError(STOPPING, "the gateway is stopping")
        if len(self._connections) >= self._connections_max:
            raise ProblemError(OVERLOADED, f"streams: {len(self._connections)} are open, no more are taken")


def _choose_codec(scope: Scope) -> Codec:
    for subprotocol in scope.get("subprotocols", ()):
        if subprotocol in CODECS:
            return CODECS[subprotocol]()
    known = " and ".join(CODECS)
    offered = ", ".join(scope.get("subprotocols", ())) or "none"
    detail = f"Sec-WebSocket-Protocol: {offered} was offered; {known} are spoken here"
    raise ProblemError(INVALID_FIELD, detail, field="Sec-WebSocket-Protocol")


def _read_ticket(scope: Scope) -> str | None:
    return parse_query(scope.get("query_string", b""), _QUERY).get("ticket")


def _read_authorization(scope: Scope) -> bytes | None:
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) > 1:
        raise ProblemError(DUPLICATE, "Authorization: is given twice", field="Authorization")
    return values[0] if values else None


def _request_id(scope: Scope, name: str) -> str:
    given = next((value for key, value in scope["headers"] if key.lower() == b"x-request-id"), b"")
    return given.decode("ascii") if _GIVEN_ID.fullmatch(given) else name


def _may_stream(principal: Principal) -> Principal:
    rights = principal.rights
    if not rights.publish and not (rights.consume.topics and rights.consume.groups):
        raise ProblemError(FORBIDDEN, f"key {principal.key_id}: has neither the right `publish` nor `consume`")
    return principal


async def _refuse(scope: Scope, send: Send, problem: ProblemError, request_id: str) -> None:
    """Refuse the handshake, with a body where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    answer = problem_answer(problem, request_id)
    headers: list[Any] = [*answer.headers, (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})


def _abort(receive: Receive) -> None:
    """Drop a connection with all that waits to be written to it.

    ASGI has no word for it. Behind `receive` is uvicorn's protocol, and that has the transport; behind another server's,
    nothing happens, and the system's time-outs have to do.
    """
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


async def _dismiss(send: Send, codec: Codec, name: str, problem: ProblemError) -> None:
    """Say goodbye to a browser, which can't read why a handshake fails."""
    goodbye = Answers(name, codec).goodbye(problem.detail, retry=False, after_ms=0).data
    frame = {"text": goodbye.decode()} if codec.is_text else {"bytes": goodbye}
    await send({"type": "websocket.send", **frame})
    code = IDENTITY if problem.status == 401 else RIGHT
    await send({"type": "websocket.close", "code": code, "reason": problem.kind.name})
