"""The client: it keeps one connection to each address. It dials on first use, and again after a connection is lost.

A response of several megabytes delays the responses behind it on the same connection, and a broker processes the
requests of one connection in order. So an owner can declare some requests as bulk requests. These use a second
connection to the same address.
"""

import asyncio
from collections.abc import Callable, Mapping

from gantry.remoting.aio.channel import Channel, ChannelSettings, Handler
from gantry.remoting.aio.endpoint import Endpoint
from gantry.remoting.aio.limits import ClientLimits, Counters
from gantry.remoting.aio.tls import ClientTlsSettings, client_context
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError, RequestTimeoutError
from gantry.runtime.clock import Clock


class RemotingClient:
    """A client that sends requests to addresses `host:port`: any number at once, over one or two connections each.

    Args:
        clock: The clock for time-outs.
        name: The name in log messages.
        limits: The limits, see ClientLimits.
        tls: The TLS settings; None for plain connections.
        handlers: The handlers of requests from brokers, by code. Other codes are answered with code 3.
        on_channel_closed: A callback with the address and the channel of each lost or closed connection, except the
            connections for bulk requests.
        is_bulk: Returns whether a request uses the second connection. None: no second connection is used.

    Concurrency: only the thread of the event loop uses a client.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        name: str = "client",
        limits: ClientLimits | None = None,
        tls: ClientTlsSettings | None = None,
        handlers: Mapping[int, Handler] | None = None,
        on_channel_closed: Callable[[str, Channel], None] | None = None,
        is_bulk: Callable[[RemotingCommand], bool] | None = None,
    ) -> None:
        self._limits = limits or ClientLimits()
        self._endpoint = Endpoint(name, self._limits, clock)
        self._tls = None if tls is None else client_context(tls)
        self._on_channel_closed = on_channel_closed
        self._owner = ChannelSettings(self._endpoint, handlers or {}, on_close=self._channel_closed)
        self._is_bulk = is_bulk
        self._main = _ConnectionPool()
        self._bulk = _ConnectionPool()

    @property
    def counters(self) -> Counters:
        """The counters since the start."""
        return self._endpoint.counters

    def connected(self, address: str) -> Channel | None:
        """Return the open connection to an address, or None."""
        return self._main.connected(address)

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its response, with any response code. The time-out includes the dialling.

        Raises:
            ConnectError: No connection could be opened; the request was not sent.
            ConnectionLostError, RequestTimeoutError: No response came; `sent` says whether the peer may have received
                the request.
            BackpressureError: Too many requests or bytes are waiting; the request was not sent.
            LocalProtocolError: The command does not fit a frame.

        Concurrency: the caller may be cancelled. The request may have been sent then.
        """
        lane = self._bulk if self._is_bulk is not None and self._is_bulk(command) else self._main
        channel = lane.channels.get(address)
        if channel is None or channel.closed:
            started_ms = self._endpoint.monotonic_ms()
            channel = await self._connect(lane, address, timeout_ms)
            timeout_ms -= self._endpoint.monotonic_ms() - started_ms
            if timeout_ms <= 0:
                raise RequestTimeoutError(address, "connecting used up the time-out", sent=False)
        return await channel.start_request(command, timeout_ms)

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Send a request that gets no response. A normal return does not mean that the peer received the request.

        Raises:
            ConnectError: No connection could be opened; the request was not sent.
            BackpressureError: Too many bytes wait to be sent; the request was not sent.
            LocalProtocolError: The command does not fit a frame.
        """
        lane = self._bulk if self._is_bulk is not None and self._is_bulk(command) else self._main
        channel = lane.channels.get(address)
        if channel is None or channel.closed:
            channel = await self._connect(lane, address, timeout_ms)
        channel.send_one_way(command)

    async def connect(self, address: str, *, timeout_ms: int | None = None) -> Channel:
        """Return the connection to an address; dial if there is none. Concurrent callers share one attempt.

        Raises:
            ConnectError: The address is not valid, or the connection was not established in time.

        Concurrency: if one caller is cancelled, the attempt continues for the other callers.
        """
        return await self._connect(self._main, address, timeout_ms)

    async def close(self) -> None:
        """Close all connections. Pending requests fail. The client can't be used afterwards.

        If this is cancelled, the connections that are still open are aborted.
        """
        self._endpoint.is_draining = True
        reason = "the client is closed"
        try:
            await self._endpoint.tasks.cancel()
            for channel in self._open_channels():
                channel.close(reason)
            await self._endpoint.wait_empty(self._limits.linger_ms)
            reason = "the peer did not close the connection in time"
        finally:
            for channel in self._open_channels():
                channel.abort(reason)
        await self._endpoint.wait_empty(self._limits.linger_ms)

    def _open_channels(self) -> list[Channel]:
        return [*self._main.channels.values(), *self._bulk.channels.values()]

    async def _connect(self, lane: "_ConnectionPool", address: str, timeout_ms: int | None) -> Channel:
        channel = lane.connected(address)
        if channel is not None:
            return channel
        if self._endpoint.is_draining:
            raise ConnectError(address, "the client is closed")
        task = lane.dialling.get(address)
        if task is None:
            task = lane.dialling[address] = self._endpoint.tasks.spawn(self._dial(lane, address))
        timeout_ms = self._limits.connect_timeout_ms if timeout_ms is None else timeout_ms
        await asyncio.wait({task}, timeout=timeout_ms / 1000)
        if not task.done():
            raise ConnectError(address, f"no connection within {timeout_ms} ms")
        if task.cancelled():
            raise ConnectError(address, "the client is closed")
        result = task.result()
        if isinstance(result, ConnectError):
            # Raise a new error for each caller: a shared error would collect the tracebacks of all callers.
            raise ConnectError(result.address, result.reason)
        return result

    async def _dial(self, lane: "_ConnectionPool", address: str) -> Channel | ConnectError:
        try:
            host, port = _host_and_port(address)
            timeout_s = self._limits.connect_timeout_ms / 1000
            async with asyncio.timeout(timeout_s):
                _, channel = await asyncio.get_running_loop().create_connection(
                    lambda: Channel(self._owner, address=address), host, port, ssl=self._tls
                )
        except TimeoutError:
            return ConnectError(address, f"no connection within {self._limits.connect_timeout_ms} ms")
        except (OSError, ValueError) as error:
            return ConnectError(address, str(error))
        else:
            lane.channels[address] = channel
            return channel
        finally:
            del lane.dialling[address]

    def _channel_closed(self, channel: Channel) -> None:
        if self._bulk.forget(channel):
            return
        self._main.forget(channel)
        if self._on_channel_closed is not None:
            self._on_channel_closed(channel.address, channel)


class _ConnectionPool:
    """The open connections and the dialling attempts, both by address."""

    __slots__ = ("channels", "dialling")

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.dialling: dict[str, asyncio.Task[Channel | ConnectError]] = {}

    def connected(self, address: str) -> Channel | None:
        channel = self.channels.get(address)
        return None if channel is None or channel.closed else channel

    def forget(self, channel: Channel) -> bool:
        """Remove a closed channel. Return whether it was one of these connections."""
        if self.channels.get(channel.address) is not channel:
            return False
        del self.channels[channel.address]
        return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("the address is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
