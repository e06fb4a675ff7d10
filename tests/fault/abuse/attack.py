"""A running attack: the gateway's address, connections from the attacker's own address, and counts of the answers."""

import asyncio
import base64
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import websockets.asyncio.client as websockets

ADDRESS: Final = "127.0.0.2"
MIB: Final = 1024 * 1024
TOPIC: Final = "ABUSED"
GROUP: Final = "ABUSER"


@dataclass(frozen=True)
class Target:
    """The gateway's address, and the attacker's key, which may send to and consume only `TOPIC`."""

    host: str
    port: int
    key: str
    broker: str
    offset_end: int

    @property
    def authorization(self) -> bytes:
        return b"Authorization: Bearer %b\r\n" % self.key.encode()

    def head(self, line: str, *headers: str, keyed: bool = True) -> bytes:
        """Return the head of a request."""
        lines = "".join(f"{header}\r\n" for header in headers)
        return (
            f"{line} HTTP/1.1\r\nHost: gateway\r\n".encode()
            + (self.authorization if keyed else b"")
            + lines.encode()
            + b"\r\n"
        )

    def stream_head(self, *, keyed: bool) -> bytes:
        """Return the head of a stream's handshake, with the key or with a wrong ticket."""
        return self.head(
            "GET /v1/stream" if keyed else "GET /v1/stream?ticket=x",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: gantry.v1.json",
            "Sec-WebSocket-Key: " + base64.b64encode(bytes(16)).decode(),
            keyed=keyed,
        )


BEGUN_S_MAX: Final = 20.0


class NotConnectedError(Exception):
    """The gateway refused a connection; the attack counts it."""


@dataclass
class Attack:
    """A running attack.

    Attributes:
        answers: Number of answers by status; "closed" if the gateway closed the connection without one.
        begun: Set once all simultaneous actions have begun.
    """

    target: Target
    answers: Counter[str] = field(default_factory=Counter)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection. Later failures of it are counted and do not raise.

        Raises:
            NotConnectedError: The gateway refused the connection.
        """
        try:
            reader, writer = await asyncio.open_connection(
                self.target.host, self.target.port, local_addr=(ADDRESS, 0), limit=64 * 1024
            )
        except OSError as error:
            self.answers[f"connect: {error.strerror}"] += 1
            await asyncio.sleep(0.5)
            raise NotConnectedError from None
        self.answers["connections"] += 1
        try:
            yield reader, writer
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            self.answers["closed"] += 1
        finally:
            writer.transport.abort()

    async def answer(self, reader: asyncio.StreamReader) -> int:
        """Read an answer and return its status."""
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        self.answers[str(status)] += 1
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))
        return status

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[websockets.ClientConnection]:
        """Open a stream. Raises OSError, WebSocketException or TimeoutError."""
        stream = await websockets.connect(
            f"ws://{self.target.host}:{self.target.port}/v1/stream",
            additional_headers={"Authorization": f"Bearer {self.target.key}"},
            subprotocols=["gantry.v1.json"],  # type: ignore[list-item]
            local_addr=(ADDRESS, 0),
            max_size=None,
            open_timeout=10,
        )
        self.answers["streams"] += 1
        try:
            yield stream
        finally:
            stream.transport.abort()

    async def repeat(self, request: Callable[[], bytes], *, pause_s: float = 0.0) -> None:
        """Send a request again and again, on one connection as long as it stays open."""
        while True:
            with contextlib.suppress(NotConnectedError):
                async with self.connection() as (reader, writer):
                    while True:
                        writer.write(request())
                        await writer.drain()
                        status = await self.answer(reader)
                        self.begun.set()
                        await asyncio.sleep(max(pause_s, 0.5 if status in (429, 503) else 0.0))
            self.begun.set()  # Because of other attacks from this address, the gateway may refuse all connections.
            await asyncio.sleep(0.1)

    async def many(self, count: int, one: Callable[[], Awaitable[None]], *, a_second: int = 2_000) -> None:
        """Run an action `count` times in parallel and repeat each run that ends, about `a_second` times a second."""

        async def always() -> None:
            while True:
                with contextlib.suppress(NotConnectedError):
                    await one()
                await asyncio.sleep(max(0.2, count / a_second))

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(always())
                if number % 50 == 49:
                    await asyncio.sleep(50 / a_second)
            self.begun.set()

    async def send_and_hold(self, *pieces: bytes, reads: bool = True) -> None:
        """Send bytes, then stay silent until the gateway closes the connection."""
        async with self.connection() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if reads:
                await self.answer(reader)
                await reader.read(1)
                return
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(600)


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a WebSocket frame; its mask is zeros, so the payload is not changed by masking."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return bytes([opcode | (0x80 if fin else 0)]) + length + bytes(4) + payload


def message(target: Target, size: int, *, queue: int | None) -> bytes:
    """Return the request of a send whose text becomes longer as JSON and as MessagePack."""
    place = "" if queue is None else f', "queue": {{"broker": "{target.broker}", "id": {queue}}}'
    body = b'{"body": "' + b"\\u0001" * (size // 6) + b'"' + place.encode() + b"}"
    head = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return target.head(f"POST /v1/topics/{TOPIC}/messages", *head) + body
