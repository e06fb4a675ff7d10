"""Publishers that lost the answer of a gateway, and publish again: a topic with a duplicate window has each message once.

A proxy before the gateway loses the answer: the messages are stored, and the connection of the publisher ends.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from gantry.http import (
    AsyncGantryClient,
    BatchResult,
    GantryConnectionError,
    Message,
    OutgoingMessage,
    SendResult,
    StreamClient,
)
from tests.support.gatewayprocess import GatewayProcess
from tests.support.lossyproxy import LossyProxy, TextAnswers
from tests.support.stack import Stack

RECONNECT_TIMEOUT_S = 30


@pytest.fixture(scope="module")
def other_gateway(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(stack, tmp_path_factory.mktemp("gateway-1")) as gateway:
        yield gateway


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncGantryClient]:
    async with AsyncGantryClient.from_stack(stack.directory) as made:
        yield made


@pytest.fixture(params=["window", "plain"])
async def topic(client: AsyncGantryClient, request: pytest.FixtureRequest) -> str:
    name = f"{request.param}_{uuid.uuid4().hex[:12]}"
    window = {"duplicate_window": "10m"} if request.param == "window" else {}
    await client.put_topic(name, read_queues=2, write_queues=2, **window)
    return name


def proxy_of(stack: Stack, text: bytes, losses: int = 1) -> LossyProxy:
    host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
    return LossyProxy(("127.0.0.1", 0), (host, int(port)), TextAnswers(text, losses))


def messages() -> list[OutgoingMessage]:
    return [OutgoingMessage(f"body {number}", idempotency_key=f"order-{number}") for number in range(8)]


async def stored(client: AsyncGantryClient, topic: str) -> dict[str, list[Message]]:
    """Return the stored messages of a topic by their ids."""
    found: dict[str, list[Message]] = {}
    for queue in await client.list_queues(topic):
        for message in (await client.read_queue(topic, queue.broker, queue.queue_id, limit=100)).messages:
            found.setdefault(message.message_id, []).append(message)
    return found


async def check(client: AsyncGantryClient, topic: str, sent: int, results: Sequence[SendResult]) -> None:
    """Check the results of the last of `sent` sends of the same messages."""
    found = await stored(client, topic)
    is_window = topic.startswith("window")
    assert Counter(len(copies) for copies in found.values()) == {1 if is_window else sent: len(results)}
    assert [result.outcome for result in results] == ["stored"] * len(results)
    assert {result.replayed for result in results} == {is_window}
    places = {(copy.message_id, copy.stored_id) for copies in found.values() for copy in copies}
    assert {(result.message_id, result.stored_id) for result in results} <= places


async def publish_until_answered(stream: StreamClient, topic: str) -> tuple[int, BatchResult]:
    """Publish the same messages until there is an answer; return the number of publishes that reached the gateway."""
    sent = 0
    async with asyncio.timeout(RECONNECT_TIMEOUT_S):
        while True:
            try:
                result = await stream.publish(topic, messages())
            except GantryConnectionError as error:
                sent += error.outcome == "unknown"
                await asyncio.sleep(0.02)
                continue
            return sent + 1, result


@pytest.mark.parametrize("coding", ["msgpack", "json"])
async def test_a_stream_connects_again_and_publishes_again(
    stack: Stack, client: AsyncGantryClient, topic: str, coding: str
) -> None:
    with proxy_of(stack, b"published", losses=3) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with StreamClient(url, stack.facts["api_key"], coding=coding) as stream:
            sent, result = await publish_until_answered(stream, topic)
            assert stream.connections_count == 4
    assert (proxy.lost, sent) == (3, 4)
    await check(client, topic, sent, result.results)


async def test_a_publisher_goes_to_another_gateway(
    stack: Stack, client: AsyncGantryClient, other_gateway: GatewayProcess, topic: str
) -> None:
    key = stack.facts["api_key"]
    with proxy_of(stack, b"published") as proxy:
        async with StreamClient(f"http://127.0.0.1:{proxy.port}", key, reconnect=False) as stream:
            with pytest.raises(GantryConnectionError) as caught:
                await stream.publish(topic, messages())
    assert caught.value.outcome == "unknown"
    async with StreamClient(other_gateway.url, key) as stream:
        result = await stream.publish(topic, messages())
    await check(client, topic, 2, result.results)


async def test_a_batch_over_http_is_sent_again(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    with proxy_of(stack, b"HTTP/1.1 200") as proxy:
        async with AsyncGantryClient(f"http://127.0.0.1:{proxy.port}", stack.facts["api_key"]) as caller:
            with pytest.raises(GantryConnectionError) as caught:
                await caller.send_batch(topic, messages())
            assert caught.value.outcome == "unknown"
            result = await caller.send_batch(topic, messages())
    await check(client, topic, 2, result.results)


async def test_a_message_over_http_is_sent_again(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    with proxy_of(stack, b"HTTP/1.1 201") as proxy:
        async with AsyncGantryClient(f"http://127.0.0.1:{proxy.port}", stack.facts["api_key"]) as caller:
            with pytest.raises(GantryConnectionError) as caught:
                await caller.send(topic, messages()[0])
            assert caught.value.outcome == "unknown"
            result = await caller.send(topic, messages()[0])
    await check(client, topic, 2, [result])
