"""Delayed messages over HTTP against real brokers: delivered at their time, with a handle."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gantry.model.recallhandle import decode_recall_handle
from tests.support.stack import Stack

TOPIC = "/v1/topics/LATER"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        with running.http() as http:
            assert http.put(TOPIC, json={"read_queues": 1, "write_queues": 1}).status_code == 201
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def bodies(http: httpx.Client) -> list[str]:
    found = http.get(f"{TOPIC}/queues/broker-a/0/messages", params={"offset": "0", "limit": 1000}).json()["messages"]
    return [message["body"] for message in found]


def wait_for(http: httpx.Client, body: str) -> float:
    """Return the time at which a message was there (wall s)."""
    deadline = time.monotonic() + WAIT_S
    while body not in bodies(http):
        assert time.monotonic() < deadline, f"{body} did not come"
        time.sleep(0.05)
    return time.time()


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("name", "delay"),
    [
        ("delay", lambda: {"delay": "2s"}),
        (
            "deliver_at",
            lambda: {"deliver_at": (datetime.now(UTC) + timedelta(seconds=2)).isoformat(timespec="milliseconds")},
        ),
    ],
)
def test_a_message_for_a_set_time_comes_at_that_time(http, name, delay):
    began = time.time()
    sent = http.post(f"{TOPIC}/messages", json={"body": name, **delay()})
    assert sent.status_code == 201, sent.text
    answer = sent.json()
    handle = decode_recall_handle(answer["handle"])
    assert (handle.topic, handle.broker_name, handle.unique_key) == ("LATER", "broker-a", answer["message_id"])
    assert name not in bodies(http)
    came = wait_for(http, name)
    assert began + 1.0 <= moment(answer["deliver_at"]) <= began + 4.0
    assert came >= moment(answer["deliver_at"]) - 1.0


def test_a_message_with_a_delay_level_has_no_handle(http):
    answer = http.post(f"{TOPIC}/messages", json={"body": "level", "delay_level": 1}).json()
    assert (answer["outcome"], answer["handle"], answer["deliver_at"]) == ("stored", None, None)
    assert "level" not in bodies(http)
    wait_for(http, "level")


def test_a_time_in_the_past_delivers_at_once(http):
    answer = http.post(f"{TOPIC}/messages", json={"body": "past", "deliver_at": "2020-01-01T00:00:00Z"}).json()
    assert (answer["outcome"], answer["handle"], answer["deliver_at"]) == ("stored", None, None)
    assert "past" in bodies(http)


def test_a_raw_body_and_a_batch_may_be_delayed(http):
    raw = http.post(f"{TOPIC}/messages", content=b"raw", headers={"Content-Type": "text/plain", "Gantry-Delay": "1s"})
    assert raw.json()["handle"]
    batch = [{"body": "now"}, {"body": "one", "delay": "1s"}, {"body": "two", "delay_level": 1}]
    answer = http.post(f"{TOPIC}/messages:batch", json={"messages": batch}).json()
    assert answer["stored"] == 3
    assert [result.get("handle") is not None for result in answer["results"]] == [False, True, False]
    assert "now" in bodies(http)
    for body in ("raw", "one", "two"):
        wait_for(http, body)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"delay": "41d"}, "/delay"),
        ({"delay": "1s", "delay_level": 1}, "/delay"),
        ({"delay_level": 19}, "/delay_level"),
        ({"properties": {"TIMER_DELAY_MS": "1"}}, "/properties/TIMER_DELAY_MS"),
        ({"deliver_at": "9999-01-01T00:00:00Z"}, None),
    ],
)
def test_a_delay_that_can_not_be_is_refused_and_not_stored(http, fields: dict[str, Any], field):
    refused = http.post(f"{TOPIC}/messages", json={"body": "never", **fields})
    problem = refused.json()
    assert (refused.status_code // 100, problem["outcome"], problem["retryable"]) == (4, "not_stored", False), problem
    assert field is None or problem["field"] == field


def test_the_command_line_delays(stack, http):
    command = [sys.executable, "-m", "gantry.cli", "message", "send", "LATER", "typed", "--delay", "1s", "--json"]
    done = subprocess.run(
        [*command, "--data", str(stack.directory)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["handle"]
    wait_for(http, "typed")
