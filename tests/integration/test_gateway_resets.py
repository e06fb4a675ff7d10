"""Resets of offsets over HTTP: targets, preview, undo, clone, audit, and brokers that are away."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gantry.http import StreamClient
from tests.support.stack import Stack

TOPIC = "MOVED"
COUNT = 20


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as http:
        body = {"read_queues": 2, "write_queues": 2, "brokers": ["broker-a", "broker-b"]}
        assert http.put(f"/v1/topics/{TOPIC}", json=body).status_code == 201
        for broker in ("broker-a", "broker-b"):
            messages = [{"body": f"{broker}-{number}", "queue": {"broker": broker, "id": 0}} for number in range(COUNT)]
            answer = http.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": messages}).json()
            assert answer["stored"] == COUNT
    return stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def made(http: httpx.Client, group: str, **offsets: int) -> str:
    """Create a group with committed offsets in queue 0 of brokers."""
    assert http.put(f"/v1/groups/{group}", json={}).status_code == 201
    if offsets:
        places = [
            {"topic": TOPIC, "broker": f"broker-{letter}", "queue_id": 0, "offset": str(offset)}
            for letter, offset in offsets.items()
        ]
        assert http.put(f"/v1/groups/{group}/offsets", json={"offsets": places}).json()["committed"] == len(places)
    return group


def reset(http: httpx.Client, group: str, to: Any, **more: Any) -> httpx.Response:
    return http.post(f"/v1/groups/{group}/offsets:reset", json={"topic": TOPIC, "to": to, **more})


def undo(http: httpx.Client, group: str, token: str) -> httpx.Response:
    return http.post(f"/v1/groups/{group}/offsets:undo", json={"undo": token})


def committed(http: httpx.Client, group: str) -> dict[tuple[str, int], str | None]:
    items = http.get(f"/v1/groups/{group}/offsets", params={"topic": TOPIC}).json()["items"]
    return {(item["broker"], item["queue_id"]): item["committed_offset"] for item in items}


def problem(answer: httpx.Response) -> tuple[int, str, str | None]:
    body = answer.json()
    return answer.status_code, body["type"].rpartition("/")[2], body.get("field")


def place(queue_id: int, offset: int, broker: str = "broker-a") -> dict[str, Any]:
    return {"broker": broker, "queue_id": queue_id, "offset": str(offset)}


def test_a_dry_run_shows_what_a_reset_does_and_changes_nothing(http: httpx.Client) -> None:
    group = made(http, "DRY", a=15, b=3)
    report = reset(http, group, "earliest", dry_run=True).json()
    assert (report["messages"], report["undo"], report["truncated"]) == (None, None, False)
    item = next(item for item in report["items"] if (item["broker"], item["queue_id"]) == ("broker-a", 0))
    assert (item["from"], item["to"], item["messages"], item["outcome"]) == ("15", "0", "15", "planned")
    assert (item["first"]["body"], item["last"]["body"]) == ("broker-a-0", "broker-a-14")
    assert committed(http, group)["broker-a", 0] == "15"
    forward = reset(http, group, [place(0, 18)], dry_run=True).json()
    assert forward["messages"] == "-3"
    assert (forward["items"][0]["first"]["queue_offset"], forward["items"][0]["last"]["queue_offset"]) == ("15", "17")


def test_a_reset_moves_all_queues_and_its_undo_brings_them_back(http: httpx.Client) -> None:
    group = made(http, "BACK", a=15, b=3)
    report = reset(http, group, "latest").json()
    assert {item["outcome"] for item in report["items"]} == {"reset"}
    assert committed(http, group) == {
        ("broker-a", 0): "20", ("broker-a", 1): "0", ("broker-b", 0): "20", ("broker-b", 1): "0",
    }  # fmt: skip
    undone = undo(http, group, report["undo"]).json()
    assert {(item["broker"], item["queue_id"]): item["to"] for item in undone["items"]} == {
        ("broker-a", 0): "15", ("broker-a", 1): None, ("broker-b", 0): "3", ("broker-b", 1): None,
    }  # fmt: skip
    assert committed(http, group)["broker-a", 0] == "15"
    assert committed(http, group)["broker-a", 1] is None
    assert problem(undo(http, group, report["undo"])) == (409, "undo-refused", "/undo")
    again = undo(http, group, undone["undo"]).json()
    assert {item["to"] for item in again["items"]} == {"20", "0"}


def test_an_undo_says_why_it_is_refused(http: httpx.Client) -> None:
    group = made(http, "REFUSED", a=15, b=3)
    report = reset(http, group, [place(0, 5), place(0, 4, "broker-b")]).json()
    body = {"offsets": [{"topic": TOPIC, "broker": "broker-a", "queue_id": 0, "offset": "6"}]}
    assert http.put(f"/v1/groups/{group}/offsets", json=body).json()["committed"] == 1
    refused = undo(http, group, report["undo"])
    assert problem(refused) == (409, "undo-refused", "/undo")
    assert f"the group has committed offset 6 in queue broker-a/0 of topic {TOPIC} since" in refused.json()["detail"]
    assert committed(http, group)["broker-b", 0] == "4"
    made(http, "OTHER")
    assert problem(undo(http, "OTHER", report["undo"])) == (400, "invalid-field", "/undo")
    for token in ("x", "%%%", "", "AAAA"):
        assert problem(undo(http, group, token)) == (400, "invalid-field", "/undo")


def test_a_time_before_the_first_and_after_the_last_message_is_noted(http: httpx.Client) -> None:
    group = made(http, "TIMES", a=15)
    early = reset(http, group, "2001-01-01T00:00:00Z", dry_run=True).json()["items"]
    assert {item["to"] for item in early} == {"0"}
    assert early[0]["note"].startswith("the first message that the queue still has was stored at 20")
    assert early[1]["note"] == "the queue has no message"
    late = reset(http, group, "2999-01-01T00:00:00Z", dry_run=True).json()["items"]
    assert (late[0]["to"], late[0]["note"]) == ("20", "no message was stored at 2999-01-01T00:00:00.000Z or later")
    stored_at = reset(http, group, "earliest", dry_run=True).json()["items"][0]["last"]["stored_at"]
    at = reset(http, group, stored_at, dry_run=True).json()["items"][0]
    assert at["note"] is None or int(at["to"]) == 0


@pytest.mark.parametrize(
    ("to", "field"),
    [
        ("yesterday", "/to"),
        ([], "/to"),
        ([place(0, 21)], "/to/0/offset"),
        ([place(0, 1), place(0, 2)], "/to/1"),
        ([place(9, 1)], "/to/0"),
        ([place(0, 1, "broker-z")], "/to/0"),
        ([{**place(0, 1), "offset": 1}], "/to/0/offset"),
    ],
)
def test_an_invalid_target_is_refused_by_its_field(http: httpx.Client, to: Any, field: str) -> None:
    http.put("/v1/groups/INVALID", json={})
    answer = reset(http, "INVALID", to)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_unknown_names_and_system_groups_are_refused(http: httpx.Client) -> None:
    assert problem(reset(http, "NOBODY", "latest"))[:2] == (404, "unknown-group")
    made(http, "KNOWN")
    answer = http.post("/v1/groups/KNOWN/offsets:reset", json={"topic": "NONE", "to": "latest"})
    assert problem(answer)[:2] == (404, "unknown-topic")
    assert problem(reset(http, "TOOLS_CONSUMER", "latest"))[:2] == (403, "reserved-name")
    assert problem(reset(http, "KNOWN", "latest", dryrun=True))[:2] == (400, "unknown-field")


def test_a_clone_takes_over_the_offsets_of_another_group(http: httpx.Client) -> None:
    made(http, "SOURCE", a=7, b=9)
    group = made(http, "COPY", a=1)
    path = f"/v1/groups/{group}/offsets:clone"
    planned = http.post(path, json={"from_group": "SOURCE", "topic": TOPIC, "dry_run": True}).json()
    assert [(item["broker"], item["from"], item["to"]) for item in planned["items"]] == [
        ("broker-a", "1", "7"), ("broker-b", None, "9"),
    ]  # fmt: skip
    assert committed(http, group)["broker-a", 0] == "1"
    report = http.post(path, json={"from_group": "SOURCE"}).json()
    assert (committed(http, group)["broker-a", 0], committed(http, group)["broker-b", 0]) == ("7", "9")
    undo(http, group, report["undo"])
    assert (committed(http, group)["broker-a", 0], committed(http, group)["broker-b", 0]) == ("1", None)
    assert problem(http.post(path, json={"from_group": group})) == (400, "invalid-field", "/from_group")
    made(http, "EMPTY")
    assert problem(http.post(path, json={"from_group": "EMPTY", "topic": TOPIC}))[:2] == (409, "conflict")


def test_resets_are_in_the_audit_trail(http: httpx.Client) -> None:
    group = made(http, "AUDITED", a=15)
    report = reset(http, group, [place(0, 5)]).json()
    undo(http, group, report["undo"])
    entries = http.get("/v1/audit", params={"kind": "group", "name": group, "limit": 2}).json()["items"]
    assert [entry["action"] for entry in entries] == ["group.offsets.undo", "group.offsets.reset"]
    assert entries[1]["before"] == {"offsets": [{"topic": TOPIC, **place(0, 15)}]}
    assert entries[1]["after"] == {"offsets": [{"topic": TOPIC, **place(0, 5)}]}


async def test_a_running_stream_goes_on_where_it_was_put(http: httpx.Client, stack: Stack) -> None:
    group = made(http, "STREAMED")
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(group, TOPIC, start="first", batch=5)
        seen = 0
        while seen < 2 * COUNT:
            batch = await subscription.next(timeout_ms=30_000)
            assert batch is not None
            seen += len(batch.messages)
            await subscription.ack(batch)
        began = asyncio.get_running_loop().time()
        report = (await asyncio.to_thread(reset, http, group, [place(0, 12)])).json()
        assert report["items"][0]["outcome"] == "reset"
        again: list[int] = []
        while len(again) < COUNT - 12:
            batch = await subscription.next(timeout_ms=30_000)
            assert batch is not None
            again += [message.queue_offset for message in batch.messages]
            await subscription.ack(batch)
        assert again == list(range(12, COUNT))
        assert asyncio.get_running_loop().time() - began < 5
        async with asyncio.timeout(30):
            while True:
                if (await asyncio.to_thread(committed, http, group))["broker-a", 0] == str(COUNT):
                    break
                await asyncio.sleep(0.1)
        await subscription.unsubscribe()


def test_a_broker_that_is_away_is_reported_for_each_of_its_queues(http: httpx.Client, stack: Stack) -> None:
    group = made(http, "AWAY", a=15, b=15)
    done = reset(http, group, "earliest").json()
    process = stack.pid_of("broker-b")
    os.kill(process, signal.SIGSTOP)
    try:
        report = reset(http, group, "latest").json()
        refused = undo(http, group, done["undo"])
    finally:
        os.kill(process, signal.SIGCONT)
    outcomes = {(item["broker"], item["queue_id"]): item["outcome"] for item in report["items"]}
    assert outcomes == {
        ("broker-a", 0): "reset", ("broker-a", 1): "reset",
        ("broker-b", 0): "not_reset", ("broker-b", 1): "not_reset",
    }  # fmt: skip
    away = [item for item in report["items"] if item["broker"] == "broker-b"]
    assert all((item["to"], item["messages"]) == (None, None) for item in away)
    assert all("broker-b" in item["problem"]["detail"] for item in away)
    assert refused.status_code in (409, 503, 504)
    after = committed(http, group)
    assert (after["broker-a", 0], after["broker-b", 0]) == (str(COUNT), "0")
