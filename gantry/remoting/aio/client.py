"""The client: a connection to each address, dialled when first needed and again when it was lost.

Answers of megabytes would hold up those of small requests behind them on the same connection, and a broker works off what
comes on a connection in one go. So an owner can say which requests are bulk; those have a second connection of their own.
"""

import asyncio
from collections.abc import Callable, Mapping

from gantry.remoting.aio.channel import Channel, ChannelOwner, Handler
from gantry.remoting.aio.endpoint import Endpoint
from gantry.remoting.aio.limits import ClientLimits, Counters
from gantry.remoting.aio.tls import ClientTlsSettings, client_context
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError, RequestTimeoutError
from gantry.runtime.clock import Clock


class RemotingClient:
    """Sends requests to addresses `host:port`, any number at once over one connection each, or two.

    Args:
        clock: For time-outs.
        name: Shown in logs.
        limits: See ClientLimits.
        tls: None: plain.
        handlers: For requests that brokers make of us, by code; others are answered with code 3.
        on_channel_closed: Called with the address and the channel of each connection that went away, but for those of
            bulk requests.
        is_bulk: Says which requests go over the second connection. None: there is none.

    Concurrency: used from the event loop's thread only.
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
        self._owner = ChannelOwner(self._endpoint, handlers or {}, on_close=self._channel_closed)
        self._is_bulk = is_bulk
        self._main = _Lane()
        self._bulk = _Lane()

    @property
    def counters(self) -> Counters:
        """What happened since the start."""
        return self._endpoint.counters

    def connected(self, address: str) -> Channel | None:
        """Return the open connection to an address, if there is one."""
        return self._main.connected(address)

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its answer, whatever its code. Dialling counts against the time-out.

        Raises:
            ConnectError: No connection; nothing was sent.
            ConnectionLostError, RequestTimeoutError: No answer; `sent` says whether the peer may have seen it.
            BackpressureError: Too much is under way; nothing was sent.
            LocalProtocolError: The command does not fit a frame.

        Concurrency: may be cancelled; the request may have been sent then.
        """
        lane = self._bulk if self._is_bulk is not None and self._is_bulk(command) else self._main
        channel = lane.channels.get(address)
        if channel is None or channel.closed:
            started_ms = self._endpoint.monotonic_ms()
            channel = await self._connect(lane, address, timeout_ms)
            timeout_ms -= self._endpoint.monotonic_ms() - started_ms
            if timeout_ms <= 0:
                raise RequestTimeoutError(address, "connecting took all the time there was", sent=False)
        return await channel.start_request(command, timeout_ms)

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Send a request that gets no answer. A return means that it is on its way, not that it arrived.

        Raises:
            ConnectError: No connection; nothing was sent.
            BackpressureError: Too many bytes wait to be sent already; nothing was sent.
            LocalProtocolError: The command does not fit a frame.
        """
        lane = self._bulk if self._is_bulk is not None and self._is_bulk(command) else self._main
        channel = lane.channels.get(address)
        if channel is None or channel.closed:
            channel = await self._connect(lane, address, timeout_ms)
        channel.send_one_way(command)

    async def connect(self, address: str, *, timeout_ms: int | None = None) -> Channel:
        """Return the connection to an address, dialled if need be; callers at the same time share one attempt.

        Raises:
            ConnectError: The address is none, or nobody answers there in time.

        Concurrency: a caller that is cancelled leaves the attempt to the others.
        """
        return await self._connect(self._main, address, timeout_ms)

    async def close(self) -> None:
        """Close all connections; requests that wait fail. The client can't be used any more."""
        self._endpoint.is_draining = True
        await self._endpoint.tasks.cancel()
        for channel in self._open_channels():
            channel.close("the client is closed")
        await self._endpoint.wait_empty(self._limits.linger_ms)
        for channel in self._open_channels():
            channel.abort("did not go")
        await self._endpoint.wait_empty(self._limits.linger_ms)

    # Inside

    def _open_channels(self) -> list[Channel]:
        return [*self._main.channels.values(), *self._bulk.channels.values()]

    async def _connect(self, lane: "_Lane", address: str, timeout_ms: int | None) -> Channel:
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
            # Each caller gets an error of its own: a shared one would collect all their tracebacks.
            raise ConnectError(result.address, result.reason)
        return result

    async def _dial(self, lane: "_Lane", address: str) -> Channel | ConnectError:
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


class _Lane:
    """Connections by address, and those that are being dialled."""

    __slots__ = ("channels", "dialling")

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.dialling: dict[str, asyncio.Task[Channel | ConnectError]] = {}

    def connected(self, address: str) -> Channel | None:
        channel = self.channels.get(address)
        return None if channel is None or channel.closed else channel

    def forget(self, channel: Channel) -> bool:
        """Say whether it was one of these."""
        if self.channels.get(channel.address) is not channel:
            return False
        del self.channels[channel.address]
        return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("the address is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
