"""The lag report of a real stack against what the test itself knows, computed without a line of the product's code.

Groups are put into every situation that a person would want explained, all at once, since a run of Spark takes seconds.
Two processes keep two cores busy meanwhile: numbers have to be of the moment that they name on a busy machine, too.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from gantry.client.consumer.offsets import Offsets
from gantry.http import AsyncGantryClient, OutgoingMessage, StreamClient
from gantry.http.results import OffsetCommit
from gantry.model.message import MessageQueue
from gantry.model.names import is_retry_topic
from tests.fault.load import client as remoting_client
from tests.support.stack import Stack

BROKER = "broker-a"
QUEUES, PER_QUEUE, CONSUMED = 4, 60, 20
HOT_QUEUE, HOT_MESSAGES = 2, 1_500
FLOWING, CONSUMED_STEP, SENT_STEP, STEP_S = 12_000, 10, 4, 0.1
SAMPLED_S = 16.0
BUSY = "while True: pass"
TAGS = ("A", "B", "C")
GROUPS_OF_ORDERS = ("quiet", "stopped", "filtered", "selected", "never", "paused", "rewound")
FILTERED = {"filtered": "A", "selected": {"sql": "TAGS = 'A' OR TAGS IS NULL"}}
PULLED = {"sql": "TAGS = 'B'"}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    often = {"GANTRY_GATEWAY_SAMPLE_INTERVAL_MS": "1000", "GANTRY_GATEWAY_MIRROR_INTERVAL_MS": "1000"}
    with Stack(brokers=1, environment=often, scheduler=True) as running:
        yield running


class Flow:
    """The messages and their times: each step happened between the beginning and the end of its request."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, int]] = []

    @contextlib.asynccontextmanager
    async def step(self, messages: int) -> AsyncIterator[None]:
        """Note a step that the block makes, with the total after it."""
        began = _now()
        yield
        self._steps.append((began, _now(), messages))

    def at(self, moment: float) -> float:
        """Return the total at a moment, if each step happened in the middle of its request."""
        return max((total for began, ended, total in self._steps if (began + ended) / 2 <= moment), default=0)

    def bounds(self, begin: float, end: float) -> tuple[int, int]:
        """Return the least and the most that the total can have been at some moment of a stretch of time."""
        low = max((total for _, ended, total in self._steps if ended <= begin), default=0)
        return low, max((total for began, _, total in self._steps if began <= end), default=0)

    def rate(self, begin: float, end: float) -> float:
        """Return messages a second between two moments."""
        return (self.at(end) - self.at(begin)) / (end - begin)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep cores busy while the block runs."""
    burning = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


class World:
    """The test's own record of its steps."""

    def __init__(self, client: AsyncGantryClient) -> None:
        self.client = client
        self.stored_at: dict[tuple[str, int], list[datetime]] = {}
        self.tags: dict[tuple[str, int], list[str]] = {}
        self.sent, self.consumed = Flow(), Flow()
        self.stop_flow = asyncio.Event()

    async def fill(self, topic: str, counts: dict[int, int]) -> None:
        """Send so many messages to each queue, and remember when each was stored, as they are read back."""
        await self.client.put_topic(topic, read_queues=QUEUES, write_queues=QUEUES)
        for queue, count in counts.items():
            for start in range(0, count, 1000):
                messages = [
                    OutgoingMessage(f"{number}", tag=TAGS[number % 3], queue={"broker": BROKER, "id": queue})
                    for number in range(start, min(count, start + 1000))
                ]
                sent = await self.client.send_batch(topic, messages)
                assert sent.stored == len(messages), sent
            if count < FLOWING:
                await self._read_back(topic, queue, count)

    async def _read_back(self, topic: str, queue: int, count: int) -> None:
        read: list[Any] = []
        while len(read) < count:
            read += (await self.client.read_queue(topic, BROKER, queue, offset=len(read), limit=200)).messages
        assert [message.queue_offset for message in read] == list(range(count))
        self.stored_at[topic, queue] = [datetime.fromisoformat(message.stored_at) for message in read]
        self.tags[topic, queue] = [message.tag for message in read]

    async def commit(self, group: str, topic: str, offset: int, queues: range = range(QUEUES)) -> None:
        """Set where a group is."""
        commits = [OffsetCommit(topic, BROKER, queue, offset) for queue in queues]
        results = await self.client.commit_offsets(group, commits)
        assert all(result.outcome == "committed" for result in results), results

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Send to topic FLOW, and consume as group "flowing", on a busy machine, while the block runs."""
        with busy(processes=2):
            async with asyncio.TaskGroup() as flow:
                flow.create_task(self.consume("flowing", "FLOW"))
                flow.create_task(self.produce("FLOW"))
                try:
                    yield
                finally:
                    self.stop_flow.set()

    async def consume(self, group: str, topic: str) -> None:
        """Commit a step every STEP_S, until told to stop."""
        async for number in self._beats():
            total = number * CONSUMED_STEP
            async with self.consumed.step(total):
                await self.commit(group, topic, total, range(1))

    async def produce(self, topic: str) -> None:
        """Send a step every STEP_S, until told to stop."""
        async for number in self._beats():
            messages = [OutgoingMessage("flowing", queue={"broker": BROKER, "id": 0})] * SENT_STEP
            async with self.sent.step(FLOWING + (number + 1) * SENT_STEP):
                sent = await self.client.send_batch(topic, messages)
            assert sent.stored == SENT_STEP, sent

    async def _beats(self) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(FLOWING // CONSUMED_STEP):
            if self.stop_flow.is_set():
                return
            await asyncio.sleep(max(0.0, began + number * STEP_S - loop.time()))
            yield number

    def oldest(self, topic: str, queue: int, committed: int, tags: tuple[str, ...] = TAGS) -> datetime | None:
        """When the first message that was not consumed was stored, of those with such a tag."""
        for offset in range(committed, len(self.stored_at[topic, queue])):
            if self.tags[topic, queue][offset] in tags:
                return self.stored_at[topic, queue][offset]
        return None


async def rewind(stack: Stack, group: str, topic: str, offset: int) -> None:
    """Set a group's offsets as a RocketMQ client does: HTTP refuses that while members are connected."""
    async with remoting_client(stack.facts["namesrv"][0]) as engine:
        for queue in range(QUEUES):
            await Offsets(engine).commit_offset(group, MessageQueue(topic, BROKER, queue), offset)


@contextlib.asynccontextmanager
async def consumer(
    stack: Stack, group: str, topic: str, wanted: Callable[[Any], bool], *, count: int, expression: Any = "*"
) -> AsyncIterator[None]:
    """Be a group's consumer while the block runs, which begins when `count` messages, those wanted, are acked."""
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(
            group, topic, expression=expression, start="first", credit_messages=2_000, batch=64
        )
        acked = 0
        while acked < count:
            batch = await subscription.next(timeout_ms=30_000)
            assert batch is not None, f"{acked} of {count} came to {group}"
            consumed = [message for message in batch.messages if wanted(message)]
            await subscription.ack(consumed, wait=True)
            acked += len(consumed)
        yield


async def committed(client: AsyncGantryClient, group: str, topic: str) -> dict[int, int]:
    """Return the position of a group from the plain API."""
    found = await client.get_offsets(group, topic=topic)
    return {offset.queue_id: offset.committed_offset or 0 for offset in found}


async def report(stack: Stack, *arguments: str) -> Any:
    """Run `gantry report …` as a person would and return the JSON it prints."""
    command = [sys.executable, "-m", "gantry.cli", "report", *arguments, "--json", "--data", str(stack.directory)]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, error = await process.communicate()
    assert process.returncode == 0, f"{error.decode()}\n{stack.printed()}"
    return json.loads(out)


class Report:
    """The rows of a run. Streams consume the retry topics of their groups, too; those rows are left out here."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def topic(self, group: str) -> dict[str, Any]:
        """The one topic row of a group that has one topic."""
        found = [row for row in self._rows_of(group) if row["level"] == "topic"]
        assert len(found) == 1, f"{group}: {found}"
        return found[0]

    def queues(self, group: str) -> dict[int, dict[str, Any]]:
        return {row["queue_id"]: row for row in self._rows_of(group) if row["level"] == "queue"}

    def _rows_of(self, group: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["group"] == group and not is_retry_topic(row["topic"])]


@contextlib.asynccontextmanager
async def polling(client: AsyncGantryClient, group: str, topic: str) -> AsyncIterator[None]:
    """Pull a message over HTTP and ack it, again and again, while the block runs."""

    async def poll() -> None:
        while True:
            pulled = await client.pull(group, topic, max_messages=1, expression=PULLED)
            if pulled.messages:
                await client.ack(group, [message.receipt for message in pulled.messages])
            await asyncio.sleep(0.5)

    task = asyncio.create_task(poll())
    try:
        yield
        assert not task.done(), "it pulls until the end"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def told(stack: Stack) -> tuple[World, Report, dict[str, dict[int, int]]]:
    """Do everything, run the report once, and return what is known, what it says, and where groups were."""
    async with AsyncGantryClient.from_stack(stack.directory) as client, contextlib.AsyncExitStack() as connected:
        world = World(client)
        await world.fill("ORDERS", dict.fromkeys(range(QUEUES), PER_QUEUE))
        await world.fill("HOT", {queue: HOT_MESSAGES if queue == HOT_QUEUE else CONSUMED for queue in range(QUEUES)})
        await world.fill("FLOW", {0: FLOWING})
        everything = QUEUES * PER_QUEUE
        for group in ("quiet", "gone"):
            async with consumer(stack, group, "ORDERS", lambda message: True, count=everything):
                pass
        await client.delete_group("gone")
        async with consumer(stack, "stopped", "ORDERS", lambda m: m.queue_offset < CONSUMED, count=QUEUES * CONSUMED):
            await asyncio.sleep(2.5)  # The gateway notes once a second who is there.
        for group, expression in (FILTERED | {"polls": "A"}).items():
            async with consumer(
                stack, group, "ORDERS", lambda m: m.queue_offset < CONSUMED, count=QUEUES * 7, expression=expression
            ):
                await asyncio.sleep(2.5)
        for group in ("never", "paused", "flowing"):
            await client.put_group(group, consume=group != "paused")
        await world.commit("never", "ORDERS", 0)
        await world.commit("paused", "ORDERS", CONSUMED)
        await connected.enter_async_context(
            consumer(stack, "rewound", "ORDERS", lambda message: True, count=everything)
        )
        hot = (QUEUES - 1) * CONSUMED
        await connected.enter_async_context(
            consumer(stack, "hot", "HOT", lambda message: message.queue_id != HOT_QUEUE, count=hot)
        )
        await connected.enter_async_context(polling(client, "polls", "ORDERS"))
        async with world.flowing():
            await asyncio.sleep(SAMPLED_S / 2)
            await rewind(stack, "rewound", "ORDERS", 5)
            await asyncio.sleep(SAMPLED_S / 2)
            places = {group: await committed(client, group, "ORDERS") for group in GROUPS_OF_ORDERS}
            places["hot"] = await committed(client, "hot", "HOT")
            rows = await report(stack, "run", "lag_report", "--wait")
    return world, Report(rows), places


@pytest.mark.parametrize("group", [*GROUPS_OF_ORDERS, "hot"])
async def test_every_number_of_a_queue_is_true(told: Any, group: str) -> None:
    world, said, places = told
    topic, tags = ("HOT" if group == "hot" else "ORDERS"), (("A",) if group in FILTERED else TAGS)
    rows = said.queues(group)
    assert sorted(rows) == list(range(QUEUES))
    for queue, row in rows.items():
        at = places[group][queue]
        assert row["lag_messages"] == len(world.stored_at[topic, queue]) - at
        oldest = world.oldest(topic, queue, at, tags)
        assert row["oldest_unconsumed_at"] == (None if oldest is None else _iso(oldest))
        expected = 0 if oldest is None else (datetime.fromisoformat(row["as_of"]) - oldest).total_seconds()
        assert row["lag_seconds"] == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("group", [*GROUPS_OF_ORDERS, "hot"])
async def test_a_topic_is_as_late_as_its_latest_queue(told: Any, group: str) -> None:
    _, said, _ = told
    row, queues = said.topic(group), said.queues(group).values()
    assert row["lag_messages"] == sum(queue["lag_messages"] for queue in queues)
    assert row["lag_seconds"] == max(queue["lag_seconds"] for queue in queues)
    if row["lag_messages"]:
        lags = [queue["lag_messages"] for queue in queues]
        assert row["skew"] == pytest.approx(max(lags) / (sum(lags) / len(lags)))


@pytest.mark.parametrize(
    ("group", "verdict"),
    [
        ("quiet", "OK"),
        ("stopped", "STOPPED"),
        ("filtered", "STOPPED"),
        ("selected", "STOPPED"),
        ("never", "NO_CONSUMER"),
        ("paused", "PAUSED"),
        ("rewound", "REWOUND"),
        ("hot", "HOT_QUEUE"),
    ],
)
async def test_the_verdict_says_why(told: Any, group: str, verdict: str) -> None:
    _, said, _ = told
    row = said.topic(group)
    assert row["verdict"] == verdict, row
    assert row["cause"]
    assert row["evidence"]
    assert (row["next_step"] is not None) == (verdict != "OK")


async def test_a_group_that_was_connected_and_now_pulls_over_http_is_served_and_filtered(told: Any) -> None:
    world, said, _ = told
    row = said.topic("polls")
    assert (row["verdict"], row["clients"]) == ("OK", 1), row
    assert row["evidence"]["filter"] == PULLED["sql"]
    for queue, one in said.queues("polls").items():
        oldest = world.oldest("ORDERS", queue, one["evidence"]["committed_offset"], ("B",))
        assert one["oldest_unconsumed_at"] == (None if oldest is None else _iso(oldest))


async def test_a_group_that_was_deleted_is_not_in_it(told: Any) -> None:
    _, said, _ = told
    assert not [row for row in said.rows if row["group"] == "gone"]


async def test_numbers_are_of_the_moment_that_they_name(told: Any) -> None:
    world, said, _ = told
    row = said.topic("flowing")
    read_at = datetime.fromisoformat(row["as_of"]).timestamp()
    fewest_sent, most_sent = world.sent.bounds(read_at, read_at)
    least_consumed, most_consumed = world.consumed.bounds(read_at, read_at)
    assert fewest_sent - most_consumed <= row["lag_messages"] <= most_sent - least_consumed
    queue = said.queues("flowing")[0]["evidence"]
    assert fewest_sent <= queue["max_offset"] <= most_sent
    assert least_consumed <= queue["committed_offset"] <= most_consumed


async def test_rates_are_those_of_the_window_that_they_name(told: Any) -> None:
    world, said, _ = told
    row = said.topic("flowing")
    read_at = datetime.fromisoformat(row["as_of"]).timestamp()
    window = read_at - row["evidence"]["covered_s"], read_at
    assert row["in_rate"] == pytest.approx(world.sent.rate(*window), rel=0.02)
    assert row["out_rate"] == pytest.approx(world.consumed.rate(*window), rel=0.02)
    assert row["drain_eta_s"] == pytest.approx(row["lag_messages"] / (row["out_rate"] - row["in_rate"]))


async def test_the_rows_are_served_as_they_were_printed(stack: Stack, told: Any) -> None:
    _, said, _ = told
    served = await report(stack, "show", "lag_report")
    assert sorted(map(json.dumps, served)) == sorted(map(json.dumps, said.rows))


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
