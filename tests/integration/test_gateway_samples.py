"""Samples against real brokers and a real Postgres: values are right, and unreachable brokers delay nothing."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import psycopg
import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.offsets import Offsets
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.group import parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.model.sampleblock import Kind
from gantry.remoting.codes import RequestCode
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support import sampleblocks
from tests.support.heartbeats import consumer_beat
from tests.support.stack import Stack

FAST = {
    "GANTRY_GATEWAY_SAMPLE_INTERVAL_MS": "300",
    "GANTRY_GATEWAY_MIRROR_INTERVAL_MS": "300",
    "GANTRY_GATEWAY_BROKER_TIMEOUT_MS": "1000",
}
DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2, environment=FAST) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
async def engine(stack: Stack) -> AsyncIterator[ClientEngine]:
    engine = ClientEngine(ClientSettings(namesrv=tuple(stack.facts["namesrv"])), clock=SystemClock(), rng=Rng())
    await engine.start()
    yield engine
    await engine.stop()


def ask(stack: Stack, query: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.facts["postgres"]) as connection:
        return connection.execute(query, values).fetchall()


def newest(stack: Stack, group: str | None, topic: str) -> dict[str, tuple[Any, ...]]:
    """Return by broker its newest sample: queue ids, min, max, committed offsets, the oldest message's store time, its
    time.
    """
    with psycopg.connect(stack.facts["postgres"]) as connection:
        return sampleblocks.newest(connection, group, topic)


def blocks_of(stack: Stack, group: str, topic: str) -> list[Kind]:
    """Return the kinds of the blocks that list a group."""
    with psycopg.connect(stack.facts["postgres"]) as connection:
        looks = sampleblocks.stored_blocks(connection)
    return [kind for _, kind, looked in looks if (group, topic) in sampleblocks.figures(looked)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited without success"
        time.sleep(0.05)


async def sampled(stack: Stack, group: str, topic: str, figures: tuple[Any, ...]) -> bool:
    """Wait until the newest sample at broker-a has these figures."""
    await asyncio.to_thread(
        wait_until, lambda: newest(stack, group, topic).get("broker-a", ())[: len(figures)] == figures
    )
    return True


def send(http: httpx.Client, topic: str, broker: str, queue_id: int, *tags: str) -> list[str]:
    sent = []
    for tag in tags:
        body = {"body": "m", "tag": tag, "queue": {"broker": broker, "id": queue_id}}
        answer = http.post(f"/v1/topics/{topic}/messages", json=body)
        assert answer.status_code == 201, answer.text
        sent.append(answer.json()["stored_id"])
    return sent


def commit(http: httpx.Client, group: str, topic: str, broker: str, queue_id: int, offset: int) -> None:
    assert http.put(f"/v1/groups/{group}", json={}).is_success
    facts = {"topic": topic, "broker": broker, "queue_id": queue_id, "offset": str(offset)}
    answer = http.put(f"/v1/groups/{group}/offsets", json={"offsets": [facts]}).json()
    assert answer["committed"] == 1, answer


def stored_at_ms(http: httpx.Client, stored_id: str) -> int:
    moment = datetime.fromisoformat(http.get(f"/v1/messages/{stored_id}").json()["stored_at"])
    return int(moment.timestamp() * 1_000)


def test_offsets_and_the_first_unconsumed_message_are_sampled(http, stack):
    assert http.put("/v1/topics/SAMPLED", json={"read_queues": 2, "write_queues": 2}).status_code == 201
    sent = send(http, "SAMPLED", "broker-a", 1, "A", "B", "C")
    commit(http, "READER", "SAMPLED", "broker-a", 1, 1)
    first = stored_at_ms(http, sent[1])
    expected = ([0, 1], [0, 0], [0, 3], [None, 1], first)
    wait_until(lambda: newest(stack, "READER", "SAMPLED").get("broker-a", ())[:5] == expected)
    # No offset was committed on the other broker, and rates are sums over all queues.
    elsewhere = ([0, 1], [0, 0], [0, 0], [None, None], "none")
    wait_until(lambda: newest(stack, "READER", "SAMPLED").get("broker-b", ())[:5] == elsewhere)
    commit(http, "READER", "SAMPLED", "broker-a", 1, 3)
    caught_up = ([0, 1], [0, 0], [0, 3], [None, 3], "none")
    wait_until(lambda: newest(stack, "READER", "SAMPLED")["broker-a"][:5] == caught_up)
    with psycopg.connect(stack.facts["postgres"]) as connection:
        pairs = {pair for _, _, looked in sampleblocks.stored_blocks(connection) for pair in looked.pairs}
    assert not [pair for pair in pairs if pair[1] == "TBW102" or pair[0] == "TOOLS_CONSUMER"]


def test_prometheus_sees_how_far_groups_are_behind(http, stack):
    assert http.put("/v1/topics/WATCHED", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    send(http, "WATCHED", "broker-a", 0, "A", "B", "C")
    for broker in ("broker-a", "broker-b"):
        commit(http, "WATCHER", "WATCHED", broker, 0, 0)

    def series(name: str) -> float | None:
        start = f'rocketmq_consumer_lag_{name}{{cluster="DefaultCluster",consumer_group="WATCHER",'
        lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(start)]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else None

    wait_until(lambda: series("messages") == 3)
    wait_until(lambda: (series("latency") or 0) > 500)
    commit(http, "WATCHER", "WATCHED", "broker-a", 0, 3)
    wait_until(lambda: (series("messages"), series("latency")) == (0, 0))


def test_a_queue_without_change_is_written_once(http, stack):
    assert http.put("/v1/topics/QUIET", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    send(http, "QUIET", "broker-a", 0, "A")
    commit(http, "QUIET_READER", "QUIET", "broker-a", 0, 0)
    wait_until(lambda: newest(stack, "QUIET_READER", "QUIET"))
    rounds = "SELECT count(*) FROM lag_sample_rounds WHERE missing = '{}'"
    [(before,)] = ask(stack, rounds)
    wait_until(lambda: ask(stack, rounds)[0][0] >= before + 4)
    # Blocks of all pairs are written every few minutes, and list the group in any case.
    changes = [kind for kind in blocks_of(stack, "QUIET_READER", "QUIET") if kind is Kind.CHANGES]
    # One block for each broker, and one more if the commit was seen before the message.
    assert len(changes) <= 3


def test_a_topic_that_is_only_produced_into_is_sampled_without_a_group(http, stack):
    assert http.put("/v1/topics/UNREAD", json={"read_queues": 2, "write_queues": 2}).status_code == 201
    send(http, "UNREAD", "broker-a", 1, "A", "B")

    def own(broker: str) -> tuple[Any, ...]:
        return newest(stack, None, "UNREAD").get(broker, ())[:5]

    nothing = [None, None]
    wait_until(lambda: own("broker-a") == ([0, 1], [0, 0], [0, 2], nothing, None))
    wait_until(lambda: own("broker-b") == ([0, 1], [0, 0], [0, 0], nothing, None))
    # Once a group commits, its samples replace the topic's, on all brokers.
    commit(http, "LATE_READER", "UNREAD", "broker-a", 1, 1)
    wait_until(lambda: newest(stack, "LATE_READER", "UNREAD"))
    send(http, "UNREAD", "broker-a", 0, "C")
    wait_until(lambda: newest(stack, "LATE_READER", "UNREAD")["broker-a"][2] == [1, 2])
    assert own("broker-a") == ([], [], [], [], None), "the samples of the topic alone are gone"
    wait_until(lambda: newest(stack, "LATE_READER", "UNREAD")["broker-b"][3] == nothing)


async def test_the_filter_of_the_group_selects_its_first_message(http, stack, engine):
    assert http.put("/v1/topics/FILTERED", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    sent = send(http, "FILTERED", "broker-a", 0, "A", "A", "B", "A", "B")

    async def changed(assigned, revoked):
        pass

    wanted = parse_tag_expression("FILTERED", "B", 1)
    member = GroupMember(engine, "FILTERING", [wanted], client_id="10.0.0.1@test", on_change=changed)
    await member.start()
    # The stream begins at the end.
    assert await sampled(stack, "FILTERING", "FILTERED", ([0], [0], [5], [5], "none"))
    for offset, first in ((0, sent[2]), (3, sent[4])):
        await member.commit(MessageQueue("FILTERED", "broker-a", 0), offset)
        expected = ([0], [0], [5], [offset], stored_at_ms(http, first))
        assert await sampled(stack, "FILTERING", "FILTERED", expected)
    await member.close()
    # Postgres remembers the filters of disconnected instances.
    send(http, "FILTERED", "broker-a", 0, "A")
    expected = ([0], [0], [6], [3], stored_at_ms(http, sent[4]))
    assert await sampled(stack, "FILTERING", "FILTERED", expected)


async def test_a_connected_group_without_a_commit_is_sampled(http, stack, engine):
    assert http.put("/v1/topics/HEARD", json={"read_queues": 2, "write_queues": 2}).status_code == 201
    send(http, "HEARD", "broker-a", 1, "A")
    address = (await Admin(engine).masters(["broker-a"]))["broker-a"]
    await engine.call(address, RequestCode.HEART_BEAT, body=consumer_beat("1@2", "LISTENING", "HEARD"))
    assert await sampled(stack, "LISTENING", "HEARD", ([0, 1], [0, 0], [0, 1], [None, None], None))


async def test_an_offset_that_was_set_is_distinguished_from_a_commit(http, stack, engine):
    assert http.put("/v1/topics/SET", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    for _ in range(2):
        messages = [{"body": "m", "queue": {"broker": "broker-a", "id": 0}}] * 1_000
        assert http.post("/v1/topics/SET/messages:batch", json={"messages": messages}).is_success
    commit(http, "SETTER", "SET", "broker-a", 0, 0)
    assert await sampled(stack, "SETTER", "SET", ([0], [0], [2_000], [0]))
    queue, offsets = MessageQueue("SET", "broker-a", 0), Offsets(engine)

    def served(committed: int) -> list[bool | None]:
        with psycopg.connect(stack.facts["postgres"]) as connection:
            looks = sampleblocks.stored_blocks(connection)
        return [
            sampleblocks.served(looked)["SETTER", "SET"]
            for broker, _, looked in looks
            if broker == "broker-a" and sampleblocks.figures(looked).get(("SETTER", "SET"), [()] * 4)[3] == [committed]
        ]

    await offsets.commit_offset("SETTER", queue, 1_000)
    await asyncio.to_thread(wait_until, lambda: served(1_000))
    assert served(1_000)[-1] is False
    address = (await Admin(engine).masters(["broker-a"]))["broker-a"]
    await engine.call(address, RequestCode.HEART_BEAT, body=consumer_beat("1@2", "SETTER", "SET"))
    await offsets.commit_offset("SETTER", queue, 2_000)
    await asyncio.to_thread(wait_until, lambda: served(2_000))
    assert served(2_000)[-1] is True


async def test_a_deleted_topic_is_no_longer_sampled(http, stack, engine):
    assert http.put("/v1/topics/GONE", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    send(http, "GONE", "broker-a", 0, "A")
    commit(http, "GONE_READER", "GONE", "broker-a", 0, 0)
    await asyncio.to_thread(wait_until, lambda: newest(stack, "GONE_READER", "GONE"))
    assert http.delete("/v1/topics/GONE").status_code == 204
    assert "GONE" not in await Admin(engine).topic_configs("broker-a")
    failures = metric(http, "sample_failures_total")
    [(before,)] = ask(stack, "SELECT count(*) FROM lag_sample_rounds")
    await asyncio.to_thread(wait_until, lambda: ask(stack, "SELECT count(*) FROM lag_sample_rounds")[0][0] > before + 2)
    last = newest(stack, "GONE_READER", "GONE")["broker-a"][-1]
    assert last < ask(stack, "SELECT max(sampled_at) FROM lag_sample_rounds")[0][0]
    assert metric(http, "sample_failures_total") == failures


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"gantry_gateway_{name} ")), 0.0)


def test_a_broker_that_does_not_answer_is_named_and_the_other_is_sampled(http, stack):
    assert http.put("/v1/topics/HALF", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    for broker in ("broker-a", "broker-b"):
        send(http, "HALF", broker, 0, "A")
        commit(http, "HALF_READER", "HALF", broker, 0, 0)
    wait_until(lambda: len(newest(stack, "HALF_READER", "HALF")) == 2)
    paused = stack.pid_of("broker-b")
    os.kill(paused, signal.SIGSTOP)
    try:
        wait_until(lambda: ask(stack, "SELECT 1 FROM lag_sample_rounds WHERE missing = '{broker-b}' LIMIT 1"))
        send(http, "HALF", "broker-a", 0, "B")
        wait_until(lambda: newest(stack, "HALF_READER", "HALF")["broker-a"][2] == [2])
        assert metric(http, "sample_brokers_missing") == 1.0
        assert newest(stack, "HALF_READER", "HALF")["broker-b"][2] == [1]
    finally:
        os.kill(paused, signal.SIGCONT)
    commit(http, "HALF_READER", "HALF", "broker-b", 0, 1)
    wait_until(lambda: newest(stack, "HALF_READER", "HALF")["broker-b"][3] == [1])
    wait_until(lambda: metric(http, "sample_brokers_missing") == 0.0)


def test_sampling_continues_when_postgres_is_back(http, stack):
    wait_until(lambda: metric(http, "is_sampler") == 1.0)
    failures = metric(http, "sample_failures_total")
    killed = stack.pid_of("postgres")
    os.kill(killed, signal.SIGKILL)
    stack.wait_for(
        lambda: any(p["name"] == "postgres" and p["pid"] != killed for p in stack.facts["processes"]),
        "to start Postgres again",
    )

    def sampled_again() -> bool:
        try:
            [(age_s,)] = ask(stack, "SELECT extract(epoch FROM now() - max(sampled_at)) FROM lag_sample_rounds")
        except psycopg.OperationalError:
            return False
        return age_s is not None and age_s < 1.5

    wait_until(sampled_again)
    assert metric(http, "sample_failures_total") >= failures
    assert http.get("/livez").status_code == 200
