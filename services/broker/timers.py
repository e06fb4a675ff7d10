"""The periodic work of a broker. Each timer is a named task of the service."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime

from services.broker import longpolling, overload
from services.broker.assembly import Broker
from services.broker.seams import Timer
from services.broker.stats import SAMPLE_TICK_MS

MAINTAIN_INTERVAL_MS = 100
EXPIRY_INTERVAL_MS = 10_000
RATES_INTERVAL_MS = 1_000

# The day begins at local midnight, as in RocketMQ. The timer of the rates checks it.
_DAY = "%Y-%m-%d"


def timers(broker: Broker) -> Iterator[Timer]:
    """Yield name, interval in ms and work of each timer."""
    core = broker.core

    def tick() -> None:
        now_ms = broker.clock.monotonic_ms()
        core.lag.tick(now_ms)
        core.long_polling.sweep(now_ms)
        core.waiters.sweep()

    def maintain() -> None:
        broker.store.maintain()
        # Records for which no send waits (one-way, WAIT=false) become readable here, if not before.
        core.waiters.make_readable()

    day = _day(broker.clock.now_ms())

    def rates() -> None:
        nonlocal day
        broker.runtime_info.sample()
        today = _day(broker.clock.now_ms())
        if today != day:
            day = today
            broker.runtime_info.midnight()

    assert longpolling.SWEEP_INTERVAL_MS == overload.TICK_INTERVAL_MS, "one timer serves both"
    yield "tick", overload.TICK_INTERVAL_MS, tick
    yield "maintain", MAINTAIN_INTERVAL_MS, maintain
    yield "rates", RATES_INTERVAL_MS, rates
    yield "statistics", SAMPLE_TICK_MS, lambda: broker.stats.tick(broker.clock.monotonic_ms(), broker.clock.now_ms())
    yield "client-expiry", EXPIRY_INTERVAL_MS, broker.expire_clients
    yield from broker.timers
    yield "offsets", broker.settings.flush_consumer_offset_interval, broker.save_offsets


async def every(interval_ms: int, work: Callable[[], Awaitable[None] | None]) -> None:
    """Do the work at this interval until the task is cancelled. A late run does not cause an extra one.

    The runs are at multiples of the interval, so that the process wakes up once for all timers of a multiple.
    """
    time, interval_s = asyncio.get_running_loop().time, interval_ms / 1000
    while True:
        wait_s = interval_s - time() % interval_s
        # A sleep may end a moment early, just before the multiple for which this run is.
        await asyncio.sleep(wait_s if wait_s > interval_s / 2 else wait_s + interval_s)
        ended = work()
        if ended is not None:
            await ended


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000).astimezone().strftime(_DAY)
