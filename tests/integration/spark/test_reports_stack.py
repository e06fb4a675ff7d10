"""Reports on a real stack, asked for over HTTP: the scheduler runs them, and they are there in every form."""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from pyarrow import parquet

from gantry.http import AsyncGantryClient, OutgoingMessage, StreamClient, Subscription
from tests.support.sampleblocks import newest
from tests.support.stack import Stack
from tests.support.webhooks import Receiver

RUN_TIMEOUT_S = 240.0

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    # Only what the test asks for, whatever the time of day.
    quiet = {
        f"GANTRY_SCHEDULER_{job.upper()}_CRON": "" for job in ("lag_report", "throughput_rollup", "backlog_profile")
    }
    often = {"GANTRY_GATEWAY_SAMPLE_INTERVAL_MS": "300"}
    at_once = {"GANTRY_SCHEDULER_ALERT_RAISE_AFTER_MS": "0", "GANTRY_GATEWAY_WEBHOOK_PRIVATE_NETWORKS": "127.0.0.0/8"}
    with Stack(brokers=1, environment=quiet | often | at_once, scheduler=True) as running:
        yield running


def prepare(client: httpx.Client, group: str = "READERS") -> None:
    """Ten messages more, of which the group has consumed four."""
    assert client.put("/v1/topics/LAGGED", json={"read_queues": 1, "write_queues": 1}).status_code in {200, 201}
    assert client.put(f"/v1/groups/{group}", json={}).status_code in {200, 201}
    send(client, "LAGGED", 10)
    offsets = [{"topic": "LAGGED", "broker": "broker-a", "queue_id": 0, "offset": "4"}]
    assert client.put(f"/v1/groups/{group}/offsets", json={"offsets": offsets}).status_code == 200


def send(client: httpx.Client, topic: str, messages: int) -> None:
    queue = {"broker": "broker-a", "id": 0}
    for number in range(messages):
        message = {"body": f"m{number}", "tag": "AA", "queue": queue}
        deadline = time.monotonic() + 30
        while (answer := client.post(f"/v1/topics/{topic}/messages", json=message)).status_code != 201:
            assert time.monotonic() < deadline, answer.text


def finished(client: httpx.Client, stack: Stack, run: str, *, job: str = "lag_report") -> dict[str, Any]:
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(client.get(f"/v1/reports/{job}/runs/{run}").json())
        return found["status"] not in {"queued", "running"}

    stack.wait_for(has_ended, "to finish a report", timeout_s=RUN_TIMEOUT_S)
    return found


def test_a_report_that_is_asked_for_is_made_and_shown(stack: Stack) -> None:
    with stack.http() as client:
        prepare(client)
        oldest = client.get("/v1/topics/LAGGED/queues/broker-a/0/messages", params={"offset": "4", "limit": 1}).json()
        broker_queries = client.post("/v1/reports/lag_report/runs", json={})
        assert broker_queries.status_code == 202, broker_queries.text
        run = finished(client, stack, broker_queries.json()["id"])
        assert (run["status"], run["error"], run["trigger"], run["attempt"]) == ("succeeded", None, "manual", 1)
        assert run["rows"] == 2
        rows = client.get("/v1/reports/lag_report/rows", params={"level": "topic"}).json()["items"]
        (row,) = rows
        assert (row["group"], row["topic"], row["lag_messages"]) == ("READERS", "LAGGED", 6)
        as_of = datetime.fromisoformat(row["as_of"])
        stored_at = datetime.fromisoformat(oldest["messages"][0]["stored_at"])
        assert row["lag_seconds"] == pytest.approx((as_of - stored_at).total_seconds(), abs=0.002)
        page = client.get("/v1/reports/lag_report/runs/latest/html")
        assert "READERS" in page.text
    shown(stack, run, page.text)


def shown(stack: Stack, run: dict[str, Any], page: str) -> None:
    """Postgres, the page and Parquet say the same."""
    assert Path(run["files"]["html"]).read_text() == page
    assert Path(run["files"]["html"]).is_relative_to(stack.directory / "reports")
    written = parquet.read_table(run["files"]["parquet"]).to_pylist()
    with psycopg.connect(stack.facts["postgres"]) as connection:
        kept = connection.execute(
            "SELECT level, group_name, topic, lag_messages, lag_seconds, verdict, as_of FROM report_lag_rows"
            " WHERE run_id = %s ORDER BY level",
            (run["id"],),
        ).fetchall()
    names = ("level", "group", "topic", "lag_messages", "lag_seconds", "verdict")
    assert sorted(tuple(row[name] for name in names) for row in written) == [row[:-1] for row in kept]
    assert {row["as_of"] for row in written} == {row[-1].astimezone(UTC) for row in kept}


async def test_a_group_over_its_objective_is_an_alert_that_a_webhook_is_told_of(stack: Stack) -> None:
    async with Receiver() as receiver:
        await asyncio.to_thread(_go_over_an_objective, stack, receiver.url)
        await receiver.until(2)
    test, opened = (json.loads(request.body) for request in sorted(receiver.received, key=lambda one: len(one.body)))
    assert (test["type"], opened["type"]) == ("test", "alert.opened")
    with stack.http() as client:
        [alert] = client.get("/v1/alerts", params={"group": "OVER"}).json()["items"]
        [event] = client.get("/v1/alerts/events", params={"group": "OVER"}).json()["items"]
    assert opened["data"] == event
    assert (alert["id"], alert["verdict"], event["cause"]) == (
        event["alert"],
        event["new_verdict"],
        opened["data"]["cause"],
    )
    assert event["cause"].endswith(f"It is over its objective: {event['lag_messages']} messages behind, 5 allowed.")


def _go_over_an_objective(stack: Stack, url: str) -> None:
    with stack.http() as client:
        prepare(client, "OVER")
        made = client.post("/v1/webhooks", json={"url": url, "groups": ["OVER"]}).json()
        assert client.post(f"/v1/webhooks/{made['id']}/deliveries").status_code == 202
        objective = client.put("/v1/groups/OVER/objective", json={"max_lag_messages": 5})
        assert objective.status_code == 201, objective.text
        broker_queries = client.post("/v1/reports/lag_report/runs", json={}).json()["id"]
        assert finished(client, stack, broker_queries)["status"] == "succeeded"


def test_a_topic_that_nobody_reads_has_a_throughput(stack: Stack) -> None:
    def sampled(end: int) -> bool:
        with psycopg.connect(stack.facts["postgres"]) as connection:
            return any(one[2] == [end] for one in newest(connection, None, "UNREAD").values())

    with stack.http() as client:
        assert client.put("/v1/topics/UNREAD", json={"read_queues": 1, "write_queues": 1}).status_code in {200, 201}
        stack.wait_for(lambda: sampled(0), "to sample a topic")
        send(client, "UNREAD", 7)
        stack.wait_for(lambda: sampled(7), "to sample what came")
        broker_queries = client.post("/v1/reports/throughput_rollup/runs", json={})
        run = finished(client, stack, broker_queries.json()["id"], job="throughput_rollup")
        assert (run["status"], run["error"]) == ("succeeded", None)
    with psycopg.connect(stack.facts["postgres"]) as connection:
        found = connection.execute(
            "SELECT group_name, sum(messages), max(rate_max) FROM report_throughput"
            " WHERE topic = 'UNREAD' AND unit = 'hour' GROUP BY group_name"
        ).fetchall()
    ((group, messages, rate_max),) = found
    assert (group, messages) == (None, 7)
    assert rate_max > 0


RESET_MESSAGES, BEFORE_RESET, AFTER_RESET = 200, 30, 5


async def test_a_reset_beside_a_running_consumer_is_not_counted_as_consumed(stack: Stack) -> None:
    await _consume_around_a_reset(stack)
    with stack.http() as client:
        lag = await asyncio.to_thread(_reported, client, stack, "lag_report")
        rows = client.get("/v1/reports/lag_report/rows", params={"group": "RESETTER", "run": lag["id"]}).json()["items"]
        rollup = await asyncio.to_thread(_reported, client, stack, "throughput_rollup")
    (row,) = [row for row in rows if (row["level"], row["topic"]) == ("topic", "RESETS")]
    evidence = row["evidence"]
    assert evidence["moved_messages"] == RESET_MESSAGES - BEFORE_RESET
    # The first ten may have been consumed before the first sample of the group.
    assert row["out_rate"] * evidence["window_s"] + 0.5 >= BEFORE_RESET + AFTER_RESET - 10, row
    assert row["out_rate"] * (evidence["covered_s"] - evidence["moved_s"]) <= BEFORE_RESET + AFTER_RESET + 0.5, row
    with psycopg.connect(stack.facts["postgres"]) as connection:
        minutes = connection.execute(
            "SELECT group_name, bucket_at, messages, covered_s FROM report_throughput"
            " WHERE topic = 'RESETS' AND unit = 'minute' AND run_id = %s ORDER BY bucket_at",
            (rollup["id"],),
        ).fetchall()
    consumed = sum(messages for group, _, messages, _ in minutes if group == "RESETTER")
    most = BEFORE_RESET + AFTER_RESET
    assert most - 10 <= consumed <= most, minutes


def _reported(client: httpx.Client, stack: Stack, job: str) -> dict[str, Any]:
    asked = client.post(f"/v1/reports/{job}/runs", json={})
    run = finished(client, stack, asked.json()["id"], job=job)
    assert (run["status"], run["error"]) == ("succeeded", None)
    return run


async def _consume_around_a_reset(stack: Stack) -> None:
    """Consume 30 of 200 messages, reset the offset to the end, and consume 5 more, with one consumer that stays."""
    async with (
        AsyncGantryClient.from_stack(stack.directory) as client,
        StreamClient.from_stack(stack.directory) as stream,
    ):
        await client.put_topic("RESETS", read_queues=1, write_queues=1)
        await client.send_batch("RESETS", [OutgoingMessage(f"m{number}") for number in range(RESET_MESSAGES)])
        subscription = await stream.subscribe("RESETTER", "RESETS", start="first", credit_messages=10, batch=10)
        for step in range(10, BEFORE_RESET + 1, 10):
            batch = await subscription.next(timeout_ms=30_000)
            assert batch is not None
            assert len(batch.messages) == 10
            await subscription.ack(batch, wait=True)
            await _sampled(stack, step)
        with stack.http() as http:
            answer = http.post("/v1/groups/RESETTER/offsets:reset", json={"topic": "RESETS", "to": "latest"})
            assert {item["outcome"] for item in answer.json()["items"]} == {"reset"}, answer.text
        await _sampled(stack, RESET_MESSAGES)
        await _send_and_consume(stack, client, subscription, AFTER_RESET, RESET_MESSAGES)


async def _send_and_consume(
    stack: Stack, client: AsyncGantryClient, subscription: Subscription, count: int, first: int
) -> None:
    """Send messages, whose offsets begin at `first`, consume them, and wait until the commit is sampled."""
    await client.send_batch("RESETS", [OutgoingMessage(f"m{number}") for number in range(count)])
    left = count
    while left:
        batch = await subscription.next(timeout_ms=30_000)
        assert batch is not None
        later = [message for message in batch.messages if message.queue_offset >= first]
        await subscription.ack(later, wait=True)
        left -= len(later)
    await _sampled(stack, first + count)


async def _sampled(stack: Stack, offset: int) -> None:
    """Wait until a sample has this committed offset."""

    def committed() -> bool:
        with psycopg.connect(stack.facts["postgres"]) as connection:
            return any(one[3] == [offset] for one in newest(connection, "RESETTER", "RESETS").values())

    await asyncio.to_thread(stack.wait_for, committed, f"to sample the commit {offset}")
