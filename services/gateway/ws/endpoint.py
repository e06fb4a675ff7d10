"""`/v1/stream` as an ASGI application: the handshake, and all open streams."""

import asyncio
import functools
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Receive, Scope, Send

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng, secret_bytes
from gantry.runtime.telemetry import logger
from services.gateway.auth.callers import Callers
from services.gateway.auth.principal import Principal
from services.gateway.auth.tickets import Tickets
from services.gateway.errors import STOPPING, ProblemError, problem_of
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.requestids import read_given_id
from services.gateway.views.messageparts import MessageWriter, PropertyCache
from services.gateway.ws import opening
from services.gateway.ws.connection import StreamConnection
from services.gateway.ws.delivery import SharedBytes
from services.gateway.ws.effects import SERVICE_RESTART
from services.gateway.ws.frames import Codec
from services.gateway.ws.inbound import Inbound
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.ports import Consumers, Publisher, TailSource
from services.gateway.ws.producers import StreamProducers
from services.gateway.ws.session import Session

log = logger("gateway.ws")

# 72 random bits, so that receipts cannot be guessed and no two sessions share a nonce. 12 characters.
NONCE_BYTES: Final = 9
# Clients reconnect to another gateway or to this one's successor; a random delay spreads them.
RESTART_AFTER_MS: Final = 1_000


class StreamEndpoint:
    """Opens streams and keeps track of them.

    Concurrency: one event loop.
    """

    def __init__(
        self,
        *,
        callers: Callers,
        tickets: Tickets,
        consumers: Consumers,
        tails: TailSource,
        publisher: Publisher,
        producers: StreamProducers,
        quotas: Limits,
        metrics: GatewayMetrics,
        clock: Clock,
        rng: Rng,
        client_ip: str = "127.0.0.1",
        limits: StreamLimits | None = None,
    ) -> None:
        self._callers = callers
        self._tickets = tickets
        self._consumers = consumers
        self._tails = tails
        self._publisher = publisher
        self._producers = producers
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._client_ip = client_ip
        self._limits = limits or StreamLimits()
        self._quotas = quotas
        self._inbound = Inbound(quotas.body_bytes)
        self._connections: set[StreamConnection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._is_stopping = False
        self._shared = SharedBytes()
        self._writers = {is_text: MessageWriter(binary=not is_text) for is_text in (True, False)}
        self._properties = PropertyCache()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket."""
        event = await receive()
        assert event["type"] == "websocket.connect", event
        name = secret_bytes(8).hex()
        address = opening.address_of(scope)
        try:
            codec = opening.choose_codec(scope)
            authorization, ticket = opening.read_identity(scope)
            principal = None if ticket is not None else await self._callers.authenticate(authorization)
            self._require_running()
            if principal is not None:
                self._admit(principal, address)
        except (ProblemError, InvalidValueError) as error:
            await opening.refuse(scope, receive, send, problem_of(error), _request_id(scope, name))
            return
        if principal is None:
            # A ticket is checked after the stream is accepted, because a browser cannot read why a handshake fails.
            assert ticket is not None, "either key or ticket"
            await send({"type": "websocket.accept", "subprotocol": codec.subprotocol})
            try:
                principal = self._admit_ticket(ticket, address)
            except ProblemError as problem:
                await opening.say_goodbye(send, codec, name, problem)
                return
        try:
            if ticket is None:
                await send({"type": "websocket.accept", "subprotocol": codec.subprotocol})
            await self._serve(scope, receive, send, name=name, codec=codec, principal=principal)
        finally:
            self._quotas.streams.give(principal.key_id)
            self._quotas.address_streams.give(address)

    async def stop(self, *, timeout_ms: int) -> None:
        """Accept no more streams, send goodbye to all and wait until they have ended, at most `timeout_ms`."""
        self._is_stopping = True
        for connection in list(self._connections):
            after_ms = self._rng.jitter_ms(RESTART_AFTER_MS, 0.5)
            connection.close(SERVICE_RESTART, "the gateway restarts", retry=True, after_ms=after_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._all_closed.wait()
        except TimeoutError:
            log.warning("streams did not end in time", count=len(self._connections))

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, *, name: str, codec: Codec, principal: Principal
    ) -> None:
        session = Session(
            name,
            f"{self._client_ip}@{name}",
            nonce=urlsafe_b64encode(secret_bytes(NONCE_BYTES)).rstrip(b"=").decode(),
            codec=codec,
            writer=self._writers[codec.is_text],
            cache=self._properties,
            rights=principal,
            limits=self._limits,
            wall_ms=self._clock.now_ms,
            shared=self._shared,
            may_send=lambda: self._quotas.unsent_bytes.has_room(principal.key_id),
        )
        charge = self._inbound.charge_to(principal.key_id)
        turn = functools.partial(self._quotas.turns.take, principal.key_id)
        receive_in_turn, send_in_turn = opening.in_turn(receive, send, turn)
        connection = StreamConnection(
            session,
            is_text=codec.is_text,
            receive=receive_in_turn,
            send=send_in_turn,
            abort=lambda: opening.abort(scope),
            consumers=self._consumers,
            tails=self._tails,
            publisher=self._publisher,
            producers=self._producers,
            callers=self._callers,
            waiting=self._quotas.waiting_queues,
            unsent=self._quotas.unsent_bytes,
            charge=charge,
            take_send=functools.partial(self._take_send, principal),
            turn=turn,
            reading=opening.start_reading(scope, charge, self._limits),
            taken=lambda: opening.wait_until_taken(scope),
            key_id=principal.key_id,
            credential=principal.credential,
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

    def _require_running(self) -> None:
        if self._is_stopping:
            raise ProblemError(STOPPING, "the gateway is stopping")

    def _admit(self, principal: Principal, address: str) -> None:
        """Reserve a stream for the caller. Raises ProblemError (403, 429, 503)."""
        principal.require_stream()
        with self._place_at(address):
            self._take_stream(principal)

    def _admit_ticket(self, ticket: str, address: str) -> Principal:
        """Reserve a stream for the holder of a ticket; if the address has no room, the ticket is not spent."""
        with self._place_at(address):
            principal = self._tickets.redeem(ticket)
            principal.require_stream()
            self._take_stream(principal)
        return principal

    def _take_stream(self, principal: Principal) -> None:
        self._quotas.key_rates.require_stream(principal)
        self._quotas.streams.take(principal.key_id)

    def _take_send(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """Count a publish for the key, whose limits may have changed since the stream began. Raises ProblemError (429)."""
        current = self._callers.principal_of(principal.credential) or principal
        self._quotas.key_rates.take_send(current, messages, size_bytes)

    @contextmanager
    def _place_at(self, address: str) -> Iterator[None]:
        """Reserve a stream of the address, and release it if the block fails."""
        self._quotas.address_streams.take(address)
        try:
            yield
        except ProblemError:
            self._quotas.address_streams.give(address)
            raise


def _request_id(scope: Scope, name: str) -> str:
    given = next((value for key, value in scope["headers"] if key.lower() == b"x-request-id"), b"")
    return read_given_id(given) or name
