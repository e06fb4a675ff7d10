"""Both REST clients: the request of each call, how answers are decoded, and the errors that failures raise."""

import inspect
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from gantry.http import AsyncGantryClient, GantryClient, GantryConnectionError, GantryProblem, GantryProtocolError
from gantry.http.results import OffsetCommit, OutgoingMessage, Rights
from tests.unit.gantry.http.alertfacts import ALERT, ALERT_EVENT, DELIVERY, OBJECTIVE, WEBHOOK

TOPIC = {
    "topic": "T", "read_queues": 4, "write_queues": 4, "perm": "rw", "order": False, "brokers": None, "state": "applied",
    "pending": [], "origin": "api", "observed": [], "metadata": "available", "created_at": None, "updated_at": None,
    "something_new": 1,
}  # fmt: skip
GROUP = {
    "group": "G", "retry_max_times": 16, "retry_queues": 1, "consume": True, "from_min": True, "broadcast": True,
    "orderly": False, "consume_timeout_minutes": 15, "notify_changes": True, "state": "applied", "pending": [],
    "origin": "api", "observed": [], "metadata": "available", "created_at": None, "updated_at": None,
}  # fmt: skip
LIFE = {
    "message_id": "M", "topic": "T", "missing": ["no trace data"],
    "events": [{"at": "2026-01-01T00:00:00.000Z", "kind": "stored", "broker": "b", "group": None, "client": None,
                "attempt": None, "detail": "queue 0"}],
    "groups": [{"group": "G", "state": "pending", "since": None, "why": "offset 0"}],
}  # fmt: skip
MESSAGE = {
    "message_id": "M", "stored_id": "S", "topic": "T", "broker": "b", "queue_id": 1, "queue_offset": 5, "body": b"\x00{",
    "encoding": "binary", "tag": None, "keys": [], "properties": {}, "born_at": "", "stored_at": "", "born_host": "",
    "reconsume_times": 0, "size": 100,
}  # fmt: skip
LETTER = MESSAGE | {
    "dead_at": "", "origin": {"topic": "T", "message_id": None}, "attempts": 16, "redriven_at": None,
}  # fmt: skip
WAITING = MESSAGE | {"handle": "h", "deliver_at": ""}
RESET = {
    "items": [{
        "topic": "T", "broker": "b", "queue_id": 1, "from": "12", "to": "9", "messages": "3", "first": {}, "last": None,
        "note": None, "outcome": "reset",
    }],
    "messages": "3", "undo": "token", "truncated": False,
}  # fmt: skip
PRODUCER_GROUP = {"group": "G", "check_url": None, "has_secret": False, "updated_at": None}
JOB = {
    "job": "j-1", "kind": "redrive", "arguments": {}, "state": "running", "cancel_requested": False, "done": 3,
    "failed": 0, "total": None, "error": None, "created_by": None, "created_at": "", "started_at": "", "ended_at": None,
}  # fmt: skip
SENT = {"outcome": "stored", "message_id": "M", "queue_id": 1, "queue_offset": "900719925474099300"}
KEY = {"id": "key-1", "name": "n", "rights": {"publish": ["*"]}, "created_at": ""}
REPORT = {
    "job": "lag_report", "schedule": None, "time_zone": None, "next_run_at": None, "last_run": None,
    "schedule_set": {"cron": "0 8 * * *", "time_zone": "Asia/Tokyo", "set_by": "admin", "set_at": "x"},
}  # fmt: skip
RUN = {
    "id": "r-1", "job": "lag_report", "window": {"from": "a", "to": "b"}, "trigger": "manual", "status": "running",
    "progress": {"percent": 40, "step": "offsets"}, "attempt": 1, "rows": None, "error": None, "created_at": "",
    "started_at": "", "finished_at": None, "duration_ms": None, "files": None,
}  # fmt: skip
LAG_ROW = {
    "level": "topic", "group": "G", "topic": "T", "broker": None, "queue_id": None, "as_of": "", "lag_messages": None,
    "lag_seconds": 1.5, "oldest_unconsumed_at": None, "in_rate": 1, "out_rate": None, "drain_eta_s": None,
    "drain_eta_low_s": None, "drain_eta_high_s": None, "retention_left_s": None, "skew": None,
    "top_tags": [{"tag": "UA", "messages": 3}], "clients": 0, "verdict": "UNKNOWN", "cause": "why", "next_step": None,
    "evidence": {"unknown": "why"},
}  # fmt: skip
LAG_ROWS = {"run": "r-1", "as_of": "", "items": [LAG_ROW], "next_cursor": None}
BACKLOG_ROWS = {"run": "r-1", "as_of": "", "items": [], "next_cursor": None}
BUCKET = {
    "bucket_at": "",
    "topic": "T",
    "group": None,
    "messages": 3,
    "rate_max": 1.5,
    "lag_messages": None,
    "covered_s": 60.0,
}
THROUGHPUT = {
    "unit": "day",
    "from": "x",
    "to": "y",
    "time_zone": "Asia/Kolkata",
    "items": [BUCKET],
    "next_cursor": None,
}
FOUND = {"items": [MESSAGE], "scanned": 1, "truncated": False, "next_cursor": None}
READ = {"status": "FOUND", "messages": [MESSAGE], "next_offset": 6, "min_offset": 0, "max_offset": 6}


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None}


# Each case: method, arguments, expected request, answer.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any]] = [
    ("list_topics", (), {"system": True}, "GET /v1/topics?limit=1000&system=true", page(TOPIC)),
    ("get_topic", ("a/b%",), {}, "GET /v1/topics/a%2Fb%25", TOPIC),
    ("put_topic", ("T",), {"perm": "r"}, "PUT /v1/topics/T", TOPIC),
    ("delete_topic", ("T",), {}, "DELETE /v1/topics/T", None),
    ("list_queues", ("T",), {}, "GET /v1/topics/T/queues", page()),
    ("list_producers", ("T",), {}, "GET /v1/topics/T/producers", {"items": [], "missing": [], "truncated": False}),
    ("send", ("T", OutgoingMessage("x")), {}, "POST /v1/topics/T/messages", SENT),
    ("send_batch", ("T", [OutgoingMessage(b"x")]), {}, "POST /v1/topics/T/messages:batch",
     {"results": [SENT], "stored": 1, "not_stored": 0, "unknown": 0}),
    ("get_message", ("M",), {"topic": "T"}, "GET /v1/messages/M?topic=T", MESSAGE),
    ("trace_message", ("M",), {"topic": "T"}, "GET /v1/messages/M/trace?topic=T", LIFE),
    ("find_messages", ("T", "k"), {}, "GET /v1/topics/T/messages?key=k&limit=100", FOUND),
    ("search_messages", ("T",), {"not_before": "2026-01-01T00:00:00Z", "sql": "a > 1", "not_consumed_by": "G", "cursor": "c"},
     "GET /v1/topics/T/messages?sql=a+%3E+1&not_consumed_by=G&limit=100&cursor=c&from=2026-01-01T00%3A00%3A00Z", FOUND),
    ("read_queue", ("T", "b", 1), {"wait_ms": 50, "expression": "A||B"},
     "GET /v1/topics/T/queues/b/1/messages?offset=0&limit=32&wait=50ms&filter=A%7C%7CB", READ),
    ("find_offset", ("T", "b", 1), {"at": "2026-01-01T00:00:00Z"},
     "GET /v1/topics/T/queues/b/1/offsets?at=2026-01-01T00%3A00%3A00Z&boundary=lower", {"offset": "12"}),
    ("list_groups", (), {}, "GET /v1/groups?limit=1000", page(GROUP)),
    ("get_group", ("G",), {}, "GET /v1/groups/G", GROUP),
    ("put_group", ("G",), {"retry_max_times": 3}, "PUT /v1/groups/G", GROUP),
    ("delete_group", ("G",), {}, "DELETE /v1/groups/G", None),
    ("get_offsets", ("G",), {"topic": "T"}, "GET /v1/groups/G/offsets?topic=T", page()),
    ("commit_offsets", ("G", [OffsetCommit("T", "b", 1, 9)]), {}, "PUT /v1/groups/G/offsets",
     {"results": [{"topic": "T", "broker": "b", "queue_id": 1, "offset": "9", "outcome": "committed"}],
      "committed": 1, "refused": 0}),
    ("reset_offsets", ("G", "T", [OffsetCommit("T", "b", 1, 9)]), {}, "POST /v1/groups/G/offsets:reset", RESET),
    ("undo_offset_reset", ("G", "token"), {}, "POST /v1/groups/G/offsets:undo", RESET),
    ("clone_offsets", ("G", "H"), {"topic": "T"}, "POST /v1/groups/G/offsets:clone", RESET),
    ("list_clients", ("G",), {}, "GET /v1/groups/G/clients", page()),
    ("get_consistency", ("G",), {}, "GET /v1/groups/G/consistency",
     {"consistent": True, "since": None, "differences": [], "missing": []}),
    ("list_subscriptions", ("G",), {}, "GET /v1/groups/G/subscriptions?limit=1000", page()),
    ("list_objectives", (), {"group": "G"}, "GET /v1/objectives?limit=1000&group=G", page(OBJECTIVE)),
    ("get_objective", ("G",), {"topic": "T"}, "GET /v1/groups/G/objective?topic=T", OBJECTIVE),
    ("put_objective", ("G",), {"ignore": True}, "PUT /v1/groups/G/objective", OBJECTIVE),
    ("delete_objective", ("G",), {"topic": "T"}, "DELETE /v1/groups/G/objective?topic=T", None),
    ("list_alerts", (), {"group": "G"}, "GET /v1/alerts?limit=1000&group=G", page(ALERT)),
    ("list_alert_events", (), {"topic": "T"}, "GET /v1/alerts/events?topic=T&limit=100", page(ALERT_EVENT)),
    ("list_webhooks", (), {}, "GET /v1/webhooks?limit=1000", page(WEBHOOK)),
    ("create_webhook", ("https://h/",), {"groups": ["G*"]}, "POST /v1/webhooks", {**WEBHOOK, "secret": "whsec_x"}),
    ("put_webhook", ("w-1",), {"enabled": False}, "PUT /v1/webhooks/w-1", WEBHOOK),
    ("delete_webhook", ("w-1",), {}, "DELETE /v1/webhooks/w-1", None),
    ("test_webhook", ("w-1",), {}, "POST /v1/webhooks/w-1/deliveries", DELIVERY),
    ("list_deliveries", ("w-1",), {"status": "failed"}, "GET /v1/webhooks/w-1/deliveries?status=failed&limit=100",
     page(DELIVERY)),
    ("get_cluster", (), {}, "GET /v1/cluster", {"name_servers": [], "brokers": [], "metadata": "available"}),
    ("list_keys", (), {"revoked": True}, "GET /v1/keys?limit=1000&revoked=true", page(KEY)),
    ("create_key", ("n", Rights(admin=True)), {}, "POST /v1/keys", {**KEY, "key": "gk_1"}),
    ("rotate_key", ("key-1",), {"overlap": "1h"}, "POST /v1/keys/key-1:rotate", {**KEY, "key": "gk_2"}),
    ("change_key", ("key-1",), {"expires_at": None}, "PUT /v1/keys/key-1", KEY),
    ("revoke_key", ("key-1",), {}, "DELETE /v1/keys/key-1", None),
    ("create_ticket", (), {}, "POST /v1/tickets", {"ticket": "t", "expires_at": ""}),
    ("list_reports", (), {}, "GET /v1/reports",
     {"items": [{"job": "lag_report", "schedule": "* * * * *", "next_run_at": None, "last_run": RUN}]}),
    ("put_report_schedule", ("lag_report", "0 8 * * *"), {"time_zone": "Asia/Tokyo"},
     "PUT /v1/reports/lag_report/schedule", REPORT),
    ("delete_report_schedule", ("lag_report",), {}, "DELETE /v1/reports/lag_report/schedule", REPORT),
    ("start_report_run", ("lag_report",), {}, "POST /v1/reports/lag_report/runs", RUN),
    ("list_report_runs", ("lag_report",), {"limit": 5}, "GET /v1/reports/lag_report/runs?limit=5", page(RUN)),
    ("get_report_run", ("lag_report", "r-1"), {}, "GET /v1/reports/lag_report/runs/r-1", RUN),
    ("get_report_page", ("lag_report",), {}, "GET /v1/reports/lag_report/runs/latest/html", "<html>"),
    ("read_lag_rows", (), {"group": "G", "level": "topic"},
     "GET /v1/reports/lag_report/rows?limit=1000&run=latest&group=G&level=topic", LAG_ROWS),
    ("read_lag_history", ("G", "T"), {"since": "a"}, "GET /v1/reports/lag_report/history?group=G&topic=T&from=a",
     {"group": "G", "topic": "T", "from": "a", "to": "b", "step_s": 300, "items": [
         {"at": "a", "lag_messages": 5, "lag_seconds": 1.5}, {"at": "b", "lag_messages": None, "lag_seconds": None}]}),
    ("read_backlog_rows", ("r-1",), {"group": "G", "section": "age"},
     "GET /v1/reports/backlog_profile/rows?limit=1000&run=r-1&group=G&section=age", BACKLOG_ROWS),
    ("read_throughput", ("day",), {"since": "a", "time_zone": "Asia/Kolkata", "topic": "T"},
     "GET /v1/reports/throughput_rollup/rows?limit=1000&unit=day&from=a&time_zone=Asia%2FKolkata&topic=T", THROUGHPUT),
    ("list_jobs", (), {"kind": "redrive"}, "GET /v1/jobs?limit=1000&kind=redrive", page(JOB)),
    ("get_job", ("j/1",), {}, "GET /v1/jobs/j%2F1", JOB),
    ("cancel_job", ("j-1",), {}, "POST /v1/jobs/j-1:cancel", JOB),
    ("list_dead_letters", ("G",), {"topic": "T", "since": "a"},
     "GET /v1/groups/G/dead-letters?limit=100&topic=T&from=a", page(LETTER)),
    ("redrive_dead_letters", ("G",), {"message_ids": ["M"]}, "POST /v1/groups/G/dead-letters:redrive", JOB),
    ("try_redrive", ("G",), {"filter": {}}, "POST /v1/groups/G/dead-letters:redrive", {"selected": 1, "sample": [{}]}),
    ("list_scheduled", ("T",), {"until": "b"}, "GET /v1/topics/T/scheduled?limit=100&to=b", page(WAITING)),
    ("recall_message", ("T", "h"), {}, "POST /v1/topics/T/scheduled/h:recall", {"outcome": "gone"}),
    ("reschedule_message", ("T", "h"), {"delay": "1s"}, "POST /v1/topics/T/scheduled/h:reschedule",
     {"handle": "h2", "deliver_at": None}),
    ("pull", ("G", "T"), {"wait_ms": 5}, "POST /v1/groups/G/messages:pull", {"messages": []}),
    ("ack", ("G", ["r"]), {}, "POST /v1/groups/G/messages:ack", {"results": [{"receipt": "r", "outcome": "acked"}]}),
    ("nack", ("G", ["r"]), {"delay_ms": 5}, "POST /v1/groups/G/messages:nack", {"results": []}),
    ("extend", ("G", ["r"]), {}, "POST /v1/groups/G/messages:extend", {"receipts": [None], "results": []}),
    ("get_producer_group", ("G",), {}, "GET /v1/producer-groups/G", PRODUCER_GROUP),
    ("put_producer_group", ("G",), {"check_url": None}, "PUT /v1/producer-groups/G", PRODUCER_GROUP),
    ("list_audit", (), {"kind": "key", "actor": "user:ada", "since": "a", "until": "b"},
     "GET /v1/audit?limit=1000&kind=key&actor=user%3Aada&to=b&from=a", page()),
]  # fmt: skip


def answer(request: httpx.Request, value: Any) -> httpx.Response:
    """Answer in the requested coding."""
    if value is None:
        return httpx.Response(204)
    encode = msgspec.msgpack.encode if request.headers.get("accept") == "application/msgpack" else msgspec.json.encode
    return httpx.Response(200, content=encode(value), headers={"etag": '"7"'})


def sync_client(handler: Callable[[httpx.Request], httpx.Response]) -> GantryClient:
    return GantryClient("http://gateway/", "key", transport=httpx.MockTransport(handler))


async def run(
    client_kind: str, handler: Callable[[httpx.Request], httpx.Response], method: str, *args: Any, **kwargs: Any
) -> Any:
    """Call a method of one of the clients."""
    if client_kind == "sync":
        with sync_client(handler) as client:
            return getattr(client, method)(*args, **kwargs)
    async with AsyncGantryClient("http://gateway", "key", transport=httpx.MockTransport(handler)) as client:
        return await getattr(client, method)(*args, **kwargs)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("method", "args", "kwargs", "asked", "value"), CALLS, ids=[call[0] for call in CALLS])
async def test_every_call(
    kind: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], asked: str, value: Any
) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answer(request, value)

    await run(kind, handler, method, *args, **kwargs)
    (request,) = requests
    assert f"{request.method} {request.url.raw_path.decode()}" == asked
    assert request.headers["authorization"] == "Bearer key"


def test_both_clients_have_the_same_calls() -> None:
    def signatures(kind: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(member)).replace("Async", "")
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert signatures(GantryClient) == signatures(AsyncGantryClient)
    assert {call[0] for call in CALLS} | {"run", "stream", "close", "export_audit", "export_dead_letters"} == set(
        signatures(GantryClient)
    )


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_answer_without_a_limit_is_yielded_in_pieces(kind: str) -> None:
    async def stream(handler: Callable[[httpx.Request], httpx.Response]) -> list[bytes]:
        if kind == "sync":
            with sync_client(handler) as client:
                return list(client.export_dead_letters("G", tag="A"))
        async with AsyncGantryClient("http://gateway", "key", transport=httpx.MockTransport(handler)) as client:
            return [piece async for piece in client.export_dead_letters("G", tag="A")]

    def lines(request: httpx.Request) -> httpx.Response:
        assert request.url.raw_path == b"/v1/groups/G/dead-letters:export?format=ndjson&tag=A"
        return httpx.Response(200, content=b"1\n2\n")

    assert b"".join(await stream(lines)) == b"1\n2\n"
    with pytest.raises(GantryProblem, match="404"):
        await stream(lambda request: httpx.Response(404))


def test_the_audit_trail_is_exported_with_the_filters_of_the_list() -> None:
    def lines(request: httpx.Request) -> httpx.Response:
        assert request.url.raw_path == b"/v1/audit:export?kind=topic&action=topic.create&to=b&from=a"
        return httpx.Response(200, content=b"1\n2\n")

    with sync_client(lines) as client:
        found = client.export_audit(kind="topic", action="topic.create", since="a", until="b")
        assert b"".join(found) == b"1\n2\n"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_lists_are_read_page_by_page(kind: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        cursor = request.url.params.get("cursor")
        return answer(
            request, {"items": [TOPIC | {"topic": cursor or "1"}], "next_cursor": "2" if cursor is None else None}
        )

    topics = await run(kind, handler, "list_topics")
    assert [topic.topic for topic in topics] == ["1", "2"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_list_with_a_limit_ends_at_the_limit(kind: str) -> None:
    asked: list[tuple[str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.params["limit"], request.url.params.get("cursor")))
        items = [LETTER] * min(int(request.url.params["limit"]), 800)
        return answer(request, {"items": items, "next_cursor": "more"})

    letters = await run(kind, handler, "list_dead_letters", "G", limit=1_500)
    assert (len(letters), asked) == (1_500, [("1000", None), ("700", "more")])


def test_a_send_has_its_request_and_its_result() -> None:
    bodies: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(request)
        return answer(request, SENT)

    client = sync_client(handler)
    sent = client.send("T", OutgoingMessage(b"\xff\x00", tag="A", idempotency_key="k-1"), one_way=True)
    assert sent.queue_offset == 900719925474099300
    assert bodies[0].headers["idempotency-key"] == "k-1"
    assert msgspec.json.decode(bodies[0].content) == {"body": "/wA=", "encoding": "base64", "tag": "A", "one_way": True}
    client.send("T", OutgoingMessage("text", keys=["a"], properties={"p": "q"}, ordering_key="o"))
    assert msgspec.json.decode(bodies[1].content) == {
        "body": "text", "keys": ["a"], "properties": {"p": "q"}, "ordering_key": "o",
    }  # fmt: skip


def test_a_batch_is_length_prefixed_messagepack() -> None:
    contents: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        contents.append(request.content)
        return answer(request, {"results": [], "stored": 0, "not_stored": 0, "unknown": 0})

    sync_client(handler).send_batch("T", [OutgoingMessage(b"\xff"), OutgoingMessage("t", tag="A")])
    first = int.from_bytes(contents[0][:4])
    assert msgspec.msgpack.decode(contents[0][4 : 4 + first]) == {"body": b"\xff"}
    assert msgspec.msgpack.decode(contents[0][8 + first :]) == {"body": "t", "tag": "A"}


def test_conditions_and_versions() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer(request, TOPIC)

    client = sync_client(handler)
    assert client.put_topic("T", only_new=True).etag == '"7"'
    client.put_topic("T", etag='"7"', read_queues=8)
    assert seen[0].headers["if-none-match"] == "*"
    assert seen[1].headers["if-match"] == '"7"'
    assert msgspec.json.decode(seen[1].content) == {"read_queues": 8}


def test_a_message_is_bytes_text_or_json() -> None:
    client = sync_client(lambda request: answer(request, MESSAGE | {"body": b'{"a": 1}'}))
    message = client.get_message("M")
    assert (message.body, message.text, message.json()) == (b'{"a": 1}', '{"a": 1}', {"a": 1})


PROBLEM = {
    "type": "https://gantry.dev/problems/broker-busy", "title": "t", "status": 503, "detail": "d", "retryable": True,
    "request_id": "r", "outcome": "not_stored", "field": "/x",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_refusal_is_a_problem(kind: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json=PROBLEM, headers={"retry-after": "2"})

    with pytest.raises(GantryProblem) as caught:
        await run(kind, handler, "send", "T", OutgoingMessage("x"))
    problem = caught.value
    assert (problem.name, problem.status, problem.retryable, problem.outcome) == (
        "broker-busy",
        503,
        True,
        "not_stored",
    )
    assert problem.retry_after_ms == 2_000
    assert str(problem) == "503 broker-busy: d"


@pytest.mark.parametrize(
    ("content", "detail"),
    [(b"<html>", "<html>"), (b"", "HTTP 502"), (b'{"type": "\xff"}', '{"type": "\ufffd"}'), (b"[" * 10_000, "[" * 200)],
    ids=["html", "empty", "not UTF-8", "nested"],
)
def test_an_error_without_a_problem_body_is_still_a_problem(content: bytes, detail: str) -> None:
    client = sync_client(lambda _: httpx.Response(502, content=content))
    with pytest.raises(GantryProblem) as caught:
        client.get_cluster()
    assert caught.value.problem.detail == detail
    assert caught.value.retryable
    assert caught.value.retry_after_ms is None


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (httpx.ConnectError("refused"), "not_stored"),
        (httpx.ConnectTimeout("slow"), "not_stored"),
        (httpx.ReadTimeout("slow"), "unknown"),
        (httpx.RemoteProtocolError("half"), "unknown"),
    ],
)
async def test_an_incomplete_answer_is_an_error(kind: str, error: Exception, outcome: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(GantryConnectionError) as caught:
        await run(kind, handler, "send", "T", OutgoingMessage("x"))
    assert caught.value.outcome == outcome


@pytest.mark.parametrize(
    "content",
    [b'{"hello":"world"}', b'{"name_servers":[{"address":"\xff"}]}', b'{"new":' + b"[" * 10_000],
    ids=["fields", "not UTF-8", "nested"],
)
def test_an_answer_that_breaks_the_contract_is_an_error(content: bytes) -> None:
    client = sync_client(lambda _: httpx.Response(200, content=content))
    with pytest.raises(GantryProtocolError, match="GET /v1/cluster: 200"):
        client.get_cluster()


def test_a_report_is_started_on_a_window_or_on_now() -> None:
    bodies: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(msgspec.json.decode(request.content))
        return answer(request, RUN)

    client = sync_client(handler)
    run = client.start_report_run("lag_report", since="2026-11-21T00:00:00Z", until="2026-11-22T00:00:00Z")
    client.start_report_run("lag_report")
    assert bodies == [{"window": {"from": "2026-11-21T00:00:00Z", "to": "2026-11-22T00:00:00Z"}}, {}]
    assert run.window is not None
    assert (run.window.since, run.window.until) == ("a", "b")
    assert not run.is_over
    assert run.progress is not None
    assert run.progress.percent == 40


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_all_buckets_have_the_time_of_the_first_page(kind: str) -> None:
    asked: list[tuple[str | None, ...]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(tuple(request.url.params.get(name) for name in ("from", "to", "cursor")))
        return answer(request, THROUGHPUT | {"next_cursor": "2" if len(asked) == 1 else None})

    found = await run(kind, handler, "read_throughput", "day")
    assert asked == [(None, None, None), ("x", "y", "2")]
    assert [(bucket.messages, bucket.rate_max) for bucket in found.items] == [(3, 1.5)] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_all_lag_rows_come_from_one_run(kind: str) -> None:
    asked: list[tuple[str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.params["run"], request.url.params.get("cursor")))
        return answer(request, LAG_ROWS | {"next_cursor": "2" if len(asked) == 1 else None})

    rows = await run(kind, handler, "read_lag_rows")
    assert asked == [("latest", None), ("r-1", "2")]
    assert (rows.run, len(rows.items)) == ("r-1", 2)
    assert (rows.items[0].lag_messages, rows.items[0].in_rate, rows.items[0].evidence) == (
        None,
        1.0,
        {"unknown": "why"},
    )
