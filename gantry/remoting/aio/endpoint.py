"""The state that the channels of one server or client share: limits, counters, the set of channels and a sweep timer.

One timer serves all requests and connections. With one timer per request, at 50,000 requests a second, starting and
cancelling timers would cost more than the requests. The timer runs only while there are channels. It checks channels
with pending requests at each sweep, and all channels (a server may have thousands) about once a second.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from gantry.model.address import Address
from gantry.remoting.aio.limits import ChannelLimits, Counters
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import Clock
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger

log = logger("remoting")

FULL_SWEEP_MS = 1_000


class SweptChannel(Protocol):
    """The part of a channel that the sweep uses."""

    def expire(self, now_ms: int) -> bool:
        """Fail the requests that have timed out. Return whether other requests still wait."""
        ...

    def sweep(self, now_ms: int) -> None:
        """Close the channel if it is idle, if its TLS handshake is too slow, or if its close takes too long."""
        ...


class Endpoint:
    """The shared state of all channels of one server or client.

    Concurrency: only the thread of the event loop uses an endpoint.
    """

    def __init__(self, name: str, limits: ChannelLimits, clock: Clock) -> None:
        self.name = name
        self.limits = limits
        self.counters = Counters()
        self.channels: set[SweptChannel] = set()
        # Channels of accepted connections before the call of `connection_made`. They already use a descriptor.
        self.arriving: set[SweptChannel] = set()
        # Channels with requests of ours that wait for a response.
        self.awaiting: set[SweptChannel] = set()
        # The size of the incomplete frames of all channels.
        self.buffered_bytes = 0
        self.tasks = TaskSet(f"{name}.request", self._task_failed)
        self.now_ms = clock.monotonic_ms()
        # True after stop() is called: new requests are then refused with code 14.
        self.is_draining = False
        self._clock = clock
        self._sweeper: asyncio.TimerHandle | None = None
        self._full_sweep_at_ms = 0
        self._empty_waiters: list[asyncio.Future[None]] = []

    def add(self, channel: SweptChannel) -> None:
        """Add a channel, and start the sweep timer if it does not run."""
        self.channels.add(channel)
        if self._sweeper is None:
            self.now_ms = self._clock.monotonic_ms()
            self._schedule_sweep()

    def remove(self, channel: SweptChannel) -> None:
        """Remove a channel. Do nothing if the endpoint does not have it."""
        self.channels.discard(channel)
        self.awaiting.discard(channel)
        if not self.channels:
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
            for waiter in self._empty_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._empty_waiters.clear()

    async def wait_until(self, is_so: Callable[[], bool], timeout_ms: int) -> bool:
        """Check a condition at every sweep interval until it is true. Return whether it became true in time."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while not is_so():
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(min(self.limits.sweep_interval_ms, timeout_ms) / 1000)
        return True

    async def wait_empty(self, timeout_ms: int) -> None:
        """Wait until all channels are removed, or until the time-out."""
        if self.channels:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._empty_waiters.append(waiter)
            await asyncio.wait({waiter}, timeout=timeout_ms / 1000)
            waiter.cancel()

    def monotonic_ms(self) -> int:
        """Return the exact time. `now_ms` is the time of the last sweep and costs no call."""
        return self._clock.monotonic_ms()

    def refuse(self, command: RemotingCommand) -> RemotingCommand:
        """Return the response to a refused request: the endpoint is stopping, or too many requests are in flight."""
        if self.is_draining:
            self.counters.refused_stopping += 1
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"{self.name} is stopping"
        else:
            self.counters.refused_in_flight += 1
            code, remark = ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
        return RemotingCommand.response_to(command, code, remark=remark)

    def _schedule_sweep(self) -> None:
        interval_s = self.limits.sweep_interval_ms / 1000
        self._sweeper = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        self.now_ms = self._clock.monotonic_ms()
        self._schedule_sweep()
        for channel in list(self.awaiting):
            if not channel.expire(self.now_ms):
                self.awaiting.discard(channel)
        if self.now_ms >= self._full_sweep_at_ms:
            self._full_sweep_at_ms = self.now_ms + FULL_SWEEP_MS
            for channel in list(self.channels):
                channel.sweep(self.now_ms)

    def _task_failed(self, error: BaseException) -> None:
        self.counters.handler_errors += 1
        log.error("a request's task failed", endpoint=self.name, exc_info=error)


NO_ADDRESS: Final = Address("", 0)


def socket_address(name: Any) -> Address:
    """Return the socket name that a transport reports as an Address, or NOWHERE if it is not an IP address."""
    if not isinstance(name, tuple) or len(name) < 2:
        return NO_ADDRESS
    ip = str(name[0])
    # On a socket that listens on IPv6 too, the address of an IPv4 peer has this prefix.
    return Address(ip[7:] if ip.startswith("::ffff:") and "." in ip else ip, int(name[1]))
