"""Consuming by receipt with the Python clients, blocking and asyncio, against real brokers: each call and its typed results."""

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry.http import AsyncGantryClient, GantryClient, GantryProblem, Message, OutgoingMessage
from gantry.http.consumeresults import Extensions, PulledMessages, ReceiptResult
from tests.support.stack import Stack

TIMEOUT_S = 60


class Library:
    """One of the two clients. Each method is called by its name, and awaited."""

    def __init__(self, client: GantryClient | AsyncGantryClient) -> None:
        self._client = client

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        method = getattr(self._client, name)
        if inspect.iscoroutinefunction(method):
            return await method(*arguments, **options)
        return await asyncio.to_thread(method, *arguments, **options)

    async def pull(self, group: str, topic: str, count: int, **options: Any) -> list[Message]:
        """Pull until so many messages came."""
        found: list[Message] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < count:
                pulled = await self.call("pull", group, topic, wait_ms=1_000, **options)
                assert isinstance(pulled, PulledMessages)
                assert pulled.damaged == []
                found += pulled.messages
        assert len(found) == count
        return found


@asynccontextmanager
async def opened(stack: Stack, kind: str) -> AsyncIterator[Library]:
    if kind == "asyncio":
        async with AsyncGantryClient.from_stack(stack.directory) as client:
            yield Library(client)
    else:
        with GantryClient.from_stack(stack.directory) as blocking:
            yield Library(blocking)


@pytest.fixture(params=["blocking", "asyncio"])
async def library(stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Library]:
    async with opened(stack, request.param) as made:
        yield made


@pytest.fixture
async def topic(library: Library) -> str:
    name = f"T{uuid.uuid4().hex[:12]}"
    await library.call("put_topic", name, read_queues=1, write_queues=1, brokers=["broker-a"])
    for number in range(4):
        sent = OutgoingMessage(f"m{number}", tag="even" if number % 2 == 0 else "odd", properties={"n": str(number)})
        await library.call("send", name, sent)
    return name


def outcomes(results: list[ReceiptResult]) -> list[str]:
    return [result.outcome for result in results]


async def test_each_message_is_settled_by_its_receipt(library: Library, topic: str) -> None:
    done, failed, slow, left = await library.pull("G", topic, 4)
    assert [message.text for message in (done, failed, slow, left)] == ["m0", "m1", "m2", "m3"]
    assert len({message.receipt for message in (done, failed, slow, left)}) == 4

    results = await library.call("ack", "G", [done.receipt, "nonsense", done.receipt])
    assert outcomes(results) == ["acked", "refused", "gone"]
    assert [result.receipt for result in results] == [done.receipt, "nonsense", done.receipt]
    problem = results[1].problem
    assert (problem.name, problem.status, problem.field) == ("invalid-field", 400, "/receipts/1")

    extended = await library.call("extend", "G", [slow.receipt, done.receipt], invisible_ms=3_600_000)
    assert isinstance(extended, Extensions)
    assert outcomes(extended.results) == ["extended", "gone"]
    receipt, none = extended.receipts
    assert (none, receipt != slow.receipt) == (None, True)
    assert outcomes(await library.call("ack", "G", [slow.receipt])) == ["gone"]
    assert outcomes(await library.call("ack", "G", [receipt])) == ["acked"]

    assert outcomes(await library.call("nack", "G", [failed.receipt], delay_ms=1_000)) == ["nacked"]
    (again,) = await library.pull("G", topic, 1)
    assert (again.text, again.reconsume_times, failed.reconsume_times) == ("m1", 1, 0)
    assert outcomes(await library.call("ack", "G", [again.receipt, failed.receipt])) == ["acked", "gone"]
    # Without a delay, the group's retry policy says when it comes again.
    assert outcomes(await library.call("nack", "G", [left.receipt])) == ["nacked"]


async def test_a_repeated_pull_gets_the_messages_of_the_first(library: Library, topic: str) -> None:
    first = await library.call("pull", "REPEATING", topic, max_messages=2, attempt_id="one", wait_ms=5_000)
    again = await library.call("pull", "REPEATING", topic, max_messages=2, attempt_id="one", wait_ms=5_000)
    other = await library.call("pull", "REPEATING", topic, attempt_id="two", wait_ms=5_000)
    assert [message.text for message in first.messages] == ["m0", "m1"]
    assert [message.text for message in again.messages] == ["m0", "m1"]
    assert [message.text for message in other.messages] == ["m2", "m3"]


async def test_filters_and_order(library: Library, topic: str) -> None:
    tagged = await library.pull("TAGS", topic, 2, expression="odd || none")
    assert [message.text for message in tagged] == ["m1", "m3"]
    selected = await library.pull("SQL", topic, 2, expression={"sql": "n > 1"})
    assert [message.text for message in selected] == ["m2", "m3"]
    (first,) = await library.pull("ORDER", topic, 1, orderly=True, max_messages=1)
    assert (await library.call("pull", "ORDER", topic, orderly=True, max_messages=1)).messages == []
    await library.call("ack", "ORDER", [first.receipt])
    (second,) = await library.pull("ORDER", topic, 1, orderly=True, max_messages=1)
    assert [first.text, second.text] == ["m0", "m1"]


async def test_an_empty_topic_answers_after_its_wait(library: Library, topic: str) -> None:
    await library.pull("ALL", topic, 4)
    assert (await library.call("pull", "ALL", topic, wait_ms=100)).messages == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_messages": 0}, "/max"),
        ({"wait_ms": 31_000}, "/wait"),
        ({"invisible_ms": 9_000}, "/invisible"),
        ({"expression": {"sql": "n LIKE '1'"}}, "/filter/sql"),
        ({"expression": "||"}, "/filter"),
    ],
)
async def test_a_wrong_value_is_named(library: Library, topic: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(GantryProblem) as caught:
        await library.call("pull", "G", topic, **options)
    assert (caught.value.status, caught.value.problem.field) == (400, field)


async def test_what_does_not_exist_is_named(library: Library) -> None:
    with pytest.raises(GantryProblem) as caught:
        await library.call("pull", "G", "NO_SUCH_TOPIC")
    assert (caught.value.name, caught.value.retryable) == ("unknown-topic", False)
    with pytest.raises(GantryProblem) as caught:
        await library.call("ack", "G", [])
    assert (caught.value.status, caught.value.problem.field) == (400, "/receipts")
