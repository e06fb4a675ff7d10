"""Reports and samples on a real Postgres: runs requested once, rows page by page, partitions created and dropped."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, insert, text, update

from gantry.runtime.clock import SystemClock
from services.gateway.db import migrate
from services.gateway.db.engine import Database
from services.gateway.db.reportrows import LagPlace, ReportRowRepository
from services.gateway.db.reports import ReportRepository, Window
from services.gateway.db.reporttables import (
    REPORT_LAG_ROWS,
    REPORT_PAGES,
    REPORT_RUNS,
    REPORT_SCHEDULES,
)
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.db.subscriptions import Sighting, SubscriptionRepository
from spark.postgres import connect
from tests.support.postgres import PostgresServer

ALICE = Actor("k-alice", "req-1")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = Window(NOON - timedelta(hours=1), NOON)


async def set_status(session, run_id, status, **more):
    await session.execute(update(REPORT_RUNS).where(REPORT_RUNS.c.id == run_id).values(status=status, **more))


async def test_a_run_without_a_window_is_queued_once(database: Database) -> None:
    async with database.transaction() as session:
        reports = ReportRepository(session)
        first = await reports.start("lag_report", None, actor=ALICE)
        again = await reports.start("lag_report", None, actor=Actor("k-bob"))
        other = await reports.start("backlog_profile", None, actor=ALICE)
        assert (first.is_queued, again.is_queued, again.run.id) == (True, True, first.run.id)
        assert other.run.id != first.run.id
        assert (first.run.status, first.run.trigger, first.run.attempt) == ("queued", "manual", 0)
        assert (first.run.window_start, first.run.requested_by) == (None, "k-alice")
        trail = await AuditRepository(session).page(kind="report", name="lag_report")
        assert [(row.action, row.actor, row.after) for row in trail] == [
            ("report.run", "k-alice", {"run": str(first.run.id), "window": None})
        ]
        await set_status(session, first.run.id, "running")
    async with database.transaction() as session:
        # A running run may have started too early to include all data.
        assert (await ReportRepository(session).start("lag_report", None, actor=ALICE)).run.id != first.run.id


@pytest.mark.parametrize("failed", ["failed", "timed_out"])
async def test_a_window_is_run_once_and_again_only_if_it_failed(database: Database, failed: str) -> None:
    async with database.transaction() as session:
        reports = ReportRepository(session)
        made = await reports.start("lag_report", HOUR, actor=ALICE)
        assert made.is_queued
        for status in ("queued", "running", "succeeded"):
            await set_status(session, made.run.id, status)
            known = await reports.start("lag_report", HOUR, actor=ALICE)
            assert (known.is_queued, known.run.id, known.run.status) == (False, made.run.id, status)
        await set_status(session, made.run.id, failed, error="no Java", attempt=3, finished_at=NOON, progress="x")
        again = await reports.start("lag_report", HOUR, actor=Actor("k-bob"))
        assert (again.is_queued, again.run.id, again.run.status) == (True, made.run.id, "queued")
        assert (again.run.error, again.run.attempt, again.run.finished_at, again.run.progress) == (None, 3, None, None)
        assert (again.run.requested_by, again.run.window_end) == ("k-bob", NOON)
        assert len(await AuditRepository(session).page(kind="report")) == 2


@pytest.fixture
async def pooled(own_postgres: PostgresServer) -> AsyncIterator[Database]:
    database = Database.open(own_postgres.url, clock=SystemClock())
    yield database
    await database.close()


async def test_concurrent_requests_get_the_same_run(pooled: Database) -> None:
    async def ask(window: Window | None) -> uuid.UUID:
        async with pooled.transaction() as session:
            return (await ReportRepository(session).start("lag_report", window, actor=ALICE)).run.id

    asked = await asyncio.gather(*(ask(window) for window in (None, HOUR) * 8))
    assert len(set(asked)) == 2


async def test_runs_come_newest_first_page_by_page(database: Database) -> None:
    async with database.transaction() as session:
        reports = ReportRepository(session)
        # Within one transaction all runs have the same time, and their ids decide.
        made = [
            (await reports.start("lag_report", Window(NOON, NOON + timedelta(hours=n)), actor=ALICE)).run
            for n in range(1, 6)
        ]
        pages, before = [], None
        while page := await reports.page("lag_report", before=before, limit=2):
            pages += page
            before = (page[-1].created_at, page[-1].id)
        assert [run.id for run in pages] == sorted((run.id for run in made), reverse=True)
        await session.execute(
            update(REPORT_RUNS).where(REPORT_RUNS.c.id == made[0].id).values(created_at=func.now() + timedelta(hours=1))
        )
        assert (await reports.page("lag_report", limit=1))[0].id == made[0].id
        assert (await reports.last_runs())["lag_report"].id == made[0].id
        assert await reports.get("backlog_profile", made[0].id) is None
        await session.execute(insert(REPORT_SCHEDULES).values(job="lag_report", cron="*/5 * * * *", next_run_at=NOON))
        assert (await reports.schedules())["lag_report"].cron == "*/5 * * * *"


async def test_the_latest_run_has_the_newest_window_that_succeeded(database: Database) -> None:
    async with database.transaction() as session:
        reports = ReportRepository(session)
        assert await reports.latest("lag_report") is None
        old = (await reports.start("lag_report", HOUR, actor=ALICE)).run
        newer = Window(NOON, NOON + timedelta(hours=1))
        new = (await reports.start("lag_report", newer, actor=ALICE)).run
        await set_status(session, new.id, "succeeded", finished_at=NOON + timedelta(hours=1))
        await set_status(session, old.id, "succeeded", finished_at=NOON + timedelta(hours=2))
        failed = (await reports.start("lag_report", None, actor=ALICE)).run
        await set_status(session, failed.id, "failed")
        latest = await reports.latest("lag_report")
        assert latest is not None
        assert latest.id == new.id
        await session.execute(insert(REPORT_PAGES).values(run_id=new.id, html="<p>ok</p>"))
        assert await reports.html(new.id) == "<p>ok</p>"
        assert await reports.html(old.id) is None


async def test_a_window_that_ends_in_the_future_is_not_the_latest_until_then(database: Database) -> None:
    async with database.transaction() as session:
        reports = ReportRepository(session)
        found = []
        for hours, window in ((1, Window(NOON, NOON + timedelta(days=9))), (2, HOUR), (3, None)):
            run = (await reports.start("lag_report", window, actor=ALICE)).run
            ended = NOON + timedelta(hours=hours)
            end = ended if window is None else window.end
            await set_status(session, run.id, "succeeded", finished_at=ended, window_end=end)
            latest = await reports.latest("lag_report")
            assert latest is not None
            found.append((latest.id == run.id, latest.finished_at))
        assert found == [
            (True, NOON + timedelta(hours=1)), (False, NOON + timedelta(hours=1)), (True, NOON + timedelta(hours=3)),
        ]  # fmt: skip


def lag_row(run_id, group, topic, broker=None, queue_id=None):
    level = "topic" if broker is None else "queue"
    facts = {"group_name": group, "topic": topic, "level": level, "broker": broker, "queue_id": queue_id}
    return {"run_id": run_id, "as_of": NOON, "verdict": "OK", "evidence": {"lag": 1}, **facts}


async def test_rows_are_sorted_by_group_topic_and_queue(database: Database) -> None:
    places = [
        ("G", "A", None, None),
        ("G", "A", "broker-a", 2),
        ("G", "A", "broker-a", 10),
        ("G", "A", "broker-b", 0),
        ("G", "B", None, None),
        ("H", "A", None, None),
        ("H", "A", "broker-a", 0),
    ]
    async with database.transaction() as session:
        reports = ReportRepository(session)
        run = (await reports.start("lag_report", HOUR, actor=ALICE)).run
        rows = ReportRowRepository(session)
        assert await rows.lag_as_of(run.id) is None
        await session.execute(insert(REPORT_LAG_ROWS), [lag_row(run.id, *place) for place in reversed(places)])
        assert await rows.lag_as_of(run.id) == NOON
        seen, after = [], None
        while page := await rows.lag_rows(run.id, after=after, limit=2):
            seen += [(row.group_name, row.topic, row.broker, row.queue_id) for row in page]
            last = page[-1]
            after = LagPlace(last.group_name, last.topic, last.level == "queue", last.broker or "", last.queue_id or 0)
            if last.level == "topic":
                after = LagPlace(last.group_name, last.topic, is_queue=False)
        assert seen == places
        assert len(await rows.lag_rows(run.id, group="G")) == 5
        assert len(await rows.lag_rows(run.id, group="G", topic="A", level="queue")) == 3
        await session.execute(text("DELETE FROM report_runs"))
        assert await rows.lag_rows(run.id) == []


async def test_the_filter_of_a_group_is_the_one_that_brokers_use(database: Database) -> None:
    def seen(topic: str, expression: str, version: int) -> Sighting:
        return Sighting(topic, "JAVA", "CLUSTERING", "TAG", expression, version, ("c",))

    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        await mirror.mirror("G", [seen("T", "OLD", 1), seen("T", "NEW", 2), seen("U", "GONE", 9)])
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        await mirror.mirror("G", [seen("T", "OLD", 1), seen("T", "NEW", 2)])
        rows = [tuple(row) for row in await mirror.filters()]
        assert rows == [("G", "T", "TAG", "NEW", True, True), ("G", "U", "TAG", "GONE", False, True)]
        await session.execute(text("UPDATE subscriptions SET last_seen_at = now() - interval '2 minutes'"))
        assert [row[5] for row in await mirror.filters()] == [False, False], (
            "no instance was connected a short time ago"
        )


def test_existing_days_accept_samples_without_a_group(own_postgres: PostgresServer) -> None:
    migrate.downgrade(own_postgres.url, "0013")
    with connect(own_postgres.url, application="gantry-test") as session:
        session.execute("CREATE TABLE lag_samples_20261121 (LIKE lag_samples)")
        session.execute(
            "ALTER TABLE lag_samples ATTACH PARTITION lag_samples_20261121"
            " FOR VALUES FROM ('2026-11-21T00:00:00Z') TO ('2026-11-22T00:00:00Z')"
        )
    migrate.upgrade(own_postgres.url)
    with connect(own_postgres.url, application="gantry-test") as session:
        for group in (None, "G"):
            session.execute(
                "INSERT INTO lag_samples VALUES (%s, %s, 'T', 'broker-a', '{0}', '{0}', '{9}', '{NULL}', '{NULL}')",
                (NOON, group),
            )
    migrate.downgrade(own_postgres.url, "0013")
    with connect(own_postgres.url, application="gantry-test") as session:
        assert session.execute("SELECT group_name FROM lag_samples").fetchall() == [("G",)]
