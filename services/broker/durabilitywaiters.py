"""Durability waiters: call back when the log is safe up to a physical offset. One write and one flush serve a turn.

Theory of operation. In one turn, the loop reads the requests that have arrived on all connections. Each append (a send,
a timer's message, a half message, a pop check point) leaves the physical end of its record here, with a callback. At
the end of the turn, one call writes all appended records, and the loop wakes the store's flush thread once. The flush
thread makes all written records durable with one sync and reports the offset that it reached. Then dispatch makes these
records readable: it builds the ConsumeQueues and wakes the waiting pulls. The callbacks run together with it, so that a
producer can read each message for which it got a reply. The next batch gathers while a sync runs, so the batch size
grows with the load. A sync that takes a second leaves many records to dispatch: each turn of the loop dispatches a part
of them.

    loop thread    append … append │ request_flush          append … append │ request_flush flushed(A): dispatch, reply
    flush thread                                  sync A ──────────────────────────────▶ report A, sync B ─────────▶ …

Dispatch and callbacks follow one watermark, the store's confirm offset. It is the smallest of the offsets that a record
must reach: with SYNC_FLUSH the flushed offset, with ASYNC_FLUSH the written offset, and the replicated offset if the
broker waits for replicas. If the watermark does not lag behind the write (ASYNC_FLUSH without replicas), the callbacks
run at the end of the turn. The same holds for a record whose owner does not want to wait for the disk.

Durability: no callback gets DURABLE before its record is written, so the record survives a crash of the process. A
callback that waits for the flush gets DURABLE only after a report, when the watermark has reached its record; with
SYNC_FLUSH the record then survives a power failure. Every callback runs exactly once, with one of the outcomes.

Concurrency: everything runs in the loop's thread, except `flushed_from_thread` and `flush_failed_from_thread`.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

from gantry.runtime.clock import Clock
from gantry.runtime.failpoints import Failpoint, hit
from services.broker.latency import Latency
from services.broker.overload import Overload
from services.broker.settings import LiveSettings
from services.broker.store.results import PutResult, PutStatus

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Outcome(enum.Enum):
    """The answer to a waiter."""

    DURABLE = "durable"
    """The record is as safe as the waiter asked."""
    FLUSH_TIMEOUT = "flush_timeout"
    """The record is written. It is unknown whether it is on disk: the flush failed or takes too long."""
    REPLICATION_TIMEOUT = "replication_timeout"
    """The record is as safe as this broker alone can make it, but the replicas do not have it in time."""
    NOT_WRITTEN = "not_written"
    """The operating system rejected the write. It is unknown whether the record is stored."""


# Python 3.11 calls a function for each access to a member of an enum by its class.
_DURABLE = Outcome.DURABLE
_NOT_WRITTEN = Outcome.NOT_WRITTEN


class NotDurableError(Exception):
    """A record that no client waits for was not stored, or it is unknown whether it is durable.

    Attributes:
        outcome: The outcome of the append; None if nothing was appended.
    """

    def __init__(self, reason: str, outcome: Outcome | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Watermark:
    """The end of the part of the log that may be dispatched and acknowledged.

    Attributes:
        offset: Function that returns the current watermark, a physical offset.
        request_flush: Function that wakes the store's flush thread; None if the watermark does not depend on the flush.
        lags_write: Whether the watermark may be behind the written offset. If not, a record may be acknowledged as
            soon as it is written.
    """

    offset: Callable[[], int]
    request_flush: Callable[[], None] | None
    lags_write: bool


# Physical end of the record, time of the append (monotonic ms), callback, and its argument after the outcome. A plain
# tuple, because the broker makes one for every message.
_Waiter = tuple[int, int, Callable[[Outcome, Any], None], Any]


class DurabilityWaiters:
    """The callbacks that wait for the watermark, in the order of their records.

    Attributes:
        latency: Time from append to callback, of the records that waited for the watermark and are durable.
        flush_latency: Time from the request of a flush to its report.
        timeouts: Number of callbacks that got FLUSH_TIMEOUT or REPLICATION_TIMEOUT.

    Args:
        write_out: Function that hands the appended records to the operating system and returns the offset up to which
            it has them.
        dispatch: Function that makes a part of the confirmed messages readable or, if its argument is true, all of
            them. It returns the offset that it reached if more is left to do and it can go on, else None.
        watermark: The watermark that dispatch and callbacks follow.
        clock: Clock that measures waiting times.
        live_settings: Limits on how many callbacks may wait, and for how long.
        overload: Judge of whether clients may append more; asked once a turn.
        on_readable: Callback after each dispatch.
        loop: Event loop of the thread that makes all calls.
    """

    def __init__(
        self,
        *,
        write_out: Callable[[], int],
        dispatch: Callable[[bool], int | None],
        watermark: Watermark,
        clock: Clock,
        live_settings: LiveSettings,
        overload: Overload,
        on_readable: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.latency = Latency()
        self.flush_latency = Latency()
        self.timeouts = 0
        self._write_out = write_out
        self._dispatch = dispatch
        self._clock = clock
        self._live_settings = live_settings
        self._overload = overload
        self._on_readable = on_readable
        self._loop = loop
        self._waiting: deque[_Waiter] = deque()
        self._unwritten: list[_Waiter] = []
        self.follow(watermark)
        self._is_turn_open = False
        self._has_appended = False
        self._turn_at_ms = 0
        self._refusal: str | None = None
        self._flush_began_ms: int | None = None
        self._flushed_offset = 0
        self._confirmed_offset = 0
        self._is_continuing = False
        self._has_failed = False

    @property
    def waiting_count(self) -> int:
        """Number of callbacks that wait for the watermark."""
        return len(self._waiting)

    def oldest_wait_ms(self) -> int:
        """Return how many milliseconds the oldest callback has waited for the watermark, or 0 if none waits."""
        return self._clock.monotonic_ms() - self._waiting[0][1] if self._waiting else 0

    def admit(self) -> str | None:
        """Return None if one more message of a client may be appended in this turn, else the remark of the refusal.

        The clock is read and overload is judged once a turn. Only the number of waiting callbacks is checked at every
        call. Appends of the broker itself need no admission.
        """
        if not self._is_turn_open:
            self._open_turn()
        refusal = self._refusal
        if refusal is None and len(self._waiting) >= self._live_settings.current.send_thread_pool_queue_capacity:
            refusal = self._send_refusal()
        if refusal is not None:
            self._overload.refused_sends += 1
        return refusal

    def wait(
        self,
        physical_end: int,
        complete: Callable[[Outcome, *_Ts], None],
        *args: *_Ts,
        waits_for_flush: bool = True,
    ) -> None:
        """Call `complete(outcome, *args)` when all bytes before `physical_end` are safe enough.

        The caller has just appended the record that ends there, so the ends of all calls ascend.

        Args:
            physical_end: The physical offset after the last byte of the record.
            complete: The callback. It must not raise. It may append and wait again.
            args: Further arguments of the callback.
            waits_for_flush: Whether the callback waits for the watermark. If not, it waits only for the write.
        """
        self.wait_with(physical_end, _spread, (complete, args), waits_for_flush)

    def wait_with(
        self,
        physical_end: int,
        complete: Callable[[Outcome, _T], None],
        context: _T,
        waits_for_flush: bool = True,
    ) -> None:
        """Do as `wait` for a callback with one further argument; Python calls such a callback in half the time."""
        if not self._is_turn_open:
            self._open_turn()
        self._has_appended = True
        waiting = self._waiting if waits_for_flush and self._lags_write else self._unwritten
        assert not waiting or waiting[-1][0] <= physical_end, f"{physical_end} follows {waiting[-1][0]}"
        waiting.append((physical_end, self._turn_at_ms, complete, context))

    def appended(self) -> None:
        """Note an append for which nobody waits; it is written, flushed and dispatched like all others."""
        if not self._is_turn_open:
            self._open_turn()
        self._has_appended = True

    async def append(self, put: Callable[[], PutResult]) -> PutResult:
        """Append a record for which no client waits, and return when it is as durable as an acknowledged message.

        Args:
            put: Function that puts one message into the store and returns the store's result.

        Raises:
            NotDurableError: The store rejected the message, or its outcome is not DURABLE.
        """
        result = put()
        if result.status is not PutStatus.OK:
            raise NotDurableError(f"the message was not stored: {result.reason or result.status.value}")
        outcome = await self.outcome(result.next_offset)
        if outcome is not Outcome.DURABLE:
            reason = f"the message at {result.physical_offset} may not be durable: {outcome.value}"
            raise NotDurableError(reason, outcome)
        return result

    async def outcome(self, physical_end: int, *, waits_for_flush: bool = True) -> Outcome:
        """Wait as a callback of `wait` does, and return its outcome."""
        completed: asyncio.Future[Outcome] = self._loop.create_future()
        self.wait_with(physical_end, _resolve, completed, waits_for_flush)
        return await completed

    def flushed_from_thread(self, offset: int) -> None:
        """Take the flush thread's report and wake the loop once for the whole group of waiters."""
        try:
            self._loop.call_soon_threadsafe(self._flushed, offset)
        except RuntimeError:
            # The loop is closed: the store flushes once more while it stops, and no client waits for a reply.
            return

    def flush_failed_from_thread(self, reason: str) -> None:
        """Take the flush thread's report that a flush failed and no more reports will come."""
        try:
            self._loop.call_soon_threadsafe(self._flush_failed)
        except RuntimeError:
            return

    def watermark_moved(self) -> None:
        """Follow the watermark to its new offset. Replication calls this when its replicas have more."""
        self._confirmed_offset = self._watermark.offset()
        self.make_readable()

    def follow(self, watermark: Watermark) -> None:
        """Follow another watermark from now on. Replication calls this at the start, before anything waits."""
        assert not self._waiting, "callbacks wait for the old watermark"
        assert not self._unwritten, "callbacks wait for the write"
        self._watermark = watermark
        self._lags_write = watermark.lags_write

    def sweep(self) -> None:
        """Give up the callbacks that have waited too long. A timer calls this."""
        now_ms = self._clock.monotonic_ms()
        limit_ms = self._live_settings.current.sync_flush_timeout
        while self._waiting and now_ms - self._waiting[0][1] > limit_ms:
            physical_end, _, complete, context = self._waiting.popleft()
            self.timeouts += 1
            is_flushed = self._watermark.request_flush is None or physical_end <= self._flushed_offset
            complete(Outcome.REPLICATION_TIMEOUT if is_flushed else Outcome.FLUSH_TIMEOUT, context)

    def make_readable(self) -> None:
        """Dispatch the confirmed messages, run the callbacks for them, and wake the pulls that wait for them."""
        if not self._is_continuing:
            self._dispatch_some()

    def _open_turn(self) -> None:
        self._is_turn_open = True
        self._has_appended = False
        self._turn_at_ms = self._clock.monotonic_ms()
        self._refusal = self._send_refusal()
        self._loop.call_soon(self._end_turn)

    def _send_refusal(self) -> str | None:
        now_ms = self._turn_at_ms
        return self._overload.send_refusal(
            waiting_count=len(self._waiting),
            oldest_wait_ms=now_ms - self._waiting[0][1] if self._waiting else 0,
            flush_ms=0 if self._flush_began_ms is None else now_ms - self._flush_began_ms,
        )

    def _end_turn(self) -> None:
        self._is_turn_open = False
        if not self._has_appended:
            return
        wrote_offset = self._write_out()
        # First, because a callback may append: its record is written at the end of the next turn.
        if self._waiting and self._waiting[-1][0] > wrote_offset:
            self._give_up_unwritten(wrote_offset)
        self._complete_written(wrote_offset)
        watermark = self._watermark
        if watermark.request_flush is not None:
            if self._flush_began_ms is None and not self._has_failed:
                self._flush_began_ms = self._turn_at_ms
            watermark.request_flush()
        if not self._lags_write:
            self.make_readable()

    def _complete_written(self, wrote_offset: int) -> None:
        written, self._unwritten = self._unwritten, []
        for physical_end, _, complete, context in written:
            complete(_DURABLE if physical_end <= wrote_offset else _NOT_WRITTEN, context)

    def _give_up_unwritten(self, wrote_offset: int) -> None:
        unwritten: list[_Waiter] = []
        while self._waiting and self._waiting[-1][0] > wrote_offset:
            unwritten.append(self._waiting.pop())
        for _, _, complete, context in reversed(unwritten):
            complete(Outcome.NOT_WRITTEN, context)

    def _flushed(self, offset: int) -> None:
        hit(Failpoint.BROKER_BEFORE_REPLY)
        assert offset >= self._flushed_offset, f"flushed up to {offset} after {self._flushed_offset}"
        self._flushed_offset = offset
        now_ms = self._clock.monotonic_ms()
        if self._flush_began_ms is not None:
            self.flush_latency.observe(now_ms - self._flush_began_ms, 1)
        self._flush_began_ms = now_ms if self._waiting and self._waiting[-1][0] > offset else None
        self.watermark_moved()

    def _flush_failed(self) -> None:
        """Complete all waiters with FLUSH_TIMEOUT: it is unknown which of their records are on disk.

        The store refuses later appends and gives the reason.
        """
        self._has_failed = True
        self._flush_began_ms = None
        failed, self._waiting = self._waiting, deque()
        self.timeouts += len(failed)
        for _, _, complete, context in failed:
            complete(Outcome.FLUSH_TIMEOUT, context)

    def _dispatch_some(self) -> None:
        # The records of one turn are few. Only a watermark that lags can hold up many.
        readable_offset = self._dispatch(not self._lags_write)
        if readable_offset is None:
            self._complete_to(self._confirmed_offset)
        else:
            self._complete_to(min(readable_offset, self._confirmed_offset))
            self._loop.call_soon(self._dispatch_some)
        self._is_continuing = readable_offset is not None
        self._on_readable()

    def _complete_to(self, offset: int) -> None:
        waiting = self._waiting
        if not waiting or waiting[0][0] > offset:
            return
        now_ms = self._clock.monotonic_ms()
        batch_at_ms, batch_count = now_ms, 0
        while waiting and waiting[0][0] <= offset:
            _, at_ms, complete, context = waiting.popleft()
            complete(_DURABLE, context)
            if at_ms != batch_at_ms:
                if batch_count:
                    self.latency.observe(now_ms - batch_at_ms, batch_count)
                batch_at_ms, batch_count = at_ms, 0
            batch_count += 1
        if batch_count:
            self.latency.observe(now_ms - batch_at_ms, batch_count)


def _spread(outcome: Outcome, context: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    complete, args = context
    complete(outcome, *args)


def _resolve(outcome: Outcome, completed: "asyncio.Future[Outcome]") -> None:
    if not completed.done():  # The task that waited may have been cancelled.
        completed.set_result(outcome)
