"""The HTTP server: uvicorn's life cycle, our connections (httpconnection.py), and the sweeper that ends slow ones."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

from gantry.runtime.descriptors import PROCESS_DESCRIPTORS, share_descriptors
from gantry.runtime.environment import raise_descriptor_limit
from gantry.runtime.errors import StartupError
from gantry.runtime.telemetry import logger
from services.gateway.admission import TURNED_AWAY_MAX, Admission
from services.gateway.auth.keyring import KeyRing
from services.gateway.errors import SLOW_REQUEST, ProblemError
from services.gateway.httpconnection import GuardedProtocol
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import REQUEST_BYTES_MAX, GatewaySettings
from services.gateway.streamprotocol import StreamProtocol

log = logger("gateway")

UPSTREAM_DESCRIPTORS: Final = 128
"""File descriptors for connections to brokers, name servers and Postgres."""
SWEEP_INTERVAL_S: Final = 1.0
# After the last answer, the gateway waits at most this long between two reads for the caller to close the connection.
LINGER_S: Final = 2.0
BACKLOG: Final = 2_048
# In each turn of the event loop, uvloop accepts one connection from each listening socket. With a single socket, a
# client that connects a thousand times a second would fill the backlog of a busy gateway, and other clients would wait
# for seconds.
ACCEPTED_AT_ONCE: Final = 16

# Frames of 8 MiB and their envelope. The stream has a lower limit of its own, with a clearer answer.
WEBSOCKET_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX


class Sweeper:
    """Closes connections that are idle, or that take too long for a head, a body, a handshake or an answer.

    Concurrency: one task runs it, on the server's loop.
    """

    def __init__(self, server: "GatewayServer", settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._server = server
        self._head_s = settings.header_timeout_ms / 1_000
        self._body_s = settings.body_timeout_ms / 1_000
        self._write_s = settings.write_timeout_ms / 1_000
        self._idle_s = settings.keep_alive_ms / 1_000
        self._metrics = metrics
        # Connections with unsent bytes → number of these bytes at the last sweep, and time of the caller's last read.
        self._unsent: dict[GuardedProtocol, tuple[int, float]] = {}

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Check every connection once."""
        self._server.admission.forget_spares(now)
        unsent_before, self._unsent = self._unsent, {}
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, GuardedProtocol):
                unsent_bytes = connection.transport.get_write_buffer_size()
                if unsent_bytes and self._is_stalled(connection, unsent_bytes, unsent_before.get(connection), now):
                    self._metrics.refused_connection("slow_reader")
                    connection.transport.abort()
                else:
                    self._sweep_http(connection, now)
            elif isinstance(connection, StreamProtocol):
                self._sweep_handshake(connection, now)

    def _is_stalled(
        self, connection: GuardedProtocol, unsent_bytes: int, before: tuple[int, float] | None, now: float
    ) -> bool:
        since = now if before is None or unsent_bytes < before[0] else before[1]
        self._unsent[connection] = (unsent_bytes, since)
        return now - since > self._write_s

    def _sweep_http(self, connection: GuardedProtocol, now: float) -> None:
        if connection.linger_since is not None:
            if now - connection.heard_at > LINGER_S or now - connection.linger_since > self._body_s:
                connection.transport.close()
        elif connection.flow.read_paused:
            pass  # The gateway does not read at the moment, so the caller is not late.
        elif connection.head_since is not None and now - connection.head_since > self._head_s:
            connection.refuse(ProblemError(SLOW_REQUEST, f"head: not complete after {self._head_s:g} s"), "slow_head")
        elif connection.body_since is not None and now - connection.body_since > self._body_s:
            connection.refuse(ProblemError(SLOW_REQUEST, f"body: not complete after {self._body_s:g} s"), "slow_body")
        elif connection.idle_since is not None and now - connection.idle_since > self._idle_s:
            connection.transport.close()

    def _sweep_handshake(self, stream: StreamProtocol, now: float) -> None:
        if not stream.is_answered and now - stream.handed_over_at > self._head_s:
            self._metrics.refused_connection("slow_handshake")
            stream.give_up(ProblemError(SLOW_REQUEST, f"handshake: not answered after {self._head_s:g} s"))


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers: the service's life cycle has its own."""

    def __init__(self, config: uvicorn.Config, admission: Admission) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self.admission = admission

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and set `is_up`."""
        assert sockets is not None, "the gateway binds its socket itself"
        await super().startup([copy for each in sockets for copy in _copies(each)])
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def drain(self) -> None:
        """Continue to serve, but close each connection after its next answer."""
        self.admission.is_draining = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedProtocol):
                connection.drain()

    def stop(self) -> None:
        """Stop accepting connections, and end after the requests in flight are answered."""
        self.should_exit = True


def _copies(listener: socket.socket) -> list[socket.socket]:
    """Return a listening socket and its duplicates, one for each connection accepted in a turn of the event loop."""
    return [listener, *(listener.dup() for _ in range(ACCEPTED_AT_ONCE - 1))]


def make_server(
    app: Any, settings: GatewaySettings, limits: Limits, metrics: GatewayMetrics, keys: KeyRing
) -> GatewayServer:
    """Return a server for an application; `serve(sockets=[…])` runs it."""
    admission = Admission(limits, metrics, keys, settings.cors_origins)
    config = uvicorn.Config(
        app,
        http=functools.partial(GuardedProtocol, admission=admission),  # type: ignore[arg-type]
        ws=functools.partial(StreamProtocol, admission=admission),  # type: ignore[arg-type]
        ws_max_size=WEBSOCKET_BYTES_MAX,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, settings.stop_timeout_ms // 1_000),
        backlog=BACKLOG,
    )
    return GatewayServer(config, admission)


def allowed_connections(settings: GatewaySettings) -> int:
    """Return the number of connections that the settings and the descriptors of this process allow.

    Raises:
        StartupError: There are too few descriptors.
    """
    shares = share_descriptors(
        raise_descriptor_limit(),
        process=PROCESS_DESCRIPTORS + UPSTREAM_DESCRIPTORS + TURNED_AWAY_MAX,
        connections_max=settings.connections_max,
    )
    log.info("file descriptors", **shares._asdict())
    return shares.connections


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        StartupError: The port is in use, or this machine does not have the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"listen: {host} is not an address of this machine: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"listen: can't bind {host}:{port}: {error.strerror or error}; choose another port with --listen"
        ) from None
    return listener
