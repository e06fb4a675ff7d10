"""Promises of a consumer with a listener when brokers fail, and when its memory is full; on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.client import HoldLimits, ListenerSettings, PushConsumer, StartPosition
from gantry.client.engine import ClientEngine, Transport
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError
from tests.support.brokerunit import BrokerUnit
from tests.support.unitcluster import engine_on

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
SENDS_BACK = frozenset({RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2})


class FlakyTransport:
    """A transport that fails for the request codes in `failing`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.failing: frozenset[int] = frozenset()
        self.failures = 0

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        if command.code in self.failing:
            self.failures += 1
            raise ConnectError(address, "connection refused")
        return await self._transport.invoke(address, command, timeout_ms=timeout_ms)

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        await self._transport.invoke_one_way(address, command, timeout_ms=timeout_ms)

    async def connect(self, address: str, *, timeout_ms: int) -> object:
        return await self._transport.connect(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        await self._transport.close()


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", queues=2)
        yield unit


@pytest.fixture
async def engine(unit: BrokerUnit) -> AsyncIterator[ClientEngine]:
    async with engine_on(unit) as engine:
        yield engine


@pytest.fixture
def flaky(engine: ClientEngine) -> FlakyTransport:
    flaky = FlakyTransport(engine.transport)
    engine.transport = flaky
    return flaky


def push(engine: ClientEngine, listener: Any = None, **options: Any) -> PushConsumer:
    settings = ListenerSettings(
        **{name: options.pop(name) for name in list(options) if name in ListenerSettings.__dataclass_fields__}
    )
    return PushConsumer(engine, "g", ["T"], listener, start=FIRST, settings=settings, **options)


async def committed(unit: BrokerUnit, queue_id: int = 0) -> int:
    ext = {"topic": "T", "queueId": str(queue_id), "consumerGroup": "g", "setZeroIfNotFound": "false"}
    return int((await unit.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext)).ext_fields["offset"])


async def test_a_message_that_no_broker_takes_back_comes_again_here_and_holds_the_offset(unit, engine, flaky):
    seen: list[int] = []

    async def listen(message: StoredMessage) -> None:
        if message.body == b"poison":
            seen.append(message.reconsume_times)
            raise ValueError("it can't be processed")

    for body in (b"poison", b"good", b"better"):
        await unit.send(body=body)
    flaky.failing = SENDS_BACK
    async with push(engine, listen) as consumer:
        await asyncio.sleep(16)
        assert seen == [0, 1, 2, 3], "every 5 s"
        assert (consumer.counts.consumed, consumer.counts.retried_here, consumer.held_messages) == (2, 4, 1)
        assert await committed(unit) == 0, "after a crash it would come again"
        flaky.failing = frozenset()
        await asyncio.sleep(12)
        assert (consumer.counts.sent_back, consumer.held_messages, await committed(unit)) == (1, 0, 3)
        await asyncio.sleep(20)
        assert seen[4:] == [4, 1], "from now on, the broker counts"


async def test_a_queue_that_moves_does_not_wait_for_messages_that_are_set_aside(unit, engine, flaky):
    async def fail(message: StoredMessage) -> None:
        raise ValueError("it can't be processed")

    for number in range(8):
        await unit.send(queue_id=number % 2)
    flaky.failing = SENDS_BACK
    seen: list[StoredMessage] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message)

    async with push(engine, fail, retry_here_ms=600_000, revoke_timeout_ms=100_000):
        await asyncio.sleep(2)
        async with engine_on(unit, seed=8) as other, push(other, listen):
            await asyncio.sleep(3)
            assert len(seen) == 4, "the new owner of the queue gets them"


async def test_a_dead_letter_that_no_broker_takes_holds_up_its_queue_without_another_delivery(unit, engine, flaky):
    seen: list[str] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body.decode())
        if message.body == b"poison":
            raise ValueError("it can't be processed")

    await unit.send(body=b"poison")
    await unit.send(body=b"good")
    flaky.failing = SENDS_BACK
    async with push(engine, listen, is_orderly=True, max_reconsume_times=1):
        await asyncio.sleep(30)
        assert seen == ["poison"] * 2
        flaky.failing = frozenset()
        await asyncio.sleep(10)
        assert seen == ["poison", "poison", "good"]
    (letter,) = iter_records(unit.store.get("%DLQ%g", 0, 0, 32).body)
    assert letter.body == b"poison"


async def test_pulls_go_on_after_a_failure(unit, engine, flaky):
    seen: list[StoredMessage] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message)

    flaky.failing = frozenset({RequestCode.PULL_MESSAGE})
    async with push(engine, listen):
        await unit.send()
        await asyncio.sleep(10)
        assert seen == []
        assert 3 * 9 <= flaky.failures <= 3 * 11, "each queue once a second"
        flaky.failing = frozenset()
        await asyncio.sleep(1.1)
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("limits", "messages_max"),
    [
        (HoldLimits(queue_messages_max=20), 40),
        (HoldLimits(messages_max=30), 31),  # A queue that holds nothing may take one.
        (HoldLimits(bytes_max=4_000), 44),
        (HoldLimits(queue_bytes_max=2_000), 44),
        (HoldLimits(queue_span_max=15), 34),
    ],
)
async def test_messages_in_memory_have_limits_and_all_are_consumed(unit, engine, limits, messages_max):
    freed = asyncio.Event()
    most = 0

    async def listen(message: StoredMessage) -> None:
        nonlocal most
        most = max(most, consumer.held_messages)
        await freed.wait()

    for number in range(400):
        await unit.send(body=b"%03d" % number, queue_id=number % 2)
    consumer = push(engine, listen, limits=limits)
    async with consumer:
        await asyncio.sleep(20)
        assert 20 <= consumer.held_messages <= messages_max
        freed.set()
        await asyncio.sleep(20)
        assert (consumer.counts.consumed, consumer.held_messages, consumer.held_bytes) == (400, 0, 0)
    assert most <= messages_max


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_queues_that_are_stuck_do_not_stop_the_others_when_the_memory_is_full(unit, engine, is_orderly):
    seen: list[int] = []

    async def listen(message: StoredMessage) -> None:
        if message.queue_id == 0:
            await asyncio.sleep(3_600)
        seen.append(message.queue_offset)

    for _ in range(100):
        await unit.send()
    limits = HoldLimits(messages_max=10)
    async with push(engine, listen, is_orderly=is_orderly, limits=limits, concurrency=20, close_timeout_ms=0):
        await asyncio.sleep(2)
        for _ in range(5):
            await unit.send(queue_id=1)
        await asyncio.sleep(2)
        assert seen == list(range(5))


@pytest.mark.parametrize("where", ["body", "magic"])
async def test_a_damaged_record_is_skipped_and_the_others_come(unit, engine, where):
    seen: list[bytes] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body)

    for body in (b"one", b"two", b"three"):
        await unit.send(body=body)
    damaged = list(iter_records(unit.store.get("T", 0, 0, 32).body))[1]
    folder = "/data/store/commitlog"
    memory = unit.files.find(f"{folder}/{min(unit.files.list_files(folder))[0]}").memory
    at = damaged.physical_offset + (4 if where == "magic" else damaged.size_bytes // 2)
    memory[at : at + 1] = bytes([memory[at : at + 1][0] ^ 0xFF])
    async with push(engine, listen):
        await asyncio.sleep(6)
        assert seen == [b"one", b"three"]
        assert await committed(unit) == 3


async def test_the_memory_of_a_queue_that_leaves_is_free_for_the_others(unit, engine):
    async def listen(message: StoredMessage) -> None:
        await asyncio.sleep(3_600)

    for number in range(40):
        await unit.send(queue_id=number // 20)
    options = {"is_orderly": True, "close_timeout_ms": 0, "revoke_timeout_ms": 0}
    limits = HoldLimits(messages_max=12)
    async with push(engine, listen, limits=limits, client_id="last", **options) as consumer:
        await asyncio.sleep(1)
        assert consumer.held_messages == 13
        async with engine_on(unit, seed=8) as other, push(other, listen, client_id="first", **options) as first:
            await asyncio.sleep(5)
            (moved,) = [queue.queue_id for queue in first.held if queue.topic == "T"]
            assert moved == 0
            assert consumer.held_messages == 12, "of the queue that is left, which held one message or twelve before"
