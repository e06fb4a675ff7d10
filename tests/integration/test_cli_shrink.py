"""`gantry topic shrink` against a running stack: fewer queues without loss, and the mistakes of newcomers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.commandline import Gantry
from tests.support.stack import Stack, environment

BROKERS = ("broker-a", "broker-b")
# A job looks again after 5 s, then after 10 s and so on; the machine may be slow.
JOB_TIMEOUT_S = 180


@pytest.fixture
def gantry(stack: Stack) -> Gantry:
    return Gantry(stack)


def send(stack: Stack, topic: str, body: str, broker: str, queue_id: int) -> None:
    with stack.http() as client:
        message = {"body": body, "queue": {"broker": broker, "id": queue_id}}
        client.post(f"/v1/topics/{topic}/messages", json=message).raise_for_status()


def consume(gantry: Gantry, topic: str, group: str) -> list[str]:
    """Consume all messages of a topic, and return their bodies."""
    done = gantry.run("consume", topic, "--group", group, "--until-empty", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def queues_of(gantry: Gantry, topic: str) -> tuple[int, int]:
    shown = gantry.json("topic", "show", topic)
    return shown["read_queues"], shown["write_queues"]


def job_until(stack: Stack, job: str, is_met: Callable[[Any], bool]) -> Any:
    """Wait until a job meets a condition, and return what the command shows of it."""
    # The waiting asks the gateway: each command is a process that would take half a second from the stack.
    with stack.http() as client:
        stack.wait_for(lambda: is_met(client.get(f"/v1/jobs/{job}").json()), f"and job {job}", timeout_s=JOB_TIMEOUT_S)
    found = Gantry(stack).json("job", "show", job)
    assert is_met(found), found
    return found


def test_queues_close_for_producers_first_and_for_consumers_when_all_have_caught_up(
    gantry: Gantry, stack: Stack
) -> None:
    gantry.json("topic", "create", "NARROW", "--queues", "3")
    placed = [(f"{broker}/{queue_id}", broker, queue_id) for broker in BROKERS for queue_id in range(3)]
    for body, broker, queue_id in placed:
        send(stack, "NARROW", body, broker, queue_id)
    assert sorted(consume(gantry, "NARROW", "FAST")) == sorted(body for body, _, _ in placed)
    gantry.json("group", "create", "SLOW")
    gantry.json("offset", "set", "SLOW", "NARROW", "--to", "earliest")
    header, *rows = gantry.table("topic", "shrink", "NARROW", "1", "--dry-run")
    assert header == ["group", "broker", "queue_id", "unconsumed"]
    assert rows == [["SLOW", broker, str(queue_id), "1"] for broker in BROKERS for queue_id in (1, 2)]
    assert queues_of(gantry, "NARROW") == (3, 3), "a dry run changes nothing"

    job = gantry.json("topic", "shrink", "NARROW", "1")
    assert (job["kind"], job["arguments"]) == ("shrink", {"topic": "NARROW", "queues": 1})
    assert queues_of(gantry, "NARROW") == (3, 1)
    for number in range(4):
        sent = gantry.json("message", "send", "NARROW", f"late-{number}")
        assert sent["queue_id"] == 0, "producers leave the other queues at once"
    refused = gantry.refused("message", "send", "NARROW", "x", "--broker", "broker-a", "--queue", "2")
    assert "[not_stored]" in refused
    waiting = job_until(stack, job["job"], lambda found: found["error"] is not None)
    assert "group SLOW has 1 messages to consume in broker-a/1" in waiting["error"]
    assert waiting["ended_at"] is None

    bodies = [*(body for body, _, _ in placed), *(f"late-{number}" for number in range(4))]
    assert sorted(consume(gantry, "NARROW", "SLOW")) == sorted(bodies), "consumers read all queues until the end"
    ended = gantry.json("job", "wait", job["job"], timeout_s=JOB_TIMEOUT_S)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 2, 2)
    shown = gantry.json("topic", "show", "NARROW")
    assert (shown["read_queues"], shown["write_queues"], shown["state"]) == (1, 1, "applied")
    assert [(queue["broker"], queue["queue_id"]) for queue in shown["queues"]] == [(broker, 0) for broker in BROKERS]
    assert "is not below read_queues=1 and write_queues=1" in gantry.refused("topic", "shrink", "NARROW", "1")


def test_a_waiting_command_says_why_and_ends_with_the_job(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "AWAITED", "--queues", "2")
    send(stack, "AWAITED", "m", "broker-b", 1)
    command = [sys.executable, "-m", "gantry.cli", "topic", "shrink", "AWAITED", "1", "--wait", "--json"]
    with subprocess.Popen(
        [*command, "--data", str(stack.directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as waiting:
        try:
            assert waiting.stderr is not None
            line = waiting.stderr.readline()
            assert "is not done yet: waits: broker-b/1 has 1 messages, and no group consumes the topic" in line
            assert queues_of(gantry, "AWAITED") == (2, 1)
            assert consume(gantry, "AWAITED", "LATE") == ["m"]
            printed, _ = waiting.communicate(timeout=JOB_TIMEOUT_S)
        finally:
            waiting.kill()
    assert (waiting.returncode, json.loads(printed)["state"]) == (0, "done")
    assert queues_of(gantry, "AWAITED") == (1, 1)


def test_a_command_whose_job_fails_ends_with_an_error(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "REGROWN", "--queues", "2")
    send(stack, "REGROWN", "m", "broker-a", 1)
    job = gantry.json("topic", "shrink", "REGROWN", "1")["job"]
    gantry.json("topic", "create", "REGROWN", "--write-queues", "2")
    done = gantry.run("job", "wait", job, timeout_s=JOB_TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    assert "write_queues of REGROWN was raised to 2 meanwhile" in done.stdout
    assert queues_of(gantry, "REGROWN") == (2, 2)


def test_a_cancelled_shrink_leaves_the_queues_to_consumers(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "GIVEN_UP", "--queues", "2")
    send(stack, "GIVEN_UP", "kept", "broker-a", 1)
    job = gantry.json("topic", "shrink", "GIVEN_UP", "1")["job"]
    gantry.json("job", "cancel", job)
    ended = job_until(stack, job, lambda found: found["ended_at"] is not None)
    assert ended["state"] == "cancelled"
    assert consume(gantry, "GIVEN_UP", "READERS") == ["kept"]
    assert queues_of(gantry, "GIVEN_UP") == (2, 1)
    gantry.json("topic", "create", "GIVEN_UP", "--write-queues", "2")
    send(stack, "GIVEN_UP", "again", "broker-a", 1)
    assert consume(gantry, "GIVEN_UP", "READERS") == ["again"]


def test_a_broker_that_does_not_answer_makes_it_unknown(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "HALF_SEEN", "--queues", "2")
    assert gantry.table("topic", "shrink", "HALF_SEEN", "1", "--dry-run") == [
        ["all", "groups", "have", "consumed", "the", "queues"]
    ]
    os.kill(stack.pid_of("broker-b"), signal.SIGSTOP)
    try:
        shown = gantry.run("topic", "shrink", "HALF_SEEN", "1", "--dry-run")
        state = gantry.json("topic", "shrink", "HALF_SEEN", "1", "--dry-run")
    finally:
        os.kill(stack.pid_of("broker-b"), signal.SIGCONT)
    assert (state["ready"], state["blocking"], len(state["missing"])) == (None, [], 1)
    first, second = shown.stdout.splitlines()
    assert first == "unknown: a broker does not answer"
    assert (second.startswith("not asked: "), "broker-b" in second) == (True, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("WIDE", "0"), "Invalid value for 'N'"),
        (("WIDE", "two"), "Invalid value for 'N'"),
        (("WIDE",), "Missing argument 'N'"),
        (("WIDE", "1", "--dry-run", "--wait"), "--dry-run changes nothing"),
    ],
)
def test_wrong_usage_sends_nothing(gantry: Gantry, words: tuple[str, ...], text: str) -> None:
    done = gantry.run("topic", "shrink", *words)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr


def test_mistakes_are_named_in_one_line(gantry: Gantry) -> None:
    gantry.json("topic", "create", "WIDE", "--queues", "4")
    made = gantry.json("key", "create", "a producer", "--publish", "WIDE", "--consume-topic", "WIDE")
    for words, key, text in (
        (("NO_SUCH_TOPIC", "1"), None, "NO_SUCH_TOPIC"),
        (("WIDE", "4"), None, "/queues: 4 is not below read_queues=4 and write_queues=4"),
        (("WIDE", "9", "--dry-run"), None, "/queues: 9 is not below"),
        (("%RETRY%GROUP", "1"), None, "%RETRY%GROUP"),
        (("bad name", "1"), None, "bad name"),
        (("WIDE", "1"), made["key"], "right"),
    ):
        assert text in gantry.refused("topic", "shrink", *words, key=key), words
    assert queues_of(gantry, "WIDE") == (4, 4)


def test_a_change_that_hides_messages_points_to_the_shrink(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "HASTY", "--queues", "2")
    send(stack, "HASTY", "m", "broker-a", 1)
    refused = gantry.refused("topic", "create", "HASTY", "--queues", "1")
    assert "broker-a/1 (1 message)" in refused
    assert "gantry topic shrink" in refused
