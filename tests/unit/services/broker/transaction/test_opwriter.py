"""Batches of op messages: when one is written, and what happens to its offsets if the store refuses it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.broker.durabilitywaiters import Outcome
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.store.results import PutResult, PutStatus
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.opwriter import OpWriter
from tests.support.virtualtime import VirtualClock


class FakeStore:
    """Takes op messages, or refuses them."""

    store_host = bytes(8)

    def __init__(self) -> None:
        self.is_writable = True
        self.bodies: list[bytes] = []

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes, **fields: Any) -> PutResult:
        if not self.is_writable:
            return PutResult(PutStatus.NOT_WRITABLE, reason="full")
        self.bodies.append(body)
        count = len(self.bodies)
        return PutResult(PutStatus.OK, count * 100, count - 1, 0, count * 100 + 100)


class FakeWaiters:
    """Completes appends when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Outcome], None]] = []

    def wait(self, end: int, complete: Callable[..., None], *args: Any) -> None:
        self.waiting.append(lambda outcome: complete(outcome, *args))

    def complete(self, outcome: Outcome = Outcome.DURABLE) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call(outcome)


class Fixture:
    def __init__(self) -> None:
        self.store, self.waiters, self.decided = FakeStore(), FakeWaiters(), DecidedOffsets(0, 0)
        self.writer = OpWriter(
            self.decided,
            store=self.store,  # type: ignore[arg-type]
            waiters=self.waiters,  # type: ignore[arg-type]
            clock=VirtualClock(),
            live_settings=LiveSettings(BrokerSettings()),
        )


@pytest.fixture
async def ops() -> Fixture:
    return Fixture()


async def test_a_batch_is_written_after_the_interval(ops: Fixture) -> None:
    ops.writer.add((1,))
    await asyncio.sleep(2.9)
    ops.writer.add((2,))
    assert ops.store.bodies == []
    await asyncio.sleep(0.2)
    assert ops.store.bodies == [b"1,2,"]
    assert (ops.writer.pending, 1 in ops.decided) == ({1, 2}, False)
    ops.waiters.complete()
    assert (ops.writer.pending, 1 in ops.decided, 2 in ops.decided) == (set(), True, True)
    await asyncio.sleep(10)
    assert ops.store.bodies == [b"1,2,"]


async def test_a_large_batch_is_written_at_once(ops: Fixture) -> None:
    ops.writer.add(range(1000, 1819))
    assert ops.store.bodies == []
    ops.writer.add((1819,))
    assert len(ops.store.bodies[0]) == 4100


async def test_a_caller_that_waits_does_not_wait_for_the_interval(ops: Fixture) -> None:
    outcomes: list[Outcome] = []
    ops.writer.add((1,), outcomes.append)
    ops.writer.add((2,), outcomes.append)
    await asyncio.sleep(0.001)
    assert ops.store.bodies == [b"1,2,"]
    ops.waiters.complete()
    assert outcomes == [Outcome.DURABLE] * 2


async def test_offsets_of_a_refused_batch_go_into_the_next(ops: Fixture) -> None:
    outcomes: list[Outcome] = []
    ops.store.is_writable = False
    ops.writer.add((1,), outcomes.append)
    await asyncio.sleep(7)
    assert (outcomes, ops.writer.pending) == ([Outcome.NOT_WRITTEN], {1})
    ops.store.is_writable = True
    ops.writer.add((2,))
    await asyncio.sleep(3.1)
    assert ops.store.bodies == [b"1,2,"]


@pytest.mark.parametrize("outcome", [Outcome.FLUSH_TIMEOUT, Outcome.NOT_WRITTEN])
async def test_offsets_that_may_be_lost_are_written_again(ops: Fixture, outcome: Outcome) -> None:
    ops.writer.add((1,))
    await asyncio.sleep(3.1)
    ops.waiters.complete(outcome)
    assert (ops.writer.pending, 1 in ops.decided) == ({1}, False)
    await asyncio.sleep(3.1)
    ops.waiters.complete()
    assert (ops.store.bodies, ops.writer.pending, 1 in ops.decided) == ([b"1,", b"1,"], set(), True)


async def test_an_offset_that_is_added_again_while_its_message_is_written_stays_pending(ops: Fixture) -> None:
    ops.writer.add((1,))
    await asyncio.sleep(3.1)
    ops.writer.add((1,))
    ops.waiters.complete()
    assert ops.writer.pending == {1}
    await asyncio.sleep(3.1)
    ops.waiters.complete()
    assert ops.writer.pending == set()
