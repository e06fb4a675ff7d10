"""One look at a real Postgres finds the work of all background loops, and wakes those that have some."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import Database
from services.gateway.db.jobs import DONE, Job, JobRepository
from services.gateway.db.repositories import Actor
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases import duework
from services.gateway.usecases.duework import DueWork
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import JobRunner, Work
from services.gateway.usecases.metadata import Metadata
from spark.postgres import Connection, connect
from tests.support.postgres import PostgresServer

ALICE = Actor("k-alice", "req-1")
TABLES = "jobs, transactions, webhooks, webhook_deliveries, alert_events"
NOTHING: dict[str, bool] = {"webhooks": False, "jobs": False, "decisions": False, "transactions": False}

EVENT = (
    "INSERT INTO alert_events (at, alert_id, kind, group_name, topic, new_verdict, since, lag_messages, run_id)"
    " VALUES (now(), gen_random_uuid(), 'opened', 'G', 'T', 'LAGGING', now(), 7, gen_random_uuid())"
)
HOOK = (
    "INSERT INTO webhooks (url, groups, verdicts, secret, enabled) VALUES ('http://h/', '[\"*\"]', '[]', 's', %s)"
    " RETURNING id"
)
DELIVERY = "INSERT INTO webhook_deliveries (webhook_id, body, next_attempt_at) VALUES (%s, '{}', now() + %s::interval)"
JOB = "INSERT INTO jobs (kind, arguments, created_by, due_at) VALUES ('count', '{}', 'k', now() + %s::interval)"
BEGIN = "INSERT INTO transactions (id, origin, group_name, topic) VALUES (%s, %s, 'G', 'T')"
DECIDE = (
    "UPDATE transactions SET state = 'committed', decided_at = now(), ended_at = now(), due_at = now() + %s::interval"
)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with connect(postgres.url, application="gantry-test") as connection:
        connection.execute(f"TRUNCATE {TABLES}")
        yield connection
        connection.execute(f"TRUNCATE {TABLES}")


@pytest.fixture
async def metadata(postgres: PostgresServer, connection: Connection) -> AsyncIterator[Metadata]:
    database = Database.open(postgres.url, clock=SystemClock())
    yield Metadata(database)
    await database.close()


async def due(metadata: Metadata) -> dict[str, bool]:
    """Look once, and return what it found."""
    work = DueWork(metadata, jobs=asyncio.Event())
    await work.look()
    return {
        "webhooks": work.webhooks.is_set(),
        "jobs": work.jobs.is_set(),
        "decisions": work.decisions.is_set(),
        "transactions": work.has_transactions,
    }


async def test_nothing_is_due_in_empty_tables(metadata: Metadata) -> None:
    assert await due(metadata) == NOTHING


async def test_a_new_event_is_due_until_it_is_handed_out(metadata: Metadata, connection: Connection) -> None:
    connection.execute(EVENT)
    assert await due(metadata) == NOTHING | {"webhooks": True}
    connection.execute("UPDATE alert_events SET is_handed_out = true")
    assert await due(metadata) == NOTHING


@pytest.mark.parametrize(
    ("enabled", "after", "status", "expected"),
    [
        (True, "-1 s", "pending", True),
        (True, "1 h", "pending", False),
        (True, "-1 s", "delivered", False),
        (False, "-1 s", "pending", False),
    ],
)
async def test_a_pending_delivery_to_an_enabled_webhook_is_due_at_its_time(
    metadata: Metadata, connection: Connection, enabled: bool, after: str, status: str, expected: bool
) -> None:
    [hook] = connection.execute(HOOK, (enabled,)).fetchone() or ()
    connection.execute(DELIVERY, (hook, after))
    if status != "pending":
        connection.execute("UPDATE webhook_deliveries SET status = %s, finished_at = now()", (status,))
    assert await due(metadata) == NOTHING | {"webhooks": expected}


@pytest.mark.parametrize(
    ("state", "after", "expected"),
    [("queued", "-1 s", True), ("queued", "1 h", False), ("running", "-1 s", True), ("done", "-1 s", False)],
)
async def test_a_job_is_due_at_its_time_or_at_the_end_of_its_lease(
    metadata: Metadata, connection: Connection, state: str, after: str, expected: bool
) -> None:
    connection.execute(JOB, (after,))
    ended = ", ended_at = now()" if state == "done" else ""
    connection.execute(f"UPDATE jobs SET state = %s{ended}", (state,))
    assert await due(metadata) == NOTHING | {"jobs": expected}


@pytest.mark.parametrize(("origin", "expected"), [("http", True), ("remoting", False)])
async def test_open_transactions_of_http_need_a_producer(
    metadata: Metadata, connection: Connection, origin: str, expected: bool
) -> None:
    connection.execute(BEGIN, (uuid4().hex, origin))
    assert await due(metadata) == NOTHING | {"transactions": expected}


async def test_a_decision_is_due_at_its_time_and_needs_a_producer_until_it_is_delivered(
    metadata: Metadata, connection: Connection
) -> None:
    connection.execute(BEGIN, (uuid4().hex, "http"))
    connection.execute(DECIDE, ("1 h",))
    assert await due(metadata) == NOTHING | {"transactions": True}
    connection.execute(DECIDE, ("-1 s",))
    assert await due(metadata) == NOTHING | {"transactions": True, "decisions": True}
    connection.execute("UPDATE transactions SET due_at = NULL, delivered_at = now()")
    assert await due(metadata) == NOTHING


async def until_done(jobs: Jobs, job: Job) -> None:
    async with asyncio.timeout(10):
        while True:
            if (await jobs.get(str(job.id))).state == DONE:
                return
            await asyncio.sleep(0.05)


class Done:
    """A kind of job that has nothing to do."""

    name = "done"

    async def run(self, work: Work) -> None:
        """Do nothing."""


async def test_a_runner_that_waits_takes_the_job_of_another_gateway(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duework, "POLL_S", 0.05)
    jobs = Jobs(metadata)
    work = DueWork(metadata, jobs=jobs.due)
    runner = JobRunner({"done": Done()}, metadata, GatewayMetrics(), clock=SystemClock(), keep_days=0, due=jobs.due)
    tasks = [asyncio.ensure_future(work.run()), asyncio.ensure_future(runner.run())]
    try:
        await asyncio.sleep(0.3)
        # Not with `jobs.create`, which wakes the runner of its own gateway.
        async with metadata.transaction() as session:
            job = await JobRepository(session).create("done", {}, actor=ALICE)
        await until_done(jobs, job)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_without_an_answer_of_postgres_there_may_be_transactions() -> None:
    # Nothing listens there.
    database = Database.open("postgresql://gantry@127.0.0.1:1/gantry", clock=SystemClock())
    work = DueWork(Metadata(database), jobs=asyncio.Event())
    work.has_transactions = False
    with pytest.raises(ProblemError):
        await work.look()
    looking = asyncio.ensure_future(work.run())
    await asyncio.wait({looking}, timeout=0.5)
    assert work.has_transactions
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    assert not work.webhooks.is_set()
    await database.close()


async def test_without_a_database_it_ends_at_once() -> None:
    work = DueWork(Metadata(None), jobs=asyncio.Event())
    await work.run()
    assert work.has_transactions
