"""The server: it accepts connections within its limits, passes requests to handlers, and drains when it stops."""

import asyncio
import socket
from collections.abc import Callable, Mapping

from gantry.model.address import Address
from gantry.remoting.aio.channel import Channel, ChannelSettings, Handler
from gantry.remoting.aio.endpoint import Endpoint
from gantry.remoting.aio.limits import Counters, ServerLimits
from gantry.remoting.aio.listener import Listener, bind
from gantry.remoting.aio.tls import TlsMode, TlsSettings, server_context
from gantry.remoting.headers.fields import Header
from gantry.remoting.typedrequest import request_decoders
from gantry.runtime.clock import Clock
from gantry.runtime.errors import StartupError
from gantry.runtime.telemetry import logger

log = logger("remoting")

_LOG_INTERVAL_MS = 60_000


class RemotingServer:
    """A server that serves one or more addresses with the same handlers.

    Args:
        name: The name in refusals and log messages.
        handlers: The handlers by request code. The server calls a plain function as soon as it has read the request,
            and sends the returned reply. The function may return None and reply later with `channel.reply`. The
            server runs a coroutine function in a task.
        headers: The header types of frequent request codes. The server decodes most of these requests in one step:
            `header` is set and `ext_fields` is empty (see typedrequest).
        fallback: The handler of all other codes. Without it they are answered with code 3.
        limits: The limits, see ServerLimits.
        tls: The TLS settings; None for plain connections only.
        clock: The clock for time-outs.
        on_connect: A callback with each accepted channel.
        on_close: A callback with each channel that `on_connect` got, once, after its connection is closed.
        on_bug: A callback with the AssertionError of a handler, so that the owner can end the process. The request is
            answered with code 1.

    Concurrency: only the thread of the event loop uses a server.
    """

    def __init__(
        self,
        *,
        name: str,
        handlers: Mapping[int, Handler],
        clock: Clock,
        headers: Mapping[int, type[Header]] | None = None,
        fallback: Handler | None = None,
        limits: ServerLimits | None = None,
        tls: TlsSettings | None = None,
        on_connect: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        on_bug: Callable[[AssertionError], None] | None = None,
    ) -> None:
        self._limits = limits or ServerLimits()
        self._endpoint = Endpoint(name, self._limits, clock)
        self._tls = tls
        self._owner = ChannelSettings(
            self._endpoint,
            handlers,
            fallback=fallback,
            on_connect=on_connect,
            on_close=on_close,
            on_bug=on_bug,
            is_server=True,
            connections_max=self._limits.connections_max,
            tls=None if tls is None or tls.mode is TlsMode.DISABLED else server_context(tls),
            tls_mode=TlsMode.DISABLED if tls is None else tls.mode,
            typed=request_decoders(headers or {}),
        )
        self._listeners: list[Listener] = []
        self._logged_at_ms: int | None = None

    @property
    def counters(self) -> Counters:
        """The counters since the start."""
        return self._endpoint.counters

    @property
    def channels(self) -> list[Channel]:
        """The open connections."""
        return [channel for channel in self._endpoint.channels if isinstance(channel, Channel)]

    async def start(self, host: str, port: int) -> Address:
        """Listen on an address and return the bound address, which has the real port if `port` is 0.

        May be called several times with different addresses.

        Raises:
            StartupError: The address can't be bound. The message gives the reason.
        """
        try:
            sockets = await bind(host, port, self._limits.backlog_max)
        except OSError as error:
            raise StartupError(
                f"{self._endpoint.name} can't listen on {host}:{port}: {(error.strerror or str(error)).lower()}; "
                "stop what uses the address or choose another one"
            ) from None
        name = sockets[0].getsockname()
        self._listeners += [Listener(each, self._accepted) for each in sockets]
        return Address(str(name[0]), int(name[1]))

    def _accepted(self, accepted: socket.socket) -> None:
        """Create a channel for a connection, or close the connection at once if the limit is reached."""
        if not self._owner.admit():
            accepted.close()
            self.counters.connections_refused += 1
            self._log_refused()
            return
        channel = self.channel()
        self._endpoint.arriving.add(channel)
        task = self._endpoint.tasks.spawn(_connect(channel, accepted))

        def ended(task: asyncio.Task[None]) -> None:
            self._endpoint.arriving.discard(channel)
            if task.cancelled():
                accepted.close()

        task.add_done_callback(ended)

    def _log_refused(self) -> None:
        now_ms = self._endpoint.monotonic_ms()
        if self._logged_at_ms is None or now_ms - self._logged_at_ms >= _LOG_INTERVAL_MS:
            self._logged_at_ms = now_ms
            log.warning(
                "too many connections: new ones are closed",
                endpoint=self._endpoint.name,
                connections_max=self._limits.connections_max,
                refused_so_far=self.counters.connections_refused,
            )

    def channel(self) -> Channel:
        """Return a channel for a new connection. Tests without a socket call it too."""
        return Channel(self._owner)

    def reload_tls(self) -> None:
        """Read the certificate files again. Open connections keep their certificates.

        Raises:
            StartupError: A file is missing or invalid. The server continues with the old certificates.
        """
        if self._tls is not None and self._tls.mode is not TlsMode.DISABLED:
            self._owner.tls = server_context(self._tls)

    async def stop(self, *, drain_ms: int = 3_000) -> None:
        """Stop accepting, refuse new requests with code 14, wait for requests in flight, then close all connections.

        The owner should first answer requests that are held for long (long polls). Otherwise they use all of
        `drain_ms`.
        """
        self._endpoint.is_draining = True
        for listener in self._listeners:
            listener.close()
        await self._endpoint.wait_until(lambda: not any(channel.in_flight_count for channel in self.channels), drain_ms)
        await self._endpoint.tasks.cancel()
        for channel in self.channels:
            channel.close(f"{self._endpoint.name} is stopping")
        await self._endpoint.wait_empty(self._limits.linger_ms)
        for channel in self.channels:
            channel.abort("the peer did not close the connection in time")
        await self._endpoint.wait_empty(self._limits.linger_ms)
        self._listeners.clear()


async def _connect(channel: Channel, accepted: socket.socket) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, accepted)
    except OSError:
        accepted.close()  # The peer has closed the connection.
