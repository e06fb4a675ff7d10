"""Writes op messages: one for many half messages.

A batch is written when it has `transactionOpMsgMaxSize` bytes, when its first offset has waited for
`transactionOpBatchInterval`, or at once if somebody waits for it. Until it is durable, its offsets are pending: the
check leaves these half messages alone, and its progress does not pass them. If an append fails, its offsets go into the
next batch.

Durability: a crash loses pending offsets. The check then asks the producers about these transactions again. A commit is
not lost by that, because its message was durable before its offset came here.

Concurrency: the loop's thread.
"""

import asyncio
from collections.abc import Callable, Iterable

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.storeformat.opmessages import op_offset_size
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.messages import op_message

log = logger("broker.transaction")

Done = Callable[[Outcome], None]


class OpWriter:
    """Collects decided half messages and appends op messages for them.

    Args:
        decided: Table that gets the offsets of each durable op message.
        store: Store that takes the op messages.
        waiters: Waiters for their durability.
        clock: Clock of their born time.
        live_settings: Size and interval of a batch.

    Attributes:
        pending: Queue offsets of half messages whose op message is not durable yet.
    """

    def __init__(
        self,
        decided: DecidedOffsets,
        *,
        store: MessageStore,
        waiters: DurabilityWaiters,
        clock: Clock,
        live_settings: LiveSettings,
    ) -> None:
        self.pending: set[int] = set()
        self._decided = decided
        self._store = store
        self._waiters = waiters
        self._clock = clock
        self._live_settings = live_settings
        self._batch: dict[int, None] = {}
        self._batch_bytes = 0
        self._batch_done: list[Done] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flush_soon = False

    def add(self, half_offsets: Iterable[int], done: Done | None = None, *, is_urgent: bool = True) -> None:
        """Add half messages that need no further attention.

        Args:
            half_offsets: Their queue offsets.
            done: Callback with the outcome of the op message.
            is_urgent: Whether the batch is written in this turn of the loop if there is a callback.
        """
        for half_offset in half_offsets:
            self.pending.add(half_offset)
            if half_offset not in self._batch:
                self._batch[half_offset] = None
                self._batch_bytes += op_offset_size(half_offset)
        if done is not None:
            self._batch_done.append(done)
            if is_urgent and not self._flush_soon:
                self._flush_soon = True
                asyncio.get_running_loop().call_soon(self.flush)
        if self._batch_bytes > self._live_settings.current.transaction_op_msg_max_size:
            self.flush()
        else:
            self._set_timer()

    def flush(self) -> None:
        """Append the op message of the current batch, if there is one."""
        self._flush_soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._batch:
            return
        half_offsets, done = tuple(self._batch), self._batch_done
        self._batch, self._batch_bytes, self._batch_done = {}, 0, []
        message = op_message(half_offsets, store_host=self._store.store_host, now_ms=self._clock.now_ms())
        result = message.put_into(self._store)
        if result.status is PutStatus.OK:
            self._waiters.wait(result.next_offset, self._completed, result.queue_offset, half_offsets, done)
        else:
            log.warning("an op message was not stored; it is tried again", reason=result.reason)
            self._completed(Outcome.NOT_WRITTEN, -1, half_offsets, done)

    def _completed(self, outcome: Outcome, op_offset: int, half_offsets: tuple[int, ...], done: list[Done]) -> None:
        # Without enough replicas, the record is still as safe as this broker can make it.
        if outcome in (Outcome.DURABLE, Outcome.REPLICATION_TIMEOUT):
            self._decided.add(op_offset, half_offsets)
            self.pending.difference_update(half_offsets)
            self.pending.update(self._batch)
        else:
            for half_offset in half_offsets:
                if half_offset not in self._batch:
                    self._batch[half_offset] = None
                    self._batch_bytes += op_offset_size(half_offset)
            self._set_timer()
        assert len(self.pending) >= len(self._batch), "every offset of the batch is pending"
        for call in done:
            call(outcome)

    def _set_timer(self) -> None:
        if self._timer is None and self._batch:
            interval_s = self._live_settings.current.transaction_op_batch_interval / 1000
            self._timer = asyncio.get_running_loop().call_later(interval_s, self.flush)
