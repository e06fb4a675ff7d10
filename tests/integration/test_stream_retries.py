"""Messages that a stream returns, against real brokers: they come again, and after the last attempt are dead letters."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from gantry.http import AsyncGantryClient, Message, OutgoingMessage, StreamClient, Subscription
from gantry.http.workresults import DeadLetter
from tests.support.stack import Stack

DEADLINE_MS = 60_000

_names = iter(range(1_000_000))


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncGantryClient]:
    async with AsyncGantryClient.from_stack(stack.directory) as made:
        yield made


@pytest.fixture
async def topic(client: AsyncGantryClient) -> str:
    name = f"RETRIES_{os.getpid()}_{next(_names)}"
    await client.put_topic(name, read_queues=1, write_queues=1)
    policy = {"kind": "delays", "delays_ms": [1_000]}
    await client.put_group(f"{name}_G", retry_policy=policy, retry_max_times=2)
    return name


async def send(client: AsyncGantryClient, topic: str, count: int) -> set[str]:
    bodies = [f"m{number}" for number in range(count)]
    result = await client.send_batch(topic, [OutgoingMessage(body) for body in bodies])
    assert result.stored == count
    return set(bodies)


async def take(subscription: Subscription, count: int) -> list[Message]:
    """Return messages until there are as many."""
    found: list[Message] = []
    while len(found) < count:
        batch = await subscription.next(timeout_ms=DEADLINE_MS)
        assert batch is not None, f"{len(found)} of {count} messages came"
        found += batch.messages
    return found


async def letters(client: AsyncGantryClient, group: str, count: int) -> list[DeadLetter]:
    """Return the group's dead letters as soon as there are as many."""
    async with asyncio.timeout(DEADLINE_MS / 1_000):
        while True:
            found = await client.list_dead_letters(group)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


async def test_a_message_that_always_fails_does_not_stop_others_and_becomes_one_dead_letter(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    group = f"{topic}_G"
    bodies = await send(client, topic, 20)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(group, topic, start="first")
        messages = await take(subscription, 20)
        assert {message.body.decode() for message in messages} == bodies
        poison = next(message for message in messages if message.body == b"m7")
        await subscription.ack([message for message in messages if message is not poison], wait=True)
        for attempt in (1, 2):
            await subscription.nack([poison])
            (again,) = await take(subscription, 1)
            assert (again.topic, again.body, again.message_id) == (topic, b"m7", poison.message_id)
            assert again.reconsume_times == attempt
            poison = again
        await subscription.nack([poison])
        (letter,) = await letters(client, group, 1)
        assert (letter.body, letter.reconsume_times) == (b"m7", 3)
        assert await subscription.next(timeout_ms=3_000) is None, "never a fourth delivery"
        await subscription.unsubscribe()
    assert not [offset for offset in await client.get_offsets(group) if offset.lag], "nothing is left"


async def test_a_delay_of_the_client_counts(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    await send(client, topic, 1)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"{topic}_G", topic, start="first")
        (message,) = await take(subscription, 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await subscription.nack([message], delay="0s")
        (message,) = await take(subscription, 1)
        assert loop.time() - began < 0.9, "at once, and not with the group's delay"
        began = loop.time()
        await subscription.nack([message], delay="3s")
        (message,) = await take(subscription, 1)
        assert loop.time() - began >= 2
        assert message.reconsume_times == 2
        await subscription.ack([message], wait=True)


async def test_a_message_comes_back_to_another_member_if_this_one_has_left(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    await send(client, topic, 1)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"{topic}_G", topic, start="first")
        await subscription.nack(await take(subscription, 1))
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"{topic}_G", topic, start="first")
        (message,) = await take(subscription, 1)
        assert message.reconsume_times == 1


async def test_an_ordered_queue_goes_on_after_the_last_attempt(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    group = f"{topic}_G"
    await client.send_batch(topic, [OutgoingMessage(f"m{number}", ordering_key="k") for number in range(3)])
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(
            group, topic, start="first", batch=1, order="orderly", max_reconsume_times=1
        )
        seen: list[tuple[bytes, int]] = []
        while len(seen) < 4:
            (message,) = await take(subscription, 1)
            seen.append((message.body, message.reconsume_times))
            if message.body == b"m0":
                await subscription.nack([message], delay="10ms")
            else:
                await subscription.ack([message])
        assert seen == [(b"m0", 0), (b"m0", 1), (b"m1", 0), (b"m2", 0)]
        (letter,) = await letters(client, group, 1)
        assert letter.body == b"m0"
