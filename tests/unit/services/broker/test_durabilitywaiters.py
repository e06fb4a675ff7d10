"""Waiters for a physical offset, over a log of numbers and virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.broker.durabilitywaiters import DurabilityWaiters, NotDurableError, Outcome, Watermark
from services.broker.overload import LoopLag, Overload
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.store.results import PutResult, PutStatus
from tests.support.virtualtime import VirtualClock

RECORD_BYTES = 100
ROUND_RECORDS = 3


class Log:
    """A log of records of 100 bytes: offsets only. The flush thread is moved by hand."""

    def __init__(self, *, sync: bool = True, replicated: bool = False) -> None:
        self.next_offset = self.wrote_offset = self.flushed_offset = self.dispatched_offset = 0
        self.replicated_offset: int | None = 0 if replicated else None
        self.is_broken = False
        self.dispatch_stands = False
        self.flush_requests = 0
        self.events: list[Any] = []
        self._sync = sync
        self.live_settings = LiveSettings(BrokerSettings())
        clock = VirtualClock()
        self.overload = Overload(self.live_settings, LoopLag())
        self.waiters = DurabilityWaiters(
            write_out=self.write_out,
            dispatch=self.dispatch,
            watermark=Watermark(
                offset=self.watermark,
                request_flush=self.request_flush if sync else None,
                lags_write=sync or replicated,
            ),
            clock=clock,
            live_settings=self.live_settings,
            overload=self.overload,
            on_readable=lambda: None,
            loop=asyncio.get_running_loop(),
        )

    def watermark(self) -> int:
        local = self.flushed_offset if self._sync else self.wrote_offset
        return local if self.replicated_offset is None else min(local, self.replicated_offset)

    def put(self) -> PutResult:
        at, self.next_offset = self.next_offset, self.next_offset + RECORD_BYTES
        return PutResult(PutStatus.OK, at, at // RECORD_BYTES, 0, self.next_offset)

    def write_out(self) -> int:
        if not self.is_broken:
            self.wrote_offset = self.next_offset
        return self.wrote_offset

    def request_flush(self) -> None:
        self.flush_requests += 1

    def dispatch(self, everything: bool) -> int | None:
        end, before = self.watermark(), self.dispatched_offset
        if not self.dispatch_stands:
            self.dispatched_offset = end if everything else min(end, before + ROUND_RECORDS * RECORD_BYTES)
        return None if self.dispatched_offset in (before, end) else self.dispatched_offset

    def flush(self, offset: int | None = None) -> None:
        self.flushed_offset = self.wrote_offset if offset is None else offset
        self.waiters.flushed_from_thread(self.flushed_offset)

    def append(self, name: str, *, waits_for_flush: bool = True) -> None:
        self.waiters.wait(self.put().next_offset, self.completed, name, waits_for_flush=waits_for_flush)

    def completed(self, outcome: Outcome, name: str) -> None:
        self.events.append((name, outcome))

    def names(self) -> list[str]:
        assert all(outcome is Outcome.DURABLE for _, outcome in self.events)
        return [name for name, _ in self.events]


async def turns(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def sweep_after(log: Log, wait_s: float) -> None:
    await asyncio.sleep(wait_s)
    log.waiters.sweep()


@pytest.fixture
async def log() -> Log:
    return Log()


class TestOrder:
    async def test_waiters_complete_in_the_order_of_their_records_and_only_up_to_the_report(self, log: Log) -> None:
        for name in "abc":
            log.append(name)
        await turns()
        log.append("d")
        assert (log.flush_requests, log.names()) == (1, [])
        log.flush(2 * RECORD_BYTES)
        await turns()
        assert log.names() == ["a", "b"]
        assert log.waiters.waiting_count == 2
        log.flush()
        await turns(2)
        assert log.names() == ["a", "b", "c", "d"]

    async def test_one_turn_has_one_write_and_one_flush(self, log: Log) -> None:
        for number in range(10):
            log.append(str(number))
        log.waiters.appended()
        assert log.wrote_offset == 0
        await turns(3)
        assert (log.wrote_offset, log.flush_requests) == (10 * RECORD_BYTES, 1)

    async def test_an_append_without_a_waiter_is_written_and_flushed(self, log: Log) -> None:
        log.put()
        log.waiters.appended()
        await turns()
        assert (log.wrote_offset, log.flush_requests) == (RECORD_BYTES, 1)

    async def test_an_admission_without_an_append_writes_nothing(self, log: Log) -> None:
        assert log.waiters.admit() is None
        await turns(2)
        assert log.flush_requests == 0

    async def test_ends_must_ascend(self, log: Log) -> None:
        log.waiters.wait(200, log.completed, "later")
        with pytest.raises(AssertionError, match="100 follows 200"):
            log.waiters.wait(100, log.completed, "earlier")

    async def test_a_waiter_that_wants_no_flush_completes_at_the_end_of_the_turn(self, log: Log) -> None:
        log.append("flushed")
        log.append("written", waits_for_flush=False)
        assert log.names() == []
        await turns()
        assert log.names() == ["written"]

    async def test_without_a_lagging_watermark_the_end_of_the_turn_completes_and_dispatches_all(self) -> None:
        log = Log(sync=False)
        for number in range(2 * ROUND_RECORDS):
            log.append(str(number))
        await turns()
        assert len(log.names()) == 2 * ROUND_RECORDS
        assert (log.dispatched_offset, log.flush_requests) == (log.next_offset, 0)

    async def test_a_callback_may_append_and_wait_again(self, log: Log) -> None:
        def again(outcome: Outcome) -> None:
            assert outcome is Outcome.DURABLE
            log.append("second")

        log.waiters.wait(log.put().next_offset, again)
        await turns()
        log.flush()
        await turns(2)
        assert log.names() == []
        log.flush()
        await turns()
        assert log.names() == ["second"]


class TestPacing:
    async def test_a_long_backlog_is_dispatched_and_completed_in_pieces(self, log: Log) -> None:
        count = 4 * ROUND_RECORDS
        for number in range(count):
            log.append(str(number))
        await turns()
        log.flush()
        for piece in range(1, 5):
            await turns()
            assert len(log.names()) == piece * ROUND_RECORDS
            assert log.dispatched_offset == len(log.names()) * RECORD_BYTES  # A completed record is readable.

    async def test_the_timer_does_not_start_a_second_pass(self, log: Log) -> None:
        for number in range(3 * ROUND_RECORDS):
            log.append(str(number))
        await turns()
        log.flush()
        await turns()
        log.waiters.make_readable()
        assert len(log.names()) == ROUND_RECORDS
        await turns(3)
        assert len(log.names()) == 3 * ROUND_RECORDS

    async def test_waiters_complete_although_dispatch_stands_still(self, log: Log) -> None:
        log.dispatch_stands = True
        log.append("a")
        await turns()
        log.flush()
        await turns()
        assert (log.names(), log.dispatched_offset) == (["a"], 0)


class TestFailure:
    async def test_a_waiter_that_waits_too_long_gets_a_timeout_and_those_behind_it_wait_on(self, log: Log) -> None:
        log.append("early")
        await turns()
        await sweep_after(log, 3)
        log.append("late")
        await sweep_after(log, 2.1)
        assert log.events == [("early", Outcome.FLUSH_TIMEOUT)]
        assert (log.waiters.timeouts, log.waiters.waiting_count) == (1, 1)
        log.flush()
        await turns()
        assert log.events[1:] == [("late", Outcome.DURABLE)]
        assert log.waiters.latency.max_ms == 2100
        assert log.waiters.flush_latency.max_ms == 5100

    async def test_a_failed_flush_completes_all_at_once_and_none_twice(self, log: Log) -> None:
        log.append("a")
        log.append("b")
        await turns()
        log.waiters.flush_failed_from_thread("the disk is gone")
        await turns()
        assert log.events == [("a", Outcome.FLUSH_TIMEOUT), ("b", Outcome.FLUSH_TIMEOUT)]
        assert log.waiters.timeouts == 2
        await sweep_after(log, 60)
        assert len(log.events) == 2
        assert log.waiters.admit() is None  # A flush that never ends is no reason to refuse; the store refuses.

    @pytest.mark.parametrize("sync", [True, False])
    async def test_records_that_the_system_did_not_take_are_not_durable(self, sync: bool) -> None:
        log = Log(sync=sync)
        log.append("before")
        await turns()
        log.is_broken = True
        log.append("waits")
        log.append("also waits")
        log.append("does not wait", waits_for_flush=False)
        await turns()
        lost = [event for event in log.events if event[1] is not Outcome.DURABLE]
        assert lost == [(name, Outcome.NOT_WRITTEN) for name in ("waits", "also waits", "does not wait")]
        log.flush()
        await turns()
        assert [name for name, outcome in log.events if outcome is Outcome.DURABLE] == ["before"]

    async def test_reports_after_the_end_of_the_loop_are_ignored(self, log: Log) -> None:
        class Closed:
            def call_soon_threadsafe(self, *args: Any) -> None:
                raise RuntimeError("Event loop is closed")

        log.waiters._loop = Closed()  # type: ignore[assignment]
        log.waiters.flushed_from_thread(1)
        log.waiters.flush_failed_from_thread("stopped")


class TestOverload:
    async def test_waiters_of_one_turn_count_and_refusals_are_counted(self, log: Log) -> None:
        log.live_settings.follow(BrokerSettings(send_thread_pool_queue_capacity=2))
        for name in "ab":
            assert log.waiters.admit() is None
            log.append(name)
        refusal = log.waiters.admit()
        assert refusal is not None
        assert refusal.startswith("[OVERLOAD]")
        assert log.overload.refused_sends == 1
        log.append("internal")  # The broker's own appends need no admission.

    async def test_without_a_lagging_watermark_the_appends_of_a_turn_are_no_overload(self) -> None:
        log = Log(sync=False)
        log.live_settings.follow(BrokerSettings(send_thread_pool_queue_capacity=2))
        for name in "abcd":
            assert log.waiters.admit() is None
            log.append(name)

    async def test_a_flush_that_hangs_refuses_clients_until_it_ends(self, log: Log) -> None:
        log.append("a")
        await asyncio.sleep(1.5)
        refusal = log.waiters.admit()
        assert refusal is not None
        assert refusal.startswith("[REJECTREQUEST]")
        assert log.waiters.oldest_wait_ms() == 1500
        log.flush()
        await turns(2)
        assert log.waiters.admit() is None
        assert log.waiters.oldest_wait_ms() == 0


class TestInternalAppend:
    async def test_one_call_appends_and_returns_when_the_record_is_durable(self, log: Log) -> None:
        append = asyncio.ensure_future(log.waiters.append(log.put))
        await turns(3)
        assert log.flush_requests == 1  # The append itself has opened the turn.
        assert not append.done()
        log.flush()
        assert (await append).next_offset == RECORD_BYTES

    async def test_appends_share_the_flush_with_sends(self, log: Log) -> None:
        log.append("send")
        appends = [asyncio.ensure_future(log.waiters.append(log.put)) for _ in range(3)]
        await turns(2)
        log.flush()
        assert [(await append).queue_offset for append in appends] == [1, 2, 3]
        assert log.names() == ["send"]

    async def test_a_message_that_the_store_rejects_is_an_error(self, log: Log) -> None:
        with pytest.raises(NotDurableError, match="disk is full") as caught:
            await log.waiters.append(lambda: PutResult(PutStatus.CREATE_FILE_FAILED, reason="disk is full"))
        assert caught.value.outcome is None

    @pytest.mark.parametrize(
        ("fail", "outcome"),
        [
            (lambda log: log.waiters.flush_failed_from_thread("x"), Outcome.FLUSH_TIMEOUT),
            (lambda log: setattr(log, "is_broken", True), Outcome.NOT_WRITTEN),
        ],
    )
    async def test_a_message_that_may_not_be_durable_is_an_error(
        self, log: Log, fail: Callable[[Log], None], outcome: Outcome
    ) -> None:
        append = asyncio.ensure_future(log.waiters.append(log.put))
        asyncio.get_running_loop().call_soon(fail, log)
        with pytest.raises(NotDurableError, match="the message at 0 may not be durable") as caught:
            await append
        assert caught.value.outcome is outcome

    async def test_a_cancelled_append_disturbs_nobody(self, log: Log) -> None:
        append = asyncio.ensure_future(log.waiters.append(log.put))
        log.append("other")
        await turns(2)
        append.cancel()
        log.flush()
        await turns(2)
        assert append.cancelled()
        assert log.names() == ["other"]


class TestReplication:
    """A second condition: the watermark is min(flushed, replicated)."""

    async def test_dispatch_and_waiters_follow_the_slower_of_both(self) -> None:
        log = Log(replicated=True)
        for name in "ab":
            log.append(name)
        await turns()
        log.flush()
        await turns(2)
        assert (log.names(), log.dispatched_offset) == ([], 0)
        log.replicated_offset = RECORD_BYTES
        log.waiters.watermark_moved()
        assert (log.names(), log.dispatched_offset) == (["a"], RECORD_BYTES)
        log.replicated_offset = 10 * RECORD_BYTES  # Ahead of the flush: now the flush is the slower one.
        log.append("c")
        log.waiters.watermark_moved()
        await turns(2)
        assert log.names() == ["a", "b"]
        log.flush()
        await turns()
        assert log.names() == ["a", "b", "c"]

    async def test_replication_works_without_a_flush(self) -> None:
        log = Log(sync=False, replicated=True)
        log.append("a")
        await turns(2)
        assert (log.names(), log.flush_requests, log.wrote_offset) == ([], 0, RECORD_BYTES)
        log.replicated_offset = RECORD_BYTES
        log.waiters.watermark_moved()
        assert log.names() == ["a"]

    async def test_a_timeout_says_which_of_both_was_late(self) -> None:
        log = Log(replicated=True)
        log.append("flushed")
        await turns()
        log.flush()
        log.append("neither")
        await sweep_after(log, 5.1)
        assert log.events == [("flushed", Outcome.REPLICATION_TIMEOUT), ("neither", Outcome.FLUSH_TIMEOUT)]
        assert log.waiters.timeouts == 2
