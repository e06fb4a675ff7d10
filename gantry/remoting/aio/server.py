"""The server: listens, accepts within its limits, gives requests to handlers, drains when it stops."""

import asyncio
import socket
from collections.abc import Callable, Mapping

from gantry.model.address import Address
from gantry.remoting.aio.channel import Channel, ChannelOwner, Handler
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

_TOLD_EVERY_MS = 60_000


class RemotingServer:
    """Serves one or more addresses with the same handlers.

    Args:
        name: Shown in refusals and logs.
        handlers: By request code. A plain function is called as soon as its request is read, and what it returns
            is sent; it may return None and answer later with `channel.reply`. A coroutine function gets a task.
        headers: Codes that come often, with the type of their headers: such requests come with `header` set where
            that was possible, and with empty ext fields then (see typedrequest).
        fallback: For codes without a handler; without it they are answered with code 3.
        limits: See ServerLimits.
        tls: None: plain only.
        clock: For time-outs.
        on_connect: Called with each accepted channel.
        on_close: Called once with each channel that `on_connect` saw, when it is gone.
        on_bug: Called with an AssertionError of a handler, so that the owner can end the process; the request is
            answered with code 1.

    Concurrency: used from the event loop's thread only.
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
        self._owner = ChannelOwner(
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
        self._told_at_ms: int | None = None

    @property
    def counters(self) -> Counters:
        """What happened since the start."""
        return self._endpoint.counters

    @property
    def channels(self) -> list[Channel]:
        """The open connections."""
        return [channel for channel in self._endpoint.channels if isinstance(channel, Channel)]

    async def start(self, host: str, port: int) -> Address:
        """Listen; return the address that was bound, which matters for port 0. May be called for several addresses.

        Raises:
            StartupError: The address can't be bound; says why.
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
        """Take a connection over, or close it at once if there are enough."""
        if not self._owner.admit():
            accepted.close()
            self.counters.connections_refused += 1
            self._tell_refused()
            return
        channel = self.channel()
        self._endpoint.arriving.add(channel)
        task = self._endpoint.tasks.spawn(_connect(channel, accepted))

        def ended(task: asyncio.Task[None]) -> None:
            self._endpoint.arriving.discard(channel)
            if task.cancelled():
                accepted.close()

        task.add_done_callback(ended)

    def _tell_refused(self) -> None:
        now_ms = self._endpoint.monotonic_ms()
        if self._told_at_ms is None or now_ms - self._told_at_ms >= _TOLD_EVERY_MS:
            self._told_at_ms = now_ms
            log.warning(
                "too many connections: new ones are closed",
                endpoint=self._endpoint.name,
                connections_max=self._limits.connections_max,
                refused_so_far=self.counters.connections_refused,
            )

    def channel(self) -> Channel:
        """Return the protocol of one more connection; for the event loop and for tests without a socket."""
        return Channel(self._owner)

    def reload_tls(self) -> None:
        """Read the certificate files again; connections that are open keep what they have.

        Raises:
            StartupError: A file is missing or wrong; the old ones stay in force.
        """
        if self._tls is not None and self._tls.mode is not TlsMode.DISABLED:
            self._owner.tls = server_context(self._tls)

    async def stop(self, *, drain_ms: int = 3_000) -> None:
        """Stop: accept no more, refuse new requests with code 14, wait for those in flight, close.

        Requests held for long (long polls) should be answered by their owner first, or they take all of `drain_ms`.
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
            channel.abort("did not go")
        await self._endpoint.wait_empty(self._limits.linger_ms)
        self._listeners.clear()


async def _connect(channel: Channel, accepted: socket.socket) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, accepted)
    except OSError:
        accepted.close()  # The peer is gone already.
