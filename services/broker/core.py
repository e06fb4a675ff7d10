"""The parts that the store calls, and the parts between connections and store. They exist before the store starts."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gantry.model.record import find_properties
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.workers import Worker
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters, Watermark
from services.broker.filter.subscriptions import SubscriptionFilters
from services.broker.longpolling import LongPolling
from services.broker.overload import LoopLag, Overload
from services.broker.registry.persistence import RunInThread
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.turns import Turns


@dataclass(slots=True)
class Runtime:
    """The access of the parts to the outside: time, randomness, the event loop and threads."""

    clock: Clock
    rng: Rng
    loop: asyncio.AbstractEventLoop
    run_in_thread: RunInThread
    readers: Sequence[Worker]
    """Threads that wait for the disk, so that the loop does not."""


class Core:
    """The parts that must exist before the store starts, because the store calls some of them."""

    def __init__(self, settings: BrokerSettings, runtime: Runtime, store: Callable[[], MessageStore]) -> None:
        self.live_settings = LiveSettings(settings)
        self.lag = LoopLag()
        self.overload = Overload(self.live_settings, self.lag)
        self.long_polling = LongPolling(
            runtime.clock.monotonic_ms(), read_properties=lambda at: _read_properties(store(), at)
        )
        self.filters = SubscriptionFilters()
        self.cold = ColdReader(
            lambda operation, *blocks: store().attempt(operation, *blocks),
            lambda: store().files,
            runtime.readers,
            runtime.loop,
        )
        self.turns = Turns()
        waits_for_flush = settings.is_sync_flush
        self._store = store
        self._watermark = Watermark(
            offset=lambda: store().confirm_offset,
            request_flush=(lambda: store().request_flush()) if waits_for_flush else None,
            lags_write=waits_for_flush,
        )
        self.waiters = DurabilityWaiters(
            write_out=lambda: store().write_out(),
            dispatch=lambda everything: _dispatch(store(), everything=everything),
            watermark=self._watermark,
            clock=runtime.clock,
            live_settings=self.live_settings,
            overload=self.overload,
            on_readable=self.long_polling.wake,
            loop=runtime.loop,
        )

    def wait_for_replicas(self, replicated_offset: Callable[[], int]) -> None:
        """Dispatch and acknowledge only records that the replicas have. Replication calls this at the start.

        Args:
            replicated_offset: Function that returns the offset up to which the replicas have the log. The offset must be
                the end of a record. Replication calls `waiters.watermark_moved` whenever the offset grows.
        """
        self._store().wait_for_replicas(replicated_offset)
        self.waiters.follow(replace(self._watermark, lags_write=True))


def _read_properties(store: MessageStore, physical_offset: int) -> bytes | None:
    record = store.record_at(physical_offset)
    return None if record is None else find_properties(record, 0, len(record))


def _dispatch(store: MessageStore, *, everything: bool) -> int | None:
    """Dispatch one round or everything.

    Returns:
        The dispatched offset if another round is needed and possible, else None.
    """
    before = store.dispatched_offset
    store.dispatch(None if everything else 1)
    offset = store.dispatched_offset
    return None if offset in (before, store.confirm_offset) else offset
