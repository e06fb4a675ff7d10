"""HTTP connections without sockets: a transport that keeps the written bytes, and a server that makes connections."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from services.gateway.admission import Admission
from services.gateway.auth.keyring import KeyRing
from services.gateway.httpconnection import GuardedProtocol
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.server import GatewayServer, Sweeper
from services.gateway.settings import GatewaySettings
from services.gateway.streamprotocol import StreamProtocol

Application = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__({"peername": (host, 1), "sockname": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.is_paused = False
        self.is_ended = False
        self.is_aborted = False
        self.unsent_bytes = 0
        self.takes = True
        self.high_bytes = 0
        self.connection: Any = None
        self.protocol: Any = None
        self._is_closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        if not self.takes:
            self.unsent_bytes += len(data)
            if self.unsent_bytes > self.high_bytes:
                self.connection.pause_writing()

    def take_all(self) -> None:
        """Return and clear the bytes written so far."""
        self.unsent_bytes = 0
        self.connection.resume_writing()

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self._is_closed = True

    def abort(self) -> None:
        self.is_aborted = self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = 64 * 1024 if high is None else high

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body, and with the path as a header."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = [(b"path", scope["raw_path"]), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class House:
    """A server without sockets: makes connections, and sweeps them."""

    def __init__(self, app: Application, **settings: Any) -> None:
        self.metrics = GatewayMetrics()
        self.settings = GatewaySettings(**settings)
        self.limits = Limits(self.settings)
        self.keys = KeyRing()
        self.admission = Admission(self.limits, self.metrics, self.keys, self.settings.cors_origins)
        stream = functools.partial(StreamProtocol, admission=self.admission)
        config = uvicorn.Config(app, ws=stream, lifespan="off", log_config=None)  # type: ignore[arg-type]
        config.load()
        config.loaded_app = app
        self.server = GatewayServer(config, self.admission)
        self.sweeper = Sweeper(self.server, self.settings, self.metrics)

    def connect(self, host: str = "127.0.0.1") -> tuple[GuardedProtocol, Wire]:
        state = self.server.server_state
        connection, wire = GuardedProtocol(self.server.config, state, {}, admission=self.admission), Wire(host)
        wire.connection = connection
        connection.connection_made(wire)
        return connection, wire


def connect(app: Application, **settings: Any) -> tuple[GuardedProtocol, Wire]:
    return House(app, **settings).connect()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
