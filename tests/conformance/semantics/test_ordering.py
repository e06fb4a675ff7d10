"""Promises of ordered messages: through the client engine and a broker, on virtual time."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from gantry.client.producer import Producer
from gantry.model.message import Message, StoredMessage
from tests.support.brokerunit import BrokerUnit
from tests.support.handlerconsumer import HandlerConsumer
from tests.support.unitcluster import engine_on

KEYS = tuple("abcdefgh")
COUNT = 100
SEND_PAUSE_S = 0.3
HANDLING_S = 0.12


class Handled:
    """Numbers of the messages that handlers have finished, by ordering key."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.queues: dict[str, set[int]] = defaultdict(set)

    async def handle(self, message: StoredMessage) -> None:
        key, _, number = message.body.decode().partition("-")
        await asyncio.sleep(HANDLING_S)
        self.numbers[key].append(int(number))
        self.queues[key].add(message.queue_id)

    def assert_in_order(self) -> None:
        for key in KEYS:
            assert self.numbers[key] == list(range(COUNT)), key
            assert len(self.queues[key]) == 1, f"{key} is in the queues {self.queues[key]}"


async def send_all(producer: Producer) -> None:
    for number in range(COUNT):
        for key in KEYS:
            await producer.send(Message("T", f"{key}-{number}".encode()), ordering_key=key)
        await asyncio.sleep(SEND_PAUSE_S)


async def test_messages_of_one_key_are_handled_in_their_order_while_consumers_come_and_go() -> None:
    async with BrokerUnit() as unit, AsyncExitStack() as stack:
        await unit.make_topic("T", queues=4)
        engines = [await stack.enter_async_context(engine_on(unit, seed)) for seed in range(3)]
        handled = Handled()
        first, second = (HandlerConsumer(one, "g", ["T"], handled.handle, is_orderly=True) for one in engines[:2])
        await first.start()
        sending = asyncio.ensure_future(send_all(Producer(engines[2], "pg")))
        await asyncio.sleep(COUNT * SEND_PAUSE_S / 4)
        await second.start()
        await asyncio.sleep(COUNT * SEND_PAUSE_S / 2)
        assert first.held
        assert second.held
        await first.close()
        await sending
        await asyncio.sleep(60)
        assert len(second.held) == 4
        await second.close()
        handled.assert_in_order()


async def test_a_topic_with_one_queue_is_handled_in_the_order_of_its_messages() -> None:
    async with BrokerUnit() as unit, AsyncExitStack() as stack:
        await unit.make_topic("T", queues=1)
        engines = [await stack.enter_async_context(engine_on(unit, seed)) for seed in range(3)]
        bodies: list[bytes] = []

        async def handle(message: StoredMessage) -> None:
            await asyncio.sleep(HANDLING_S)
            bodies.append(message.body)

        consumers = [HandlerConsumer(one, "g", ["T"], handle, is_orderly=True) for one in engines[:2]]
        for consumer in consumers:
            await consumer.start()
        sent = [f"{number}".encode() for number in range(COUNT)]
        for body in sent:
            await Producer(engines[2], "pg").send(Message("T", body))
        await asyncio.sleep(30)
        assert bodies == sent
        assert sorted(len(consumer.held) for consumer in consumers) == [0, 1]
        for consumer in consumers:
            await consumer.close()
