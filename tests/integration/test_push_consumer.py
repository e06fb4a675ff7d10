"""A consumer with a listener against a real name server and a real broker, which is killed under it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gantry.client import (
    ClientEngine,
    ClientError,
    ClientSettings,
    ListenerSettings,
    LocalOffsets,
    Producer,
    PushConsumer,
    StartPosition,
)
from gantry.model.group import ConsumeFromWhere, MessageModel
from gantry.model.message import Message, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of, wait_until

COUNT = 600
TIMEOUT_S = 90.0
SETTINGS = ListenerSettings(suspend_ms=100)
FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


async def send_all(engine: ClientEngine, stored: list[str]) -> None:
    """Send COUNT messages, each until it is stored."""
    producer = Producer(engine, "pg")
    for number in range(COUNT):
        body = f"{number % 4}-{number}"
        while True:
            try:
                await producer.send(Message("T", body.encode()), ordering_key=f"{number % 4}")
            except ClientError:
                await asyncio.sleep(0.1)  # The message may be stored, and is then stored twice.
            else:
                break
        stored.append(body)
        await asyncio.sleep(0.005)


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def started(stack: AsyncExitStack, folder: Path) -> tuple[NamesrvProcess, BrokerProcess, ClientEngine]:
    """Start a name server, a broker with the topic T of four queues, and an engine."""
    namesrv = stack.enter_context(NamesrvProcess(folder / "namesrv"))
    broker = stack.enter_context(BrokerProcess(folder, namesrv=namesrv.address))
    async with peer_of(broker.address) as peer:
        await peer.make_topic("T", queues=4)
        await wait_until(lambda: peer.route("T", namesrv.address), "the route")
    settings = ClientSettings(namesrv=(namesrv.address,), poll_namesrv_interval_ms=1_000)
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    stack.push_async_callback(engine.stop)
    return namesrv, broker, engine


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_nothing_is_lost_if_the_broker_is_killed_under_a_listener(tmp_path: Path, *, is_orderly: bool) -> None:
    seen: list[str] = []
    rng = Rng(11)

    async def listen(message: StoredMessage) -> None:
        await asyncio.sleep(rng.below(10) / 1000)
        if not message.reconsume_times and rng.below(50) == 0:
            raise ValueError("a passing failure")
        seen.append(message.body.decode())

    async with AsyncExitStack() as stack:
        namesrv, broker, engine = await started(stack, tmp_path)
        consumer = PushConsumer(engine, "g", ["T"], listen, is_orderly=is_orderly, start=FIRST, settings=SETTINGS)
        await consumer.start()
        stored: list[str] = []
        sending = asyncio.ensure_future(send_all(engine, stored))
        port = int(broker.address.rpartition(":")[2])
        for part in (1, 2):
            await wait_for(lambda part=part: len(stored) >= part * COUNT // 3)  # type: ignore[misc]
            broker.kill()
            broker = stack.enter_context(BrokerProcess(tmp_path, namesrv=namesrv.address, port=port))
        async with asyncio.timeout(TIMEOUT_S):
            await sending
        await wait_for(lambda: set(stored) <= set(seen))
        await consumer.close()
        # A killed broker forgets the latest commits.
        assert max(Counter(seen).values()) <= 4
        if is_orderly:
            for key in range(4):
                first_seen = list(dict.fromkeys(body for body in seen if body.startswith(f"{key}-")))
                assert first_seen == [body for body in stored if body.startswith(f"{key}-")]


def broadcasting(
    folder: Path,
) -> tuple[Callable[[ClientEngine, str], PushConsumer], dict[str, list[tuple[str, str]]]]:
    """Return a function that makes a broadcasting consumer with a name, and the messages that each name gets."""
    seen: dict[str, list[tuple[str, str]]] = {"one": [], "two": []}

    def consumer_of(engine: ClientEngine, name: str) -> PushConsumer:
        async def listen(message: StoredMessage) -> None:
            seen[name].append((message.body.decode(), message.stored_id))

        offsets = LocalOffsets(str(folder))
        model = MessageModel.BROADCASTING
        return PushConsumer(
            engine, "g", ["T"], listen, start=FIRST, message_model=model, local_offsets=offsets, client_id=name
        )

    return consumer_of, seen


async def test_every_broadcasting_consumer_gets_all_messages_although_the_broker_and_the_consumers_end(
    tmp_path: Path,
) -> None:
    consumer_of, seen = broadcasting(tmp_path / "offsets")
    async with AsyncExitStack() as stack:
        namesrv, broker, engine = await started(stack, tmp_path)
        consumers = {name: consumer_of(engine, name) for name in seen}
        for consumer in consumers.values():
            await consumer.start()
        stored: list[str] = []
        sending = asyncio.ensure_future(send_all(engine, stored))
        await wait_for(lambda: len(stored) >= COUNT // 3)
        await consumers["two"].close()
        away_from = len(seen["two"])
        broker.kill()
        port = int(broker.address.rpartition(":")[2])
        stack.enter_context(BrokerProcess(tmp_path, namesrv=namesrv.address, port=port))
        await wait_for(lambda: len(stored) >= 2 * COUNT // 3)
        await (again := consumer_of(engine, "two")).start()
        async with asyncio.timeout(TIMEOUT_S):
            await sending
        await wait_for(lambda: all(set(stored) <= {body for body, _ in each} for each in seen.values()))
        await asyncio.gather(consumers["one"].close(), again.close())
    # The offsets were written at the close, so the second consumer went on where it ended.
    assert not set(seen["two"][:away_from]) & set(seen["two"][away_from:])
