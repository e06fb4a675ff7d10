"""What the channels of one server or client share: limits, counters, the table of channels and the one sweep timer.

One timer for all requests and connections, rather than one each: at 50,000 requests a second setting and cancelling
timers costs more than the requests. It runs only while there are channels. Channels with requests of ours are looked
at every time, all of them, of which a server may have thousands, about once a second.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from gantry.model.address import Address
from gantry.remoting.aio.limits import ChannelLimits, Counters
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import Clock
from gantry.runtime.tasks import TaskBag
from gantry.runtime.telemetry import logger

log = logger("remoting")

FULL_SWEEP_MS = 1_000


class SweptChannel(Protocol):
    """What the sweep needs of a channel."""

    def expire(self, now_ms: int) -> bool:
        """Fail the requests whose time is up; say whether others still wait."""
        ...

    def sweep(self, now_ms: int) -> None:
        """Close the channel if it has been idle for too long, or is closed and does not go."""
        ...


class Endpoint:
    """Shared by all channels of a server or client.

    Concurrency: used from the event loop's thread only.
    """

    def __init__(self, name: str, limits: ChannelLimits, clock: Clock) -> None:
        self.name = name
        self.limits = limits
        self.counters = Counters()
        self.channels: set[SweptChannel] = set()
        # Accepted connections whose channels are not told yet. They have their descriptors already.
        self.arriving: set[SweptChannel] = set()
        # Those with requests of ours that wait for an answer.
        self.awaiting: set[SweptChannel] = set()
        # Of unfinished frames, over all channels.
        self.buffered_bytes = 0
        self.tasks = TaskBag(f"{name}.request", self._task_failed)
        self.now_ms = clock.monotonic_ms()
        # True from stop() on: requests are answered that we are going away.
        self.is_draining = False
        self._clock = clock
        self._sweeper: asyncio.TimerHandle | None = None
        self._full_sweep_at_ms = 0
        self._empty_waiters: list[asyncio.Future[None]] = []

    def add(self, channel: SweptChannel) -> None:
        """Own a channel from now on."""
        self.channels.add(channel)
        if self._sweeper is None:
            self.now_ms = self._clock.monotonic_ms()
            self._schedule_sweep()

    def remove(self, channel: SweptChannel) -> None:
        """Forget a channel; nothing happens if it is not owned."""
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
        """Wait until the condition holds, looking at every sweep interval; say whether it came to hold in time."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while not is_so():
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(min(self.limits.sweep_interval_ms, timeout_ms) / 1000)
        return True

    async def wait_empty(self, timeout_ms: int) -> None:
        """Wait until all channels are gone, or the time is up."""
        if self.channels:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._empty_waiters.append(waiter)
            await asyncio.wait({waiter}, timeout=timeout_ms / 1000)
            waiter.cancel()

    def monotonic_ms(self) -> int:
        """Return the exact time; `now_ms` is that of the last sweep and free."""
        return self._clock.monotonic_ms()

    def refuse(self, command: RemotingCommand) -> RemotingCommand:
        """Return the answer to a request that is not taken: the endpoint stops, or too many are in flight."""
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


NOWHERE: Final = Address("", 0)


def socket_address(name: Any) -> Address:
    """Return what a transport calls its own or its peer's name as an address; NOWHERE for what is none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return NOWHERE
    ip = str(name[0])
    # An IPv4 peer on a socket that listens on IPv6 too.
    return Address(ip[7:] if ip.startswith("::ffff:") and "." in ip else ip, int(name[1]))
