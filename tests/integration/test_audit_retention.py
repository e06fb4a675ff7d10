"""The audit trail's retention on a real Postgres: old rows are deleted, and no version of a name is ever reused."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from gantry.runtime.clock import SystemClock
from services.gateway.db import audittrail
from services.gateway.db.engine import Database
from services.gateway.db.models import AuditEntry
from services.gateway.db.repositories import Actor, AuditRepository, TopicRepository
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.audit.retention import AuditRetention
from services.gateway.usecases.metadata import Metadata

ALICE = Actor("k-alice")
CONFIG = {"read_queues": 4, "write_queues": 4, "perm": "rw", "order": False, "brokers": None}
KEEP_DAYS = 90


@pytest.fixture
def retention(database: Database, monkeypatch: pytest.MonkeyPatch) -> AuditRetention:
    monkeypatch.setattr("services.gateway.usecases.audit.retention.PAUSE_S", 0.0)
    return AuditRetention(Metadata(database), GatewayMetrics(), clock=SystemClock(), keep_days=KEEP_DAYS)


async def make_older(database: Database, days: float) -> None:
    """Make all rows older by this duration."""
    async with database.transaction() as session:
        await session.execute(text("UPDATE audit SET at = at - :by"), {"by": timedelta(days=days)})


async def record(database: Database, kind: str, name: str, count: int) -> None:
    async with database.transaction() as session:
        for _ in range(count):
            AuditRepository(session).record(ALICE, f"{kind}.offsets", kind, name, before=None, after={"offsets": []})
            await session.flush()


async def rows_of(database: Database, kind: str | None = None, name: str | None = None) -> list[AuditEntry]:
    async with database.transaction() as session:
        return list(await AuditRepository(session).page(kind=kind, name=name, limit=1_000))


async def test_old_rows_are_deleted_in_small_transactions_and_young_ones_stay(
    database: Database, retention: AuditRetention
) -> None:
    await record(database, "group", "BUSY", 50)
    await record(database, "key", "k1", 3)
    await make_older(database, KEEP_DAYS + 1)
    await record(database, "group", "BUSY", 4)
    await make_older(database, KEEP_DAYS - 1)
    assert await retention.round(rows=7) == 53
    assert len(await rows_of(database, "group", "BUSY")) == 4
    assert await rows_of(database, "key", "k1") == []
    assert await retention.round(rows=7) == 0


async def test_a_page_never_deletes_more_than_its_rows(database: Database) -> None:
    await record(database, "key", "k1", 20)
    await make_older(database, 2)
    newest = (await rows_of(database))[0]
    async with database.transaction() as session:
        page = await audittrail.delete_page(session, before=newest.at + timedelta(days=1), after=0, rows=6)
    assert page.deleted == 6
    assert len(await rows_of(database)) == 14


async def test_the_last_row_of_a_name_stays_and_its_versions_are_never_reused(
    database: Database, retention: AuditRetention
) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        await topics.put("T", CONFIG, actor=ALICE)
        for queues in range(5, 9):
            await topics.put("T", {**CONFIG, "read_queues": queues}, actor=ALICE)
    async with database.transaction() as session:
        deleting = await TopicRepository(session).mark_deleting("T", actor=ALICE)
        assert deleting is not None
        assert await TopicRepository(session).forget("T", deleting.version)
    last_version = deleting.version
    await make_older(database, KEEP_DAYS + 1)
    assert await retention.round(rows=2) == 5
    assert [row.action for row in await rows_of(database, "topic", "T")] == ["topic.delete"]
    async with database.transaction() as session:
        made = await TopicRepository(session).put("T", CONFIG, actor=ALICE)
    assert made.row.version > last_version


async def test_without_a_retention_nothing_is_deleted(database: Database) -> None:
    retention = AuditRetention(Metadata(database), GatewayMetrics(), clock=SystemClock(), keep_days=0)
    await retention.run()
