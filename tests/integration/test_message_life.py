"""The life of a message over HTTP and in the command line, against real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from gantry.client.consumer.pull import PullConsumer
from gantry.client.consumer.sendback import SendBack
from gantry.client.engine import ClientEngine
from gantry.client.sendrequest import SendResult
from gantry.client.settings import ClientSettings
from gantry.client.transactionchecks import Decision
from gantry.client.transactions import TransactionProducer
from gantry.http import StreamClient
from gantry.model.message import Message, MessageQueue, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.stack import Stack

WAIT_S = 30.0
RECEIPT_S = 60
ENVIRONMENT = {
    "GANTRY_BROKER_TRACE_TOPIC_ENABLE": "true",
    "GANTRY_BROKER_MESSAGE_DELAY_LEVEL": "1s 1s 1s 1s 1s",
    "GANTRY_BROKER_TRANSACTION_OP_BATCH_INTERVAL": "200",
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "500",
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "500",
    "GANTRY_BROKER_TRANSACTION_CHECK_MAX": "2",
    "GANTRY_GATEWAY_TRACE_MESSAGES": "true",
    "GANTRY_GATEWAY_BROKER_TIMEOUT_MS": "1000",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2, environment=ENVIRONMENT) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@asynccontextmanager
async def engine_of(stack: Stack) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]), heartbeat_interval_ms=500)
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


class Life:
    """The life of a message, read again until it has what a test waits for."""

    def __init__(self, http: httpx.Client, message_id: str, topic: str | None) -> None:
        self._http = http
        self._path = f"/v1/messages/{message_id}/trace"
        self._query = {} if topic is None else {"topic": topic}
        self.content: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        answer = self._http.get(self._path, params=self._query)
        assert answer.status_code == 200, answer.text
        self.content = answer.json()
        return self.content

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.content["events"]]

    @property
    def states(self) -> dict[str, str]:
        return {one["group"]: one["state"] for one in self.content["groups"]}

    def until(self, condition: Any) -> "Life":
        deadline = time.monotonic() + WAIT_S
        while True:
            self.read()
            if condition(self):
                return self
            assert time.monotonic() < deadline, json.dumps(self.content, indent=1)
            time.sleep(0.1)


def make_topic(http: httpx.Client, topic: str) -> None:
    config = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
    assert http.put(f"/v1/topics/{topic}", json=config).status_code == 201


def send(http: httpx.Client, topic: str, **message: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/topics/{topic}/messages", json={"body": "hello", **message})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_message_is_consumed_by_one_group_and_left_out_by_another(stack: Stack, http: httpx.Client) -> None:
    make_topic(http, "CONSUMED")
    async with StreamClient(stack.facts["http"], stack.facts["api_key"]) as stream:
        taking = await stream.subscribe("taking", "CONSUMED", start="first")
        leaving = await stream.subscribe("leaving", "CONSUMED", expression="other", start="first")
        waiting = await stream.subscribe("waiting", "CONSUMED", start="first")
        sent = send(http, "CONSUMED", tag="this", keys=["k"])
        life = Life(http, sent["message_id"], "CONSUMED")
        assert Life(http, sent["message_id"], "CONSUMED").read()["events"][0]["kind"] == "stored"
        async for batch in taking:
            await taking.ack(batch)
            break
        found = await asyncio.to_thread(
            life.until,
            lambda life: (
                life.states == {"taking": "consumed", "leaving": "filtered", "waiting": "in_flight"}
                and life.kinds == ["stored", "delivered", "delivered", "consumed"]
                and "sent it in" in life.content["events"][0]["detail"]
            ),
        )
        stored = found.content["events"][0]
        assert (stored["kind"], stored["broker"]) == ("stored", "broker-a")
        assert stored["client"].startswith("127.0.0.1:")
        assert {event["group"] for event in found.content["events"][1:3]} == {"taking", "waiting"}
        assert found.content["events"][3]["group"] == "taking"
        assert "producer group GANTRY_GATEWAY sent it in" in stored["detail"]
        by_stored_id = Life(http, sent["stored_id"], None).read()
        assert by_stored_id["message_id"] == sent["message_id"]
        del leaving, waiting


def test_a_delayed_message_waits_and_a_recalled_one_never_comes(http: httpx.Client) -> None:
    make_topic(http, "DELAYED")
    by_time = send(http, "DELAYED", delay="3s")
    by_level = send(http, "DELAYED", delay_level=1)
    recalled = send(http, "DELAYED", delay="1h")
    first = Life(http, by_time["message_id"], "DELAYED").read()
    assert [event["kind"] for event in first["events"]] == ["scheduled"]
    for sent in (by_time, by_level):
        Life(http, sent["message_id"], "DELAYED").until(lambda life: life.kinds == ["scheduled", "stored"])
    answer = http.post(f"/v1/topics/DELAYED/scheduled/{recalled['handle']}:recall")
    assert answer.json() == {"outcome": "recalled"}
    life = Life(http, recalled["message_id"], "DELAYED").until(lambda life: life.kinds == ["scheduled", "recalled"])
    assert life.content["groups"] == []


async def fail_once(stack: Stack, group: str, queue: MessageQueue) -> None:
    """Pull the next message of a queue, send it back, and commit."""
    async with engine_of(stack) as engine, asyncio.timeout(WAIT_S):
        consumer, messages = PullConsumer(engine, group), []
        offset = await consumer.offsets.committed_offset(group, queue) or 0
        while not messages:
            messages = list((await consumer.pull(queue, offset, suspend_ms=1_000)).messages())
        await SendBack(engine, group, failures_max=1).send_back(messages[0], queue.broker_name, delay_level=1)
        await consumer.offsets.commit_offset(group, queue, messages[0].queue_offset + 1)


def test_a_message_that_fails_is_retried_dies_and_is_redriven(stack: Stack, http: httpx.Client) -> None:
    make_topic(http, "FAILED")
    assert http.put("/v1/groups/failing", json={"retry_max_times": 1}).status_code == 201
    sent = send(http, "FAILED")
    life = Life(http, sent["message_id"], "FAILED")
    asyncio.run(fail_once(stack, "failing", MessageQueue("FAILED", "broker-a", 0)))
    life.until(lambda life: life.kinds == ["stored", "sent_back", "retry_due"])
    assert life.states == {"failing": "retrying"}
    assert [event["attempt"] for event in life.content["events"]] == [None, 1, 2]
    asyncio.run(fail_once(stack, "failing", MessageQueue("%RETRY%failing", "broker-a", 0)))
    life.until(lambda life: life.kinds == ["stored", "sent_back", "retry_due", "dead"])
    assert life.states == {"failing": "dead"}
    assert "after 2 failed deliveries" in life.content["groups"][0]["why"]
    job = http.post("/v1/groups/failing/dead-letters:redrive", json={"message_ids": [sent["message_id"]]})
    assert job.status_code == 202, job.text
    life.until(lambda life: life.kinds[3:] == ["dead", "redriven", "retry_due"])
    assert life.states == {"failing": "retrying"}


def pull(http: httpx.Client, group: str, topic: str) -> str:
    """Pull the next message of a group; return its receipt."""
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = http.post(f"/v1/groups/{group}/messages:pull", json={"topic": topic, "max": 1, "wait": "2s"})
        assert answer.status_code == 200, answer.text
        for message in answer.json()["messages"]:
            return message["receipt"]
        assert time.monotonic() < deadline, "no message came"


def test_a_message_of_a_group_that_pulls_with_receipts_is_retried_dies_and_is_redriven(http: httpx.Client) -> None:
    make_topic(http, "POPPED")
    assert http.put("/v1/groups/popping", json={"retry_max_times": 1}).status_code == 201
    sent = send(http, "POPPED")
    life = Life(http, sent["message_id"], "POPPED")

    def assert_in_flight() -> None:
        (group,) = life.read()["groups"]
        assert (group["state"], group["group"]) == ("in_flight", "popping")
        until = datetime.fromisoformat(group["why"].rpartition("invisible until ")[2])
        seconds = (until - datetime.fromisoformat(group["since"])).total_seconds()
        assert seconds == pytest.approx(RECEIPT_S, abs=1)

    def fail() -> None:
        receipt = pull(http, "popping", "POPPED")
        assert_in_flight()
        nack = {"receipts": [receipt], "delay": "0s"}
        assert http.post("/v1/groups/popping/messages:nack", json=nack).status_code == 200

    fail()
    life.until(lambda life: life.kinds == ["stored", "retry_due"])
    assert (life.states, life.content["events"][1]["attempt"]) == ({"popping": "retrying"}, 2)
    fail()
    life.until(lambda life: life.kinds == ["stored", "retry_due", "dead"])
    assert life.states == {"popping": "dead"}
    job = http.post("/v1/groups/popping/dead-letters:redrive", json={"message_ids": [sent["message_id"]]})
    assert job.status_code == 202, job.text
    life.until(lambda life: life.kinds == ["stored", "retry_due", "dead", "redriven", "retry_due"])
    assert life.states == {"popping": "retrying"}
    ack = {"receipts": [pull(http, "popping", "POPPED")]}
    assert_in_flight()
    assert http.post("/v1/groups/popping/messages:ack", json=ack).json()["results"][0]["outcome"] == "acked"
    life.until(lambda life: life.states == {"popping": "consumed"})


async def test_a_transaction_is_committed_rolled_back_or_expires(stack: Stack, http: httpx.Client) -> None:
    make_topic(http, "DECIDED")

    async def undecided(half: StoredMessage) -> Decision:
        return Decision.UNKNOWN

    def deciding(decision: Decision) -> Any:
        async def execute(half: SendResult) -> Decision:
            return decision

        return execute

    async with engine_of(stack) as engine:
        producer = TransactionProducer(engine, "tpg", undecided)
        await producer.start()
        ids = {
            decision: (await producer.send_transaction(Message("DECIDED", b"x"), deciding(decision))).half.message_id
            for decision in Decision
        }
        expected = {
            Decision.COMMIT: ["half", "committed", "stored"],
            Decision.ROLLBACK: ["half", "rolled_back"],
            Decision.UNKNOWN: ["half", "checked", "checked", "expired"],
        }
        for decision, kinds in expected.items():
            life = Life(http, ids[decision], "DECIDED")
            await asyncio.to_thread(life.until, lambda life, kinds=kinds: life.kinds == kinds)
            assert life.content["events"][0]["group"] == "tpg"
        await producer.close()


def test_an_unknown_message_is_not_found(http: httpx.Client) -> None:
    make_topic(http, "EMPTY")
    for path in ("nothing/trace?topic=EMPTY", "nothing/trace", "7F00000100002A9F0000000000000000/trace?topic=EMPTY"):
        answer = http.get(f"/v1/messages/{path}")
        assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (404, "unknown-message"), path


def test_the_answer_about_an_unknown_id_says_what_was_looked_for(http: httpx.Client) -> None:
    unknown = "7F000001612CC0BFEF358D0F91790000"
    for path in (f"/v1/messages/{unknown}/trace", f"/v1/messages/{unknown}"):
        for params in ({"topic": "UNKNOWN"}, {"topic": "LIFE"}, {}):
            problem = http.get(path, params=params)
            assert problem.status_code == 404
            assert " port " not in problem.json()["detail"]


def test_a_broker_that_does_not_answer_is_named(stack: Stack, http: httpx.Client) -> None:
    make_topic(http, "ALONE")
    sent = send(http, "ALONE")
    process = stack.pid_of("broker-b")
    os.kill(process, signal.SIGSTOP)
    try:
        life = Life(http, sent["message_id"], "ALONE").read()
    finally:
        os.kill(process, signal.SIGCONT)
    assert [event["kind"] for event in life["events"]] == ["stored"]
    assert any("what broker-b knows about the message is missing" in text for text in life["missing"])


def test_the_command_line_prints_the_life(stack: Stack, http: httpx.Client) -> None:
    make_topic(http, "PRINTED")
    sent = send(http, "PRINTED")

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "gantry.cli", "message", "trace", sent["message_id"], "--topic", "PRINTED"]
        return subprocess.run(
            [*command, "--data", str(stack.directory), *options], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    text = run()
    assert "stored" in text
    assert "not known:" in text
    assert json.loads(run("--json"))["events"][0]["kind"] == "stored"
