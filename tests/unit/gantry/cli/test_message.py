"""`gantry message`: bodies in and out byte for byte, and several queues followed at once."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.gantry.cli.conftest import Answers, problem

Gantry = Callable[..., Any]
SENT = {"outcome": "stored", "status": "SEND_OK", "message_id": "7F", "stored_id": "7F1", "topic": "T",
        "broker": "broker-a", "queue_id": 0, "queue_offset": "1"}  # fmt: skip


def stored(body: str = "hello", encoding: str = "text", **changed: Any) -> dict[str, Any]:
    return {
        "message_id": "7F",
        "stored_id": "7F1",
        "topic": "T",
        "broker": "broker-a",
        "queue_id": 0,
        "queue_offset": "1",
        "body": body,
        "encoding": encoding,
        "tag": "AA",
        "keys": ["UA1545"],
        "properties": {},
        "born_at": "2026-11-21T09:30:00.123Z",
        "stored_at": "2026-11-21T09:30:00.124Z",
        "born_host": "127.0.0.1:1",
        "reconsume_times": 0,
        "size": 200,
        **changed,
    }


@pytest.fixture
def sending(answers: Answers) -> Answers:
    answers.by_call["POST /v1/topics/T/messages"] = httpx.Response(201, json=SENT)
    return answers


def test_a_message_is_sent_with_all_options(sending: Answers, gantry: Gantry) -> None:
    options = ["--tag", "AA", "--keys", "UA1545,N14228", "--property", "origin=EWR", "--property", "note=a=b"]
    more = ["--ordering-key", "N14228", "--idempotency-key", "order-42"]
    done = gantry("message", "send", "T", "hello", *options, *more, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == SENT
    assert sending.body() == {
        "body": "hello",
        "tag": "AA",
        "keys": ["UA1545", "N14228"],
        "properties": {"origin": "EWR", "note": "a=b"},
        "ordering_key": "N14228",
    }
    assert sending.asked[0].headers["idempotency-key"] == "order-42"


def test_bodies_come_from_files_and_stdin(sending: Answers, gantry: Gantry, tmp_path: Path) -> None:
    assert gantry("message", "send", "T", "-", typed="from stdin").exit_code == 0
    assert sending.body() == {"body": "from stdin"}
    (tmp_path / "bytes").write_bytes(b"\x00\xff")
    assert (
        gantry("message", "send", "T", "--file", str(tmp_path / "bytes"), "--broker", "b", "--queue", "3").exit_code
        == 0
    )
    assert sending.body() == {
        "body": base64.b64encode(b"\x00\xff").decode(),
        "encoding": "base64",
        "queue": {"broker": "b", "id": 3},
    }
    missing = gantry("message", "send", "T", "--file", str(tmp_path / "none"))
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr


def test_a_send_that_is_not_stored_prints_its_outcome(sending: Answers, gantry: Gantry) -> None:
    sending.by_call["POST /v1/topics/T/messages"] = httpx.Response(202, json={**SENT, "outcome": "unknown"})
    lost = gantry("message", "send", "T", "x", "--json")
    assert lost.exit_code == 1
    assert json.loads(lost.stdout)["outcome"] == "unknown"
    assert lost.stderr.startswith("gantry: the outcome is unknown: the message may not be stored")
    sending.by_call["POST /v1/topics/T/messages"] = problem(503, "Busy", "broker-a", outcome="not_stored")
    done = gantry("message", "send", "T", "x")
    assert (done.exit_code, done.stderr) == (1, "gantry: Busy: broker-a [not_stored]\n")


def test_a_body_is_printed_byte_for_byte(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/messages/7F1"] = stored(base64.b64encode(b"\x00\xff\n").decode(), "base64")
    assert gantry("message", "get", "7F1", "--body").stdout_bytes == b"\x00\xff\n"
    answers.by_call["GET /v1/messages/7F1"] = stored("\x1b[2Jgone")
    shown = gantry("message", "get", "7F1", "--topic", "T").stdout
    assert "\x1b" not in shown
    assert "\\x1b[2Jgone" in shown
    assert dict(answers.asked[-1].url.params) == {"topic": "T", "system": "true"}


def test_messages_are_found_by_key(answers: Answers, gantry: Gantry) -> None:
    found = {"items": [stored()], "next_cursor": None, "scanned": "1", "truncated": True}
    answers.by_call["GET /v1/topics/T/messages"] = found
    shown = gantry("message", "find", "T", "UA1545").stdout
    assert "hello" in shown
    assert "there may be more messages" in shown


def test_a_search_goes_on_until_it_has_enough_and_names_the_queues_that_it_lacks(
    answers: Answers, gantry: Gantry
) -> None:
    asked: list[dict[str, str]] = []

    def page(request: httpx.Request) -> Any:
        asked.append(dict(request.url.params))
        missing = [{"broker": "broker-b", "queue_id": 1, "reason": "its broker does not answer"}]
        cursor = f"c{len(asked)}" if len(asked) < 3 else None
        return {"items": [stored()], "next_cursor": cursor, "scanned": "1", "truncated": True, "missing": missing}

    answers.by_call["GET /v1/topics/T/messages"] = page
    options = ("--filter", "AA", "--not-consumed-by", "G", "--limit", "9", "--json")
    found = gantry("message", "find", "T", *options)
    assert len(json.loads(found.stdout)) == 3
    assert found.stderr == "gantry: the messages of queue 1 of broker-b are unknown: its broker does not answer\n"
    search = {"filter": "AA", "not_consumed_by": "G"}
    assert asked == [
        {**search, "limit": "9"},
        {**search, "limit": "8", "cursor": "c1"},
        {**search, "limit": "7", "cursor": "c2"},
    ]


def queue_of(bodies: list[str], queue_id: int) -> Callable[[httpx.Request], Any]:
    def read(request: httpx.Request) -> Any:
        offset = int(request.url.params["offset"])
        here = [
            stored(body, queue_id=queue_id, queue_offset=str(offset + n)) for n, body in enumerate(bodies[offset:][:2])
        ]
        end = len(bodies)
        return {
            "status": "FOUND" if here else "NO_NEW_MSG",
            "messages": here,
            "next_offset": str(offset + len(here)),
            "min_offset": "0",
            "max_offset": str(end),
        }

    return read


@pytest.fixture
def queues(answers: Answers) -> Answers:
    bodies = {0: [f"a{n}" for n in range(5)], 1: [f"b{n}" for n in range(3)]}
    answers.by_call["GET /v1/topics/T/queues"] = {
        "items": [
            {"broker": "broker-a", "queue_id": n, "min_offset": "0", "max_offset": str(len(bodies[n])), "read": True,
             "write": True, "last_stored_at": None}
            for n in bodies
        ],
        "next_cursor": None,
    }  # fmt: skip
    for n, content in bodies.items():
        answers.by_call[f"GET /v1/topics/T/queues/broker-a/{n}/messages"] = queue_of(content, n)
    return answers


def test_tail_prints_all_queues_in_their_order(queues: Answers, gantry: Gantry) -> None:
    done = gantry("message", "tail", "T", "--from-start", "--until-end", "--json")
    assert done.exit_code == 0, done.output
    bodies = [json.loads(line)["body"] for line in done.stdout.splitlines()]
    assert [body for body in bodies if body < "b"] == ["a0", "a1", "a2", "a3", "a4"]
    assert [body for body in bodies if body > "b"] == ["b0", "b1", "b2"]
    assert all("wait" not in request.url.params for request in queues.asked)


def test_tail_stops_at_its_limit(queues: Answers, gantry: Gantry) -> None:
    done = gantry("message", "tail", "T", "--from-start", "--limit", "2", "--queue", "0")
    assert [line.rpartition("  ")[2] for line in done.stdout.splitlines()] == ["a0", "a1"]
    assert gantry("message", "tail", "T", "--until-end").stdout == ""
    assert gantry("message", "tail", "T", "--broker", "none").exit_code == 1


AWAY = {"broker": "broker-b", "queue_id": 0, "min_offset": None, "max_offset": None, "read": None, "write": None,
        "last_stored_at": None}  # fmt: skip


def test_tail_names_the_queues_it_can_not_follow(queues: Answers, gantry: Gantry) -> None:
    """It once began with offset 0 if the end of a queue was unknown."""
    queues.by_call["GET /v1/topics/T/queues"]["items"].append(AWAY)
    done = gantry("message", "tail", "T", "--from-start", "--limit", "2", "--queue", "0")
    assert [line.rpartition("  ")[2] for line in done.stdout.splitlines()] == ["a0", "a1"]
    assert "broker-b" in done.stderr
    assert gantry("message", "tail", "T", "--broker", "broker-b").exit_code == 1


def test_tail_ends_when_the_gateway_refuses(queues: Answers, gantry: Gantry) -> None:
    queues.by_call["GET /v1/topics/T/queues/broker-a/1/messages"] = problem(403, "No right", "topic: T")
    done = gantry("message", "tail", "T", "--queue", "1")
    assert done.exit_code == 1
    assert "No right" in done.stderr


LIFE = {
    "message_id": "7F",
    "topic": "T",
    "events": [
        {
            "at": "2026-11-21T09:30:00.124Z",
            "kind": "sent_back",
            "broker": "broker-a",
            "group": "orders",
            "client": None,
            "attempt": 1,
            "detail": "retry 1 waits: delay level 3",
        }
    ],
    "groups": [{"group": "orders", "state": "retrying", "since": "2026-11-21T09:30:00.124Z", "why": "it waits"}],
    "missing": ["there is no trace data"],
}


def test_the_life_of_a_message_is_printed(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/messages/7F/trace"] = httpx.Response(200, json=LIFE)
    done = gantry("message", "trace", "7F", "--topic", "T")
    assert done.exit_code == 0, done.output
    assert answers.asked[0].url.params["topic"] == "T"
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["message", "7F", "of", "topic", "T"]
    assert lines[3][:6] == ["2026-11-21T09:30:00.124Z", "sent_back", "1", "orders", "broker-a", "-"]
    assert ["orders", "retrying", "2026-11-21T09:30:00.124Z", "it", "waits"] in lines
    assert done.stdout.endswith("not known:\n- there is no trace data\n")
    assert json.loads(gantry("message", "trace", "7F", "--json").stdout) == LIFE
