"""Promises of a consumer with a listener that consumes in order: through the client engine, on virtual time."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from gantry.client import ListenerSettings, PushConsumer, ReconsumeLaterError, StartPosition
from gantry.client.engine import ClientEngine
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.bodies import LockRequest
from gantry.remoting.codes import RequestCode
from tests.support.brokerunit import IDENTITY, BrokerUnit
from tests.support.unitcluster import engine_on

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
QUEUE = MessageQueue("T", IDENTITY.name, 0)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", queues=2)
        for queue_id in (0, 1):
            for number in range(6):
                await unit.send(body=f"{queue_id}-{number}".encode(), queue_id=queue_id)
        yield unit


@pytest.fixture
async def engine(unit: BrokerUnit) -> AsyncIterator[ClientEngine]:
    async with engine_on(unit) as engine:
        yield engine


def orderly(engine: ClientEngine, listener: Any = None, **options: Any) -> PushConsumer:
    settings = ListenerSettings(
        **{name: options.pop(name) for name in list(options) if name in ListenerSettings.__dataclass_fields__}
    )
    return PushConsumer(engine, "g", ["T"], listener, is_orderly=True, start=FIRST, settings=settings, **options)


class Seen:
    """Deliveries as the listener sees them."""

    def __init__(self, unit: BrokerUnit) -> None:
        self._unit = unit
        self.bodies: dict[int, list[str]] = defaultdict(list)
        self.at_ms: dict[str, list[int]] = defaultdict(list)
        self.failures: dict[str, list[int]] = defaultdict(list)

    def add(self, message: StoredMessage) -> str:
        body = message.body.decode()
        self.bodies[message.queue_id].append(body)
        self.at_ms[body].append(self._unit.clock.now_ms())
        self.failures[body].append(message.reconsume_times)
        return body


def in_order(queue_id: int, *numbers: int) -> list[str]:
    return [f"{queue_id}-{number}" for number in numbers or range(6)]


async def test_a_message_that_fails_holds_up_its_queue_alone_and_comes_again_in_place(unit, engine):
    seen = Seen(unit)

    async def listen(message: StoredMessage) -> None:
        if seen.add(message) == "0-2" and message.reconsume_times < 3:
            raise ValueError("not yet")

    async with orderly(engine, listen) as consumer:
        await asyncio.sleep(2.5)
        assert seen.bodies[0] == in_order(0, 0, 1, 2, 2, 2)
        assert seen.bodies[1] == in_order(1), "its neighbour goes on"
        await asyncio.sleep(5)
        assert seen.bodies[0] == in_order(0, 0, 1, 2, 2, 2, 2, 3, 4, 5)
        assert seen.failures["0-2"] == [0, 1, 2, 3]
        assert [after - before for before, after in pairwise(seen.at_ms["0-2"])] == [1_000] * 3
        assert (consumer.counts.sent_back, consumer.counts.dead) == (0, 0)


async def test_without_a_limit_a_message_is_tried_for_ever(unit, engine):
    seen = Seen(unit)

    async def listen(message: StoredMessage) -> None:
        if seen.add(message) == "0-0":
            raise ReconsumeLaterError(delay_ms=3_600_000)

    async with orderly(engine, listen):
        await asyncio.sleep(601)
    assert seen.bodies[0] == ["0-0"] * 21, "each 30 s, the longest wait of a queue"


async def test_a_message_that_failed_too_often_becomes_a_dead_letter_and_its_queue_goes_on(unit, engine):
    seen = Seen(unit)

    async def listen(message: StoredMessage) -> None:
        if seen.add(message) == "0-2":
            raise ValueError("never")

    async with orderly(engine, listen, max_reconsume_times=2) as consumer:
        await asyncio.sleep(10)
        assert seen.bodies[0] == in_order(0, 0, 1, 2, 2, 2, 3, 4, 5)
        assert consumer.held_messages == 0
    (letter,) = iter_records(unit.store.get("%DLQ%g", 0, 0, 32).body)
    assert letter.body == b"0-2"
    assert letter.reconsume_times == 3, "it failed three times"


async def test_one_batch_of_a_queue_runs_at_a_time(unit, engine):
    running: dict[int, int] = defaultdict(int)
    most = 0
    batches: dict[int, list[str]] = defaultdict(list)

    async def listen(messages: Sequence[StoredMessage]) -> None:
        nonlocal most
        queue_id = messages[0].queue_id
        running[queue_id] += 1
        most = max(most, running[queue_id])
        await asyncio.sleep(0.5)
        batches[queue_id] += [message.body.decode() for message in messages]
        running[queue_id] -= 1

    async with orderly(engine, batch_listener=listen, batch_messages_max=2):
        await asyncio.sleep(3)
    assert most == 1
    assert batches == {0: in_order(0), 1: in_order(1)}


async def test_of_a_failed_batch_the_first_failed_message_and_those_after_it_come_again(unit, engine):
    batches: list[list[str]] = []

    async def listen(messages: Sequence[StoredMessage]) -> None:
        if messages[0].queue_id:
            return
        batches.append([message.body.decode() for message in messages])
        bad = [message for message in messages if message.body == b"0-1" and message.reconsume_times < 3]
        if bad:
            raise ReconsumeLaterError(messages=bad)

    async with orderly(engine, batch_listener=listen, batch_messages_max=4, max_reconsume_times=1) as consumer:
        await asyncio.sleep(10)
        assert consumer.counts.dead == 1
    assert batches == [in_order(0, 0, 1, 2, 3), in_order(0, 1, 2, 3, 4), in_order(0, 2, 3, 4), in_order(0, 5)]


async def test_a_consumer_that_loses_its_lock_stops_at_once_and_commits_nothing_more(unit, engine):
    states: list[str] = []

    async def listen(message: StoredMessage) -> None:
        if message.queue_id:
            return
        states.append(f"begin {message.body.decode()}")
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            states.append(f"cancelled {message.body.decode()}")
            raise

    async with orderly(engine, listen) as consumer:
        await asyncio.sleep(1)
        assert states == ["begin 0-0"]
        # An operator's tool, or a broker that forgot, gives the queue to another member.
        unlock = LockRequest(engine.client_id, "g", (QUEUE,)).encode()
        await unit.ask(RequestCode.UNLOCK_BATCH_MQ, body=unlock)
        lock = LockRequest("another@1", "g", (QUEUE,)).encode()
        await unit.ask(RequestCode.LOCK_BATCH_MQ, body=lock)
        await asyncio.sleep(20)
        assert states == ["begin 0-0", "cancelled 0-0"]
        assert QUEUE not in consumer.held
        assert (consumer.counts.failed, consumer.counts.dropped) == (0, 1)


async def test_no_message_is_delivered_without_a_valid_lock(unit, engine):
    seen = Seen(unit)

    async def listen(message: StoredMessage) -> None:
        seen.add(message)

    async with orderly(engine, listen) as consumer:
        await asyncio.sleep(1)
        assert seen.bodies[0] == in_order(0)
        # The process was stopped for longer than a lock is valid. Its timers have not run yet.
        locks = consumer._member._locks
        locks._locked_ms = dict.fromkeys(locks._locked_ms, unit.clock.monotonic_ms() - 30_000)
        await unit.send(body=b"0-6")
        await asyncio.sleep(0.5)
        assert seen.bodies[0] == in_order(0)
        await asyncio.sleep(30)
        assert seen.bodies[0][-1] == "0-6"


async def test_a_queue_that_moves_waits_for_the_call_that_runs(unit, engine):
    ended: dict[int, list[str]] = defaultdict(list)

    async def listen(message: StoredMessage) -> None:
        await asyncio.sleep(2)
        ended[message.queue_id].append(message.body.decode())

    async with orderly(engine, listen):
        await asyncio.sleep(1)
        async with engine_on(unit, seed=8) as other, orderly(other, listen) as two:
            await asyncio.sleep(60)
            assert [queue.topic for queue in two.held if queue.topic == "T"] == ["T"]
    assert ended == {0: in_order(0), 1: in_order(1)}, "each message once, and in order"
