"""The HTTP server: uvicorn's life cycle, our connections (httpconnection.py), and the sweep that ends those that dawdle."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

from gantry.runtime.errors import StartupError
from services.gateway.errors import SLOW_REQUEST, ProblemError
from services.gateway.httpconnection import GuardedProtocol
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import REQUEST_BYTES_MAX, GatewaySettings

SWEEP_INTERVAL_S: Final = 1.0
BACKLOG: Final = 2_048

# Frames of 8 MiB and what wraps them; the stream's own limit answers more politely below this one.
WEBSOCKET_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX


class Sweeper:
    """Closes connections that take too long over a head or a body, or that nobody uses.

    Concurrency: one task runs it, on the server's loop.
    """

    def __init__(self, server: uvicorn.Server, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._server = server
        self._head_s = settings.header_timeout_ms / 1_000
        self._body_s = settings.body_timeout_ms / 1_000
        self._idle_s = settings.keep_alive_ms / 1_000
        self._metrics = metrics

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Look at every connection once."""
        for connection in list(self._server.server_state.connections):
            if not isinstance(connection, GuardedProtocol):
                continue
            if connection.head_since is not None and now - connection.head_since > self._head_s:
                self._metrics.refused_connection("slow_head")
                connection.refuse(ProblemError(SLOW_REQUEST, f"head: not there after {self._head_s:g} s"))
            elif connection.body_since is not None and now - connection.body_since > self._body_s:
                self._metrics.refused_connection("slow_body")
                connection.refuse(ProblemError(SLOW_REQUEST, f"body: not whole after {self._body_s:g} s"))
            elif connection.idle_since is not None and now - connection.idle_since > self._idle_s:
                connection.transport.close()


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers: the service's life cycle has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell who waits for it."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def stop(self) -> None:
        """Accept nothing more, and end once what is under way is answered."""
        self.should_exit = True


def make_server(app: Any, settings: GatewaySettings) -> GatewayServer:
    """Return a server for an application; `serve(sockets=[…])` runs it."""
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="websockets-sansio",
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
        limit_concurrency=settings.connections_max,
        backlog=BACKLOG,
    )
    return GatewayServer(config)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening address's socket.

    Raises:
        StartupError: The port is in use, or the address is none of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"listen: {host} is no address of this machine: {error.strerror or error}") from None
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
