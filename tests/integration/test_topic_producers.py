"""The producers of a topic, over HTTP and in the command line: a remoting client, and a gateway that sends for others."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.http import AsyncGantryClient
from gantry.model.message import Message, MessageQueue
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.commandline import Gantry
from tests.support.stack import Stack

TOPIC = "PRODUCED"
BROKERS = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2) as running:
        with running.http() as http:
            assert http.put(f"/v1/topics/{TOPIC}", json={}).status_code == 201
        yield running


@asynccontextmanager
async def producing(stack: Stack, group: str) -> AsyncIterator[Producer]:
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]), instance_name=group)
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    producer = Producer(engine, group)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()
        await engine.stop()


def listed(http: httpx.Client) -> dict[str, Any]:
    answer = http.get(f"/v1/topics/{TOPIC}/producers")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert not found["truncated"]
    return {row["group"]: row for row in found["items"]} | {"missing": found["missing"]}


async def test_a_remoting_client_and_a_gateway_are_listed_until_they_leave(stack: Stack) -> None:
    with stack.http() as http:
        assert listed(http) == {"missing": []}
        sent = http.post(f"/v1/topics/{TOPIC}/messages", json={"body": "m"}).json()
        gateway = listed(http)["GANTRY_GATEWAY"]
        assert (gateway["kind"], gateway["brokers"], gateway["language"]) == ("gateway", [sent["broker"]], "PYTHON")
        async with producing(stack, "REMOTE") as producer:
            for broker in BROKERS:
                await producer.send(Message(TOPIC, b"m"), queue=MessageQueue(TOPIC, broker, 0))
            found = await asyncio.to_thread(listed, http)
            assert found.keys() == {"REMOTE", "GANTRY_GATEWAY", "missing"}
            remote = found["REMOTE"]
            assert (remote["kind"], remote["client_id"], remote["brokers"]) == (
                "client", "127.0.0.1@REMOTE", ["broker-a", "broker-b"],
            )  # fmt: skip
            assert remote["address"].startswith("127.0.0.1:")
            stored_at = http.get(f"/v1/topics/{TOPIC}/queues").json()["items"]
            assert remote["last_sent_at"] == max(row["last_stored_at"] or "" for row in stored_at)
            async with AsyncGantryClient.from_stack(stack.directory) as client:
                [first, second] = (await client.list_producers(TOPIC)).items
                assert (first.group, second.group) == ("REMOTE", "GANTRY_GATEWAY")
        await asyncio.to_thread(stack.wait_for, lambda: "REMOTE" not in listed(http), "and the producer to leave")
        assert listed(http).keys() == {"GANTRY_GATEWAY", "missing"}


def test_the_command_shows_producers_and_names_a_broker_that_does_not_answer(stack: Stack) -> None:
    gantry = Gantry(stack)
    with stack.http() as http:
        for broker in BROKERS:
            message = {"body": "m", "queue": {"broker": broker, "id": 0}}
            assert http.post(f"/v1/topics/{TOPIC}/messages", json=message).status_code == 201
        header, row = gantry.table("topic", "producers", TOPIC)
        assert header == ["group", "client_id", "kind", "address", "language", "version", "brokers", "last_sent_at"]
        assert (row[0], row[2]) == ("GANTRY_GATEWAY", "gateway")
        unknown = http.get("/v1/topics/NO_SUCH_TOPIC/producers")
        assert (unknown.status_code, unknown.json()["type"].rpartition("/")[2]) == (404, "unknown-topic")
        os.kill(stack.pid_of("broker-b"), signal.SIGSTOP)
        try:
            found = listed(http)
        finally:
            os.kill(stack.pid_of("broker-b"), signal.SIGCONT)
    assert found["GANTRY_GATEWAY"]["brokers"] == ["broker-a"]
    [reason] = found["missing"]
    assert "broker-b" in reason
