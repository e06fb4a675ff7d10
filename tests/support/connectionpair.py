"""Two channels joined without a socket: each side receives the other's writes in a later turn of the loop.

The transport behaves towards its protocol as a socket's does: it delivers in pieces, keeps bytes that the peer does not
read, pauses and resumes the writer at the same marks, and ends in connection_lost on both sides.
tests/support/channelsuite.py checks this behaviour, on real sockets too.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from gantry.remoting.aio import Channel, ChannelLimits, Handler, RemotingServer
from gantry.remoting.aio.channel import ChannelSettings
from gantry.remoting.aio.endpoint import Endpoint
from gantry.runtime.clock import Clock

HIGH_BYTES = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One end of the wire."""

    def __init__(
        self, protocol: asyncio.Protocol, *, name: tuple[str, int], peer: tuple[str, int], chunk_bytes: int
    ) -> None:
        super().__init__({"sockname": name, "peername": peer})
        self.protocol = protocol
        self.other: MemoryTransport
        self.written_calls = 0
        self._chunk_bytes = chunk_bytes
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._high_bytes, self._low_bytes = HIGH_BYTES, HIGH_BYTES // 4
        self._is_reading = True
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for the peer."""
        if self._is_closing or not data:
            return
        self.written_calls += 1
        self._queue.append(memoryview(bytes(data)))
        self._queued_bytes += len(data)
        if self._queued_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()
        asyncio.get_running_loop().call_soon(self._deliver)

    def pause_reading(self) -> None:
        """Stop receiving; later bytes stay queued at the sender."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Receive again."""
        if not self._is_reading:
            self._is_reading = True
            asyncio.get_running_loop().call_soon(self.other._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high and the low mark."""
        self._high_bytes = HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer has not read."""
        return self._queued_bytes

    def is_closing(self) -> bool:
        """Return whether the transport was closed."""
        return self._is_closing

    def close(self) -> None:
        """Deliver the queued bytes, then end."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def abort(self) -> None:
        """End at once."""
        self._is_closing = True
        self._queue.clear()
        self._queued_bytes = 0
        asyncio.get_running_loop().call_soon(self._lose_connection)

    def _deliver(self) -> None:
        peer = self.other
        while self._queue and peer._is_reading and not peer._is_lost:
            data = self._queue.popleft()
            if len(data) > self._chunk_bytes:
                self._queue.appendleft(data[self._chunk_bytes :])
                data = data[: self._chunk_bytes]
            self._queued_bytes -= len(data)
            if not peer._is_closing:
                peer.protocol.data_received(bytes(data))
        if self._is_paused and self._queued_bytes <= self._low_bytes:
            self._is_paused = False
            self.protocol.resume_writing()
        if self._is_closing and (not self._queue or peer._is_lost):
            self._lose_connection()

    def _lose_connection(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.protocol.connection_lost(None)
        if not self.other._is_closing:
            self.other.protocol.eof_received()
        self.other.close()


def join(
    left: asyncio.Protocol, right: asyncio.Protocol, *, chunk_bytes: int = 256_000
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols; `left` is the dialling side."""
    one = MemoryTransport(left, name=("127.0.0.1", 50000), peer=("127.0.0.1", 10911), chunk_bytes=chunk_bytes)
    two = MemoryTransport(right, name=("127.0.0.1", 10911), peer=("127.0.0.1", 50000), chunk_bytes=chunk_bytes)
    one.other, two.other = two, one
    right.connection_made(two)
    left.connection_made(one)
    return one, two


class ConnectionPair:
    """A server's channel and a dialled one, joined."""

    def __init__(
        self,
        server: RemotingServer,
        clock: Clock,
        *,
        handlers: Mapping[int, Handler] | None = None,
        limits: ChannelLimits | None = None,
        chunk_bytes: int = 256_000,
    ) -> None:
        self.endpoint = Endpoint("client", limits or ChannelLimits(), clock)
        self.client = Channel(ChannelSettings(self.endpoint, handlers or {}), address="127.0.0.1:10911")
        self.server = server.channel()
        self.client_transport, self.server_transport = join(self.client, self.server, chunk_bytes=chunk_bytes)


class RawPeer(asyncio.Protocol):
    """A peer that sends any bytes and keeps the bytes that it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Store the bytes."""
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end of the connection."""
        self.is_lost = True
