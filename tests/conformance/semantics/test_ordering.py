"""Promises of ordered messages: through the client engine and a broker, on virtual time."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from gantry.client import ClientEngine, MessageListener, Producer, PushConsumer, StartPosition
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import Message, StoredMessage
from tests.support.brokerunit import BrokerUnit
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


def orderly(engine: ClientEngine, listener: MessageListener) -> PushConsumer:
    start = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    return PushConsumer(engine, "g", ["T"], listener, is_orderly=True, start=start)


def held_count(consumer: PushConsumer) -> int:
    """Return the number of the topic's queues that a consumer holds."""
    return sum(queue.topic == "T" for queue in consumer.held)


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
        first, second = (orderly(one, handled.handle) for one in engines[:2])
        await first.start()
        sending = asyncio.ensure_future(send_all(Producer(engines[2], "pg")))
        await asyncio.sleep(COUNT * SEND_PAUSE_S / 4)
        await second.start()
        await asyncio.sleep(COUNT * SEND_PAUSE_S / 2)
        assert held_count(first)
        assert held_count(second)
        await first.close()
        await sending
        await asyncio.sleep(60)
        assert held_count(second) == 4
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

        consumers = [orderly(one, handle) for one in engines[:2]]
        for consumer in consumers:
            await consumer.start()
        sent = [f"{number}".encode() for number in range(COUNT)]
        for body in sent:
            await Producer(engines[2], "pg").send(Message("T", body))
        await asyncio.sleep(30)
        assert bodies == sent
        assert sorted(held_count(consumer) for consumer in consumers) == [0, 1]
        await asyncio.gather(*(consumer.close() for consumer in consumers))
