"""Reports over HTTP on a real Postgres: rights to see and start them, answers, and restrictions of pages."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import httpx
import pytest
from sqlalchemy import insert, update

from gantry.runtime.clock import SystemClock
from services.gateway.app import make_application
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.db.engine import Database
from services.gateway.db.reportrows import ReportRowRepository
from services.gateway.db.reporttables import (
    REPORT_BACKLOG_ROWS,
    REPORT_LAG_ROWS,
    REPORT_PAGES,
    REPORT_RUNS,
    REPORT_SCHEDULES,
    REPORT_THROUGHPUT,
)
from services.gateway.features.audit import audit_routes
from services.gateway.features.reports import report_routes
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.rights import Rights
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.audit.trail import Audit
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reports.laghistory import LagHistory
from services.gateway.usecases.reports.rows import ReportRows
from services.gateway.usecases.reports.runs import Reports
from tests.support.callers import callers_of

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
WINDOW = {"from": "2026-11-21T11:00:00.000Z", "to": "2026-11-21T12:00:00.000Z"}
RUNS = "/v1/reports/lag_report/runs"
ROWS = "/v1/reports/lag_report/rows"
BACKLOG = "/v1/reports/backlog_profile/rows"
THROUGHPUT = "/v1/reports/throughput_rollup/rows"
HISTORY = "/v1/reports/lag_report/history"
RIGHTS = {"admin": Rights(admin=True), "metrics": Rights(metrics=True), "none": Rights(publish=("*",))}


def client(database: Database | None) -> httpx.AsyncClient:
    keys = KeyRing()
    keys.replace([KeyRecord(name, digest_of(f"gk_{name}"), name, rights) for name, rights in RIGHTS.items()])
    metadata = Metadata(database)
    reports, rows = Reports(metadata, clock=SystemClock()), ReportRows(metadata, clock=SystemClock())
    history = LagHistory(metadata, clock=SystemClock(), in_thread=asyncio.to_thread)
    front = make_application(
        [*report_routes(reports, rows, history), *audit_routes(Audit(metadata))],
        callers_of(keys, SystemClock()),
        GatewayMetrics(),
        clock=SystemClock(),
        is_stopping=lambda: False,
        limits=Limits(GatewaySettings()),
        access_log=False,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://gateway", headers=key("admin"))


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer gk_{name}"}


@pytest.fixture
async def http(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with client(database) as made:
        yield made


async def started(http, **body) -> str:
    return (await http.post(RUNS, json=body)).json()["id"]


async def finish(database, run, status="succeeded", **more) -> None:
    values = {"status": status, "started_at": NOON, "finished_at": NOON + timedelta(seconds=2), **more}
    async with database.transaction() as session:
        await session.execute(update(REPORT_RUNS).where(REPORT_RUNS.c.id == uuid.UUID(run)).values(values))


async def test_a_run_is_started_seen_and_audited(http, database):
    made = await http.post(RUNS)
    run = made.json()
    assert (made.status_code, made.headers["location"]) == (202, f"{RUNS}/{run['id']}")
    assert (run["job"], run["status"], run["trigger"], run["window"]) == ("lag_report", "queued", "manual", None)
    again = await http.post(RUNS, json={})
    assert (again.status_code, again.json()) == (202, run)
    assert (await http.get(f"{RUNS}/{run['id']}", headers=key("metrics"))).json() == run
    assert (await http.get(RUNS)).json() == {"items": [run], "next_cursor": None}
    await finish(database, run["id"], rows=12, attempt=1, files={"html": "/h", "parquet": "/p"})
    done = (await http.get(f"{RUNS}/latest")).json()
    assert (done["status"], done["rows"], done["duration_ms"]) == ("succeeded", 12, 2_000)
    assert done["files"] == {"html": "/h", "parquet": "/p"}
    [entry] = (await http.get("/v1/audit?kind=report")).json()["items"]
    assert (entry["actor"], entry["action"], entry["name"]) == ("admin", "report.run", "lag_report")
    assert entry["after"] == {"run": run["id"], "window": None}


async def test_a_window_has_one_run(http, database):
    made = await http.post(RUNS, json={"window": WINDOW})
    assert (made.status_code, made.json()["window"]) == (202, WINDOW)
    known = await http.post(RUNS, json={"window": WINDOW})
    assert (known.status_code, known.json()) == (200, made.json())
    assert "location" not in known.headers
    await finish(database, made.json()["id"], "failed", error="no Java")
    assert (await http.get(f"{RUNS}/{made.json()['id']}")).json()["error"] == "no Java"
    again = await http.post(RUNS, json={"window": WINDOW})
    assert (again.status_code, again.json()["id"], again.json()["error"]) == (202, made.json()["id"], None)


async def test_a_window_of_a_rollup_can_be_run_again(http, database):
    runs = "/v1/reports/throughput_rollup/runs"
    made = await http.post(runs, json={"window": WINDOW})
    assert made.status_code == 202, made.text
    await finish(database, made.json()["id"])
    again = await http.post(runs, json={"window": WINDOW})
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, made.json()["id"], "queued")
    # While it is queued, there is nothing to repeat.
    assert (await http.post(runs, json={"window": WINDOW})).status_code == 200


async def test_a_window_of_a_rollup_waits_for_its_samples(http):
    now = datetime.now(UTC)
    window = {"from": (now - timedelta(minutes=5)).isoformat(), "to": (now - timedelta(minutes=4)).isoformat()}
    answer = await http.post("/v1/reports/throughput_rollup/runs", json={"window": window})
    assert (answer.status_code, answer.json()["field"]) == (409, "/window/to"), answer.text
    ready = (now + timedelta(minutes=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert f"its samples are complete at {ready}" in answer.json()["detail"]
    assert 30 <= int(answer.headers["retry-after"]) <= 61
    # A lag report is about the present, whatever its window.
    assert (await http.post(RUNS, json={"window": window})).status_code == 202


async def test_jobs_are_listed_with_schedule_and_last_run(http, database):
    run = await started(http)
    async with database.transaction() as session:
        values = {"job": "lag_report", "cron": "*/5 * * * *", "next_run_at": NOON}
        await session.execute(insert(REPORT_SCHEDULES).values(values))
    backlog, lag, throughput = (await http.get("/v1/reports", headers=key("metrics"))).json()["items"]
    assert backlog == {
        "job": "backlog_profile",
        "schedule": None,
        "time_zone": None,
        "next_run_at": None,
        "schedule_set": None,
        "last_run": None,
    }
    assert (lag["schedule"], lag["next_run_at"]) == ("*/5 * * * *", "2026-11-21T12:00:00.000Z")
    assert (lag["last_run"]["id"], throughput["job"]) == (run, "throughput_rollup")


async def test_a_schedule_is_set_removed_and_audited(http, database):
    path = "/v1/reports/lag_report/schedule"
    made = await http.put(path, json={"cron": "0 8 * * 1-5", "time_zone": "Asia/Shanghai"})
    assert made.status_code == 200, made.text
    schedule = {name: made.json()["schedule_set"][name] for name in ("cron", "time_zone", "set_by")}
    assert schedule == {"cron": "0 8 * * 1-5", "time_zone": "Asia/Shanghai", "set_by": "admin"}
    # No scheduler runs here, so nothing is in force.
    assert (made.json()["job"], made.json()["schedule"], made.json()["next_run_at"]) == ("lag_report", None, None)
    on_demand = await http.put(path, json={"cron": None})
    assert on_demand.json()["schedule_set"]["cron"] is None
    assert (await http.get("/v1/reports")).json()["items"][1] == on_demand.json()
    for _ in range(2):
        assert (await http.delete(path)).json()["schedule_set"] is None
    entries = (await http.get("/v1/audit?kind=report")).json()["items"]
    first, second = {"cron": "0 8 * * 1-5", "time_zone": "Asia/Shanghai"}, {"cron": None, "time_zone": "UTC"}
    changes = [(entry["action"], entry["before"], entry["after"]) for entry in reversed(entries)]
    assert changes == [
        ("report.schedule", None, first),
        ("report.schedule", first, second),
        ("report.schedule", second, None),
    ]


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        ({"cron": "every day"}, "/cron", "it has 2 fields"),
        ({"cron": "0 0 31 2 *"}, "/cron", "never comes"),
        ({"cron": "61 * * * *"}, "/cron", "is no cron expression"),
        ({"cron": " " * 201}, "/cron", "the limit is 200"),
        ({"cron": "0 8 * * *", "time_zone": "Mars/Base"}, "/time_zone", "is no time zone"),
        ({"time_zone": "UTC"}, "/cron", "is missing"),
        ({"cron": None, "enabled": True}, "/enabled", "there is no such field"),
    ],
)
async def test_an_invalid_schedule_is_refused_by_name(http, body, field, reason):
    answer = await http.put("/v1/reports/lag_report/schedule", json=body)
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
    assert reason in answer.json()["detail"]
    assert (await http.get("/v1/reports")).json()["items"][1]["schedule_set"] is None


async def test_schedules_are_for_operators_and_known_jobs(http):
    path = "/v1/reports/lag_report/schedule"
    assert (await http.put(path, json={"cron": None}, headers=key("metrics"))).status_code == 403
    assert (await http.delete(path, headers=key("metrics"))).status_code == 403
    assert (await http.put("/v1/reports/other/schedule", json={"cron": None})).status_code == 404
    assert (await http.delete("/v1/reports/other/schedule")).status_code == 404


def row(run, group, topic, broker=None, queue_id=None):
    level = "topic" if broker is None else "queue"
    facts = {"group_name": group, "topic": topic, "level": level, "broker": broker, "queue_id": queue_id}
    return {"run_id": uuid.UUID(run), "as_of": NOON, "verdict": "OK", "lag_messages": 3, "evidence": {"a": 1}, **facts}


async def test_rows_are_read_page_by_page(http, database):
    run = await started(http)
    await finish(database, run)
    places = [(group, topic) for group in "GH" for topic in ("%RETRY%G", "T")]
    async with database.transaction() as session:
        rows = [row(run, *place, *queue) for place in places for queue in ((), ("broker-a", 0), ("broker-b", 11))]
        await session.execute(insert(REPORT_LAG_ROWS), rows)
    seen, cursor = [], ""
    while cursor is not None:
        page = (await http.get(ROWS, params={"limit": 5} | ({"cursor": cursor} if cursor else {}))).json()
        assert (page["run"], page["as_of"]) == (run, "2026-11-21T12:00:00.000Z")
        seen += [(item["group"], item["topic"], item["broker"], item["queue_id"]) for item in page["items"]]
        cursor = page["next_cursor"]
    queues = ((None, None), ("broker-a", 0), ("broker-b", 11))
    assert seen == [(*place, *queue) for place in places for queue in queues]
    query = {"run": run, "group": "G", "topic": "%RETRY%G", "level": "topic"}
    [item] = (await http.get(ROWS, params=query, headers=key("metrics"))).json()["items"]
    assert (item["lag_messages"], item["lag_seconds"], item["evidence"], item["verdict"]) == (3, None, {"a": 1}, "OK")
    assert (await http.get(ROWS, params={"group": "NOBODY"})).json()["items"] == []


async def test_rows_of_a_run_that_is_removed_meanwhile_are_no_answer(http, database, monkeypatch):
    run = await started(http)
    await finish(database, run)
    async with database.transaction() as session:
        await session.execute(insert(REPORT_LAG_ROWS), [row(run, "g", "T")])
    assert len((await http.get(ROWS, params={"run": run})).json()["items"]) == 1
    read = ReportRowRepository.lag_rows

    async def remove_and_read(self, run_id, **wanted):
        # The scheduler hides a run before it deletes the first of its rows.
        async with database.transaction() as session:
            await session.execute(update(REPORT_RUNS).values(job="lag_report:removed"))
        return await read(self, run_id, **wanted)

    monkeypatch.setattr(ReportRowRepository, "lag_rows", remove_and_read)
    answer = await http.get(ROWS, params={"run": run})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (404, "unknown-run")


async def test_a_page_runs_in_a_sandbox(http, database):
    run = await started(http)
    async with database.transaction() as session:
        page = "<!doctype html><p>Rückstand</p>"
        await session.execute(insert(REPORT_PAGES).values(run_id=uuid.UUID(run), html=page))
    await finish(database, run)
    for name in (run, "latest"):
        shown = await http.get(f"{RUNS}/{name}/html", headers=key("metrics"))
        assert (shown.status_code, shown.text) == (200, page)
        assert shown.headers["content-type"] == "text/html; charset=utf-8"
        assert shown.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.strip().split(" ", 1) for part in shown.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "script-src" not in policy


async def test_rights(http):
    run = await started(http)
    for path in ("/v1/reports", RUNS, f"{RUNS}/{run}", ROWS, f"{RUNS}/{run}/html"):
        refused = await http.get(path, headers=key("none"))
        assert (refused.status_code, refused.json()["type"]) == (403, "https://gantry.dev/problems/forbidden")
        assert (await http.get(path, headers=key("metrics"))).status_code in (200, 404, 409)
    assert (await http.post(RUNS, headers=key("metrics"))).status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "problem", "detail"),
    [
        ("/v1/reports/unknown/runs", 404, "unknown-report", "'unknown' is not one of backlog_profile"),
        ("/v1/reports/unknown/rows", 404, "not-found", "there is nothing at"),
        (BACKLOG, 404, "unknown-run", "no run of backlog_profile has succeeded yet"),
        (f"{BACKLOG}?section=colour", 400, "invalid-field", "age, filter, key, queue, size, tag"),
        (f"{BACKLOG}?level=topic", 400, "unknown-parameter", "level"),
        (f"{ROWS}?unit=hour", 400, "unknown-parameter", "unit"),
        (f"{THROUGHPUT}?run=latest", 400, "unknown-parameter", "run"),
        (f"{THROUGHPUT}?unit=week", 400, "invalid-field", "minute, hour, day"),
        (f"{THROUGHPUT}?unit=day&time_zone=Mars/Olympus", 400, "invalid-field", "is not the name of a time zone"),
        (f"{THROUGHPUT}?unit=day&to=0001-01-01T00:00:00Z", 400, "invalid-field", "the years 1970 to 9998"),
        (f"{THROUGHPUT}?unit=day&to=9999-12-31T23:59:59-05:00", 400, "invalid-field", "the years 1 to 9999"),
        (
            f"{THROUGHPUT}?unit=day&time_zone=Asia/Kolkata&from=1970-01-01T00:00:00Z&to=2026-11-21T00:00:00Z",
            400,
            "invalid-field",
            "more than 3,660 days",
        ),
        (
            "/v1/reports/lag_report/history?group=G&topic=T&to=1969-12-31T23:59:59Z",
            400,
            "invalid-field",
            "1970 to 9998",
        ),
        ("/v1/reports/lag_report/history?topic=T", 400, "invalid-field", "group: is needed: a history"),
        (f"{THROUGHPUT}?unit=day&time_zone=../../etc/passwd", 400, "invalid-field", "is not the name of a time zone"),
        (f"{THROUGHPUT}?from=yesterday", 400, "invalid-field", "from"),
        (f"{THROUGHPUT}?from=2026-11-21T12:00:00Z&to=2026-11-21T12:00:00Z", 400, "invalid-field", "is not before `to`"),
        (f"{THROUGHPUT}?cursor=x", 400, "invalid-field", "cursor"),
        (f"{RUNS}/{uuid.UUID(int=7)}", 404, "unknown-run", "there is no run"),
        (f"{RUNS}/latest/html", 404, "unknown-run", "has succeeded yet"),
        (ROWS, 404, "unknown-run", "has succeeded yet"),
        (f"{RUNS}/7", 400, "invalid-field", "neither a run's id nor"),
        (f"{ROWS}?level=broker", 400, "invalid-field", "level"),
        (f"{ROWS}?group=a%20b", 400, "invalid-field", "group"),
        (f"{ROWS}?cursor=x", 400, "invalid-field", "cursor"),
        (f"{RUNS}?cursor=cmVwb3J0LXJ1bnM6MS8y", 400, "invalid-field", "cursor"),
        (f"{RUNS}?cursor=cmVwb3J0LXJ1bnM6OTk5OTk5OTk5OTk5OTk5OTkvMA", 400, "invalid-field", "cursor"),
        (f"{RUNS}?status=failed", 400, "unknown-parameter", "status"),
    ],
)
async def test_missing_reports_and_runs_are_named(http, path, status, problem, detail):
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (status, problem)
    assert detail in answer.json()["detail"]


async def test_only_a_run_that_succeeded_has_rows_and_a_page(http):
    run = await started(http)
    rows = await http.get(ROWS, params={"run": run})
    assert (rows.status_code, rows.json()["detail"]) == (
        409,
        f"run: {run} is queued; only runs that succeeded have rows",
    )
    page = await http.get(f"{RUNS}/{run}/html")
    assert (page.status_code, page.json()["detail"]) == (404, f"run: {run} is queued and has no page")


async def test_invalid_runs_are_refused(http):
    backwards = {"window": {"from": WINDOW["to"], "to": WINDOW["from"]}}
    assert (await http.post(RUNS, json=backwards)).json()["field"] == "/window/to"
    future = await http.post(RUNS, json={"window": {"from": WINDOW["from"], "to": "2999-01-01T00:00:00.000Z"}})
    assert (future.status_code, future.json()["field"]) == (400, "/window/to")
    assert "is in the future" in future.json()["detail"]
    old = {"window": {"from": "1901-01-01T00:00:00Z", "to": WINDOW["to"]}}
    answer = (await http.post(RUNS, json=old)).json()
    assert (answer["field"], "1901-01-01T00:00:00Z' is before 1970" in answer["detail"]) == ("/window/from", True)
    assert (await http.post(RUNS, json={"job": "x"})).json()["field"] == "/job"
    assert (await http.post(RUNS, content="{}")).status_code == 415
    assert (await http.post("/v1/reports/unknown/runs")).status_code == 404


async def test_an_empty_body_is_none(http):
    for body in ({"content": b""}, {"content": b"{}"}, {"content": b'{"window":null}'}):
        answer = await http.post(RUNS, headers={"Content-Type": "application/json"}, **body)
        assert (answer.status_code, answer.json()["window"]) == (202, None), answer.text


@pytest.mark.parametrize("path", [THROUGHPUT, HISTORY])
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": WINDOW["to"], "to": WINDOW["from"]}, "from"),
        ({"from": WINDOW["from"], "to": WINDOW["from"]}, "from"),
        ({"from": "1969-12-31T23:59:59Z", "to": WINDOW["to"]}, "from"),
        ({"from": WINDOW["from"], "to": "2999-01-01T00:00:00Z"}, "to"),
        ({"to": "2026-11-21"}, "to"),
    ],
)
async def test_invalid_periods_are_refused_by_field_and_value(http, path, query, field):
    answer = await http.get(path, params={"group": "G", "topic": "T", **query})
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (400, field), problem
    assert query[field][:10] in problem["detail"]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", ""])
async def test_invalid_limits_are_refused(http, limit):
    for path in (THROUGHPUT, ROWS, BACKLOG, RUNS):
        answer = await http.get(path, params={"limit": limit})
        assert (answer.status_code, answer.json()["field"]) == (400, "limit"), answer.text


@pytest.mark.parametrize("unit", ["minute", "hour", "day"])
@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../etc/passwd", "", "europe/nowhere", "localtime", "posix/Europe/Berlin", "right/UTC"]
)
async def test_unknown_time_zones_are_refused_whatever_the_unit(http, unit, zone):
    answer = await http.get(THROUGHPUT, params={"unit": unit, "time_zone": zone})
    assert (answer.status_code, answer.json()["field"]) == (400, "time_zone"), answer.text


async def test_without_a_database_it_is_503():
    async with client(None) as http:
        for path in ("/v1/reports", RUNS, ROWS, f"{RUNS}/latest", f"{RUNS}/latest/html"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (503, "metadata-unavailable")
            assert answer.headers["retry-after"] == "1"
        assert (await http.post(RUNS)).status_code == 503


async def all_pages(http, path, **query):
    """Return the items of all pages of two, and the last answer."""
    items, cursor = [], None
    while True:
        answer = await http.get(path, params={"limit": 2, **query, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return items, answer.json()


async def test_rows_of_a_backlog_profile_are_paged_whatever_their_buckets_are_called(http, database):
    run = (await http.post("/v1/reports/backlog_profile/runs")).json()["id"]
    buckets = [
        ("age", "under 1 min", 0.0, 60.0),
        ("age", "1-5 min", 60.0, 300.0),
        ("key", 'a/b"\\é:[', None, None),
        ("key", "b", None, None),
        ("tag", "(none)", None, None),
    ]
    rows = [
        {"run_id": run, "group_name": group, "topic": "T", "section": section, "bucket": bucket, "messages": 1,
         "lower_bound": low, "upper_bound": high, "bytes": None}
        for group in "GH" for section, bucket, low, high in buckets
    ]  # fmt: skip
    async with database.transaction() as session:
        await session.execute(insert(REPORT_BACKLOG_ROWS), rows[::-1])
    assert (await http.get(BACKLOG, params={"run": run})).status_code == 409
    await finish(database, run)
    items, last = await all_pages(http, BACKLOG)
    assert [(item["group"], item["section"], item["bucket"]) for item in items] == [
        (group, section, bucket) for group in "GH" for section, bucket, _, _ in buckets
    ]
    assert (last["run"], items[0]) == (
        run,
        {"group": "G", "topic": "T", "section": "age", "bucket": "under 1 min", "lower_bound": 0.0,
         "upper_bound": 60.0, "messages": 1, "bytes": None},
    )  # fmt: skip
    items, _ = await all_pages(http, BACKLOG, group="H", section="key")
    assert [(item["group"], item["bucket"]) for item in items] == [("H", 'a/b"\\é:['), ("H", "b")]


def bucket(unit, at, group=None, messages=1, **more):
    return {"unit": unit, "bucket_at": at, "topic": "T", "group_name": group, "messages": messages, **more}


async def put_buckets(database, *rows):
    empty = dict.fromkeys(("rate_max", "lag_messages", "covered_s"))
    async with database.transaction() as session:
        await session.execute(insert(REPORT_THROUGHPUT), [empty | row for row in rows])


async def test_buckets_of_the_throughput_are_sorted_by_time_topic_and_group(http, database):
    hours = [NOON + number * timedelta(hours=1) for number in range(3)]
    await put_buckets(
        database,
        *(bucket("hour", at, group) for at in hours for group in ("H", None, "G")),
        bucket("minute", NOON), bucket("hour", hours[0] - timedelta(hours=1)), bucket("hour", hours[2] + timedelta(hours=1)),
    )  # fmt: skip
    times = {"from": "2026-11-21T12:00:00Z", "to": "2026-11-21T15:00:00Z"}
    items, last = await all_pages(http, THROUGHPUT, **times)
    assert [(item["bucket_at"][11:13], item["group"]) for item in items] == [
        (hour, group) for hour in ("12", "13", "14") for group in (None, "G", "H")
    ]
    assert (last["unit"], last["from"], last["time_zone"]) == ("hour", "2026-11-21T12:00:00.000Z", "UTC")
    items, _ = await all_pages(http, THROUGHPUT, group="G", topic="T", **times)
    assert [item["group"] for item in items] == ["G"] * 3
    assert (await http.get(THROUGHPUT, params={"topic": "U", **times})).json()["items"] == []
    everywhere, _ = await all_pages(http, THROUGHPUT, time_zone="Asia/Kolkata", **times)
    assert len(everywhere) == 9
    assert (await http.get(THROUGHPUT)).status_code == 200


@pytest.mark.parametrize(
    ("zone", "unit", "at", "days"),
    [
        # The night in which summer time ends: this day has 25 hours.
        ("Europe/Berlin", "hour", datetime(2026, 10, 24, 22, tzinfo=UTC), {"2026-10-24T22": 25, "2026-10-25T23": 24}),
        # The zone is half an hour off, so days are made of minutes.
        ("Asia/Kolkata", "minute", datetime(2026, 10, 24, 18, 30, tzinfo=UTC), {"2026-10-24T18": 1_440, "2026-10-25T18": 1_440}),
    ],
)  # fmt: skip
async def test_days_are_those_of_a_time_zone(http, database, zone, unit, at, days):
    step = timedelta(hours=1) if unit == "hour" else timedelta(minutes=1)
    count = sum(days.values())
    await put_buckets(
        database,
        *(
            bucket(unit, at + number * step, "G", 2, rate_max=float(number), lag_messages=number, covered_s=60.0)
            for number in range(count)
        ),
    )
    query = {"unit": "day", "time_zone": zone, "from": (at + step).isoformat(), "to": (at + count * step).isoformat()}
    items, last = await all_pages(http, THROUGHPUT, **query)
    assert {item["bucket_at"][:13]: item["messages"] // 2 for item in items} == days
    assert [(item["lag_messages"], item["rate_max"], item["covered_s"]) for item in items] == [
        (end - 1, float(end - 1), 60.0 * own) for end, own in zip(accumulate(days.values()), days.values(), strict=True)
    ]
    assert (last["unit"], last["time_zone"], last["from"]) == ("day", zone, items[0]["bucket_at"])


async def test_days_of_utc_are_the_same_if_the_zone_is_named(http, database):
    # Hours are kept for a shorter time than days.
    await put_buckets(database, bucket("day", NOON.replace(hour=0), messages=7), bucket("hour", NOON, messages=3))
    query = {"unit": "day", "from": "2026-11-20T12:00:00Z", "to": "2026-11-22T00:00:00Z"}
    unnamed, named = [
        (await http.get(THROUGHPUT, params={**query, **zone})).json() for zone in ({}, {"time_zone": "UTC"})
    ]
    assert named == unnamed
    assert [item["messages"] for item in named["items"]] == [7]
