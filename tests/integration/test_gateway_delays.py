"""Delayed messages over HTTP against real brokers: delivered at their time, with a handle."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gantry.http import GantryClient, OutgoingMessage
from gantry.model.recallhandle import decode_recall_handle
from tests.support.stack import Stack

TOPIC = "/v1/topics/LATER"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    config = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
    with stack.http() as http:
        assert http.put(TOPIC, json=config).status_code == 201
    return stack


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
    # The message has no position yet.
    assert (answer["queue_id"], answer["queue_offset"]) == (None, None)
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
        ({"deliver_at": "9999-01-01T00:00:00Z"}, "/deliver_at"),
    ],
)
def test_a_delay_that_can_not_be_is_refused_and_not_stored(http, fields: dict[str, Any], field):
    refused = http.post(f"{TOPIC}/messages", json={"body": "never", **fields})
    problem = refused.json()
    assert (refused.status_code // 100, problem["outcome"], problem["retryable"]) == (4, "not_stored", False), problem
    assert problem["field"] == field
    assert problem["detail"].startswith(f"{field}: ")
    batch = http.post(
        f"{TOPIC}/messages:batch", json={"messages": [{"body": "now"}, {"body": "never", **fields}]}
    ).json()
    assert batch["results"][1]["problem"]["field"] == f"/messages/1{field}"


def test_the_command_line_delays_lists_and_recalls(stack, http):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gantry.cli", "message", *words, "--data", str(stack.directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    handle = json.loads(run("send", "LATER", "typed", "--delay", "1h", "--json").stdout)["handle"]
    deadline = time.monotonic() + WAIT_S
    while handle not in (listed := run("scheduled", "LATER").stdout):
        assert time.monotonic() < deadline, listed
    assert "typed" in listed
    moved = json.loads(run("reschedule", "LATER", handle, "--delay", "2h", "--json").stdout)["handle"]
    assert run("reschedule", "LATER", moved).returncode == 2
    assert run("recall", "LATER", moved).stdout == "the message is recalled\n"
    deadline = time.monotonic() + WAIT_S
    while (again := run("recall", "LATER", moved)).returncode == 0:
        assert time.monotonic() < deadline
    assert again.stderr.strip().endswith("or its topic was deleted"), again.stderr


def scheduled(http: httpx.Client, topic: str = TOPIC, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        answer = http.get(f"{topic}/scheduled", params={**params, **({} if cursor is None else {"cursor": cursor})})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_what_waits_is_listed_by_due_time_and_can_be_recalled(http):
    sent = {}
    for minutes in (30, 10, 20):
        message = {"body": f"in {minutes}", "delay": f"{minutes}m", "tag": "wait", "properties": {"n": str(minutes)}}
        sent[minutes] = http.post(f"{TOPIC}/messages", json=message).json()
    other = http.put("/v1/topics/OTHER", json={"read_queues": 1, "write_queues": 1})
    assert other.status_code in (200, 201)
    http.post("/v1/topics/OTHER/messages", json={"body": "other", "delay": "15m"})
    deadline = time.monotonic() + WAIT_S
    while len(found := scheduled(http)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [one["body"] for one in found] == ["in 10", "in 20", "in 30"]
    first = found[0]
    assert (first["handle"], first["deliver_at"]) == (sent[10]["handle"], sent[10]["deliver_at"])
    assert (first["topic"], first["tag"], first["properties"]) == ("LATER", "wait", {"n": "10"})
    assert first["message_id"] == sent[10]["message_id"]
    middle = sent[20]["deliver_at"]
    assert [one["body"] for one in scheduled(http, limit=1)] == ["in 10", "in 20", "in 30"]
    assert [one["body"] for one in scheduled(http, **{"from": middle})] == ["in 20", "in 30"]
    assert [one["body"] for one in scheduled(http, to=middle)] == ["in 10"]
    recall = f"{TOPIC}/scheduled/{sent[10]['handle']}:recall"
    assert http.post(recall).json() == {"outcome": "recalled"}
    while len(scheduled(http)) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert http.post(recall).json() == {"outcome": "gone"}


def test_large_messages_that_wait_are_all_listed(http):
    topic = "/v1/topics/LARGE_LATER"
    assert http.put(topic, json={"read_queues": 1, "write_queues": 1}).status_code == 201
    for number in range(7):
        message = {"body": str(number) * 2_000_000, "delay": f"{10 + number}m"}
        http.post(f"{topic}/messages", json=message).raise_for_status()
    deadline = time.monotonic() + WAIT_S
    while len(scheduled(http, topic, limit=100)) < 7:
        assert time.monotonic() < deadline
    assert [one["body"][0] for one in scheduled(http, topic, limit=100)] == [*"0123456"]


@pytest.mark.parametrize("window", [None, "1h"])
def test_a_rescheduled_message_comes_once_at_its_new_time(http, window):
    assert http.put(TOPIC, json={"duplicate_window": window}).status_code == 200
    body = f"moved {window}"
    sent = http.post(f"{TOPIC}/messages", json={"body": body, "delay": "1h", "keys": [f"k{window}"]}).json()
    deadline = time.monotonic() + WAIT_S
    while body not in [one["body"] for one in scheduled(http)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    path = f"{TOPIC}/scheduled/{sent['handle']}:reschedule"
    same = http.post(path, json={"deliver_at": sent["deliver_at"]})
    assert (same.status_code, same.json()["field"]) == (409, "/deliver_at")
    moved = http.post(path, json={"delay": "1s"})
    assert moved.status_code == 200, moved.text
    assert moved.json()["handle"] != sent["handle"]
    wait_for(http, body)
    found = http.get(f"{TOPIC}/messages", params={"key": f"k{window}"}).json()["items"]
    assert [one["message_id"] for one in found] == [sent["message_id"]]
    assert body not in [one["body"] for one in scheduled(http)]
    gone = http.post(path, json={"delay": "1s"})
    assert (gone.status_code, gone.json()["field"]) == (404, "handle")


def test_a_recall_is_taken_up_to_the_delivery_and_its_answer_is_true(http):
    outcomes = {}
    for number in range(8):
        body = f"last {number}"
        sent = http.post(f"{TOPIC}/messages", json={"body": body, "delay": "1s"}).json()
        # The message is delivered at this time; the recalls come around it.
        wait_s = moment(sent["deliver_at"]) - 0.6 + 0.1 * number - time.time()
        time.sleep(max(wait_s, 0))  # The time itself is what is tested.
        answer = http.post(f"{TOPIC}/scheduled/{sent['handle']}:recall")
        assert answer.status_code == 200, answer.text
        outcomes[body] = answer.json()["outcome"]
    assert outcomes["last 0"] == "recalled"
    for body, outcome in outcomes.items():
        if outcome == "gone":
            wait_for(http, body)
    http.post(f"{TOPIC}/messages", json={"body": "after all", "delay": "2s"})
    wait_for(http, "after all")
    assert {body: "gone" if body in bodies(http) else "recalled" for body in outcomes} == outcomes


def test_a_message_can_be_recalled_as_soon_as_it_is_sent_and_if_it_waits_for_days(http):
    for delay in ("1h", "30d"):
        sent = http.post(f"{TOPIC}/messages", json={"body": delay, "delay": delay}).json()
        recall = f"{TOPIC}/scheduled/{sent['handle']}:recall"
        assert [http.post(recall).json() for _ in range(2)] == [{"outcome": "recalled"}, {"outcome": "gone"}]


def test_of_two_new_times_for_one_handle_at_once_one_counts(http, stack):
    sent = http.post(f"{TOPIC}/messages", json={"body": "twice", "delay": "1h"}).json()
    path = f"{TOPIC}/scheduled/{sent['handle']}:reschedule"

    def move(_: int) -> int:
        with stack.http() as own:
            return own.post(path, json={"delay": "2s"}).status_code

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(move, range(4))) == [200, 404, 404, 404]
    wait_for(http, "twice")
    http.post(f"{TOPIC}/messages", json={"body": "and then", "delay": "3s"})
    wait_for(http, "and then")
    assert bodies(http).count("twice") == 1


def test_a_new_time_beyond_40_days_is_refused_by_name(http):
    sent = http.post(f"{TOPIC}/messages", json={"body": "far", "delay": "1h"}).json()
    at = (datetime.now(UTC) + timedelta(days=41)).isoformat().replace("+00:00", "Z")
    answer = http.post(f"{TOPIC}/scheduled/{sent['handle']}:reschedule", json={"deliver_at": at})
    assert (answer.status_code, answer.json()["field"]) == (400, "/deliver_at"), answer.text
    assert "at most 3456000000 ms are allowed" in answer.json()["detail"]
    assert http.post(f"{TOPIC}/scheduled/{sent['handle']}:recall").json() == {"outcome": "recalled"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/scheduled/x:recall", None, 400),
        ("/scheduled/djEgT1RIRVIgYnJva2VyLWEgMSBL:recall", None, 400),
        ("/scheduled/djEgTEFURVIgYnJva2VyLXogMSBL:recall", None, 404),
        ("/scheduled/djEgTEFURVIgYnJva2VyLWEgMSBL:reschedule", {"delay": "41d"}, 400),
        ("/scheduled/djEgTEFURVIgYnJva2VyLWEgMSBL:reschedule", {}, 400),
        ("/scheduled/djEgTEFURVIgYnJva2VyLWEgMSBL:reschedule", None, 400),
    ],
)
def test_a_bad_handle_or_time_is_refused_by_name(http, path, body, status):
    answer = http.post(f"{TOPIC}{path}", json=body) if body is not None else http.post(f"{TOPIC}{path}")
    assert answer.status_code == status, answer.text
    assert answer.json()["field"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{TOPIC}/scheduled/no:handle:recall", None, 400),
        (f"{TOPIC}/scheduled/no%3Ahandle:reschedule", {"delay": "10s"}, 400),
        ("/v1/jobs/no:job:cancel", None, 400),
        ("/v1/transactions/no:transaction:commit", None, 404),
    ],
)
def test_an_id_with_a_colon_is_refused_as_an_id_and_not_as_a_path(http, path, body, status):
    refused = http.post(path, json=body)
    assert refused.status_code == status
    assert "there is nothing at" not in refused.json()["detail"]


def test_the_client_library_lists_recalls_and_reschedules(stack, http):
    with GantryClient.from_stack(stack.directory) as client:

        def waiting(handle: str | None) -> bool:
            """Return whether a message waits with this handle; a new one is listed within a second."""
            return handle in {one.handle for one in client.list_scheduled("LATER") if one.text == "library"}

        sent = client.send("LATER", OutgoingMessage("library", delay="1h"))
        stack.wait_for(lambda: waiting(sent.handle), "to list the message")
        moved = client.reschedule_message("LATER", str(sent.handle), delay="2h")
        stack.wait_for(lambda: waiting(moved.handle) and not waiting(sent.handle), "to list the new time")
        assert moment(str(moved.deliver_at)) - moment(str(sent.deliver_at)) >= 3_599
        assert client.recall_message("LATER", moved.handle)
        stack.wait_for(lambda: not waiting(moved.handle), "to drop the message")
        assert not client.recall_message("LATER", moved.handle)
