"""Jobs on a real Postgres: done once, continued by another gateway, cancelled, and honest about what they wait for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import Database
from services.gateway.db.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Job
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.errors import BROKER_UNAVAILABLE, UNKNOWN_GROUP, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.jobs import jobs as usecase
from services.gateway.usecases.jobs import runner
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import JobRunner, LeaseLostError, Work
from services.gateway.usecases.metadata import Metadata
from spark.postgres import Connection, connect
from tests.support.postgres import PostgresServer

ALICE = Actor("k-alice", "req-1")


@pytest.fixture
def connection(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    for name, quick in (("POLL_S", 0.02), ("RENEW_S", 0.05), ("PAUSE_MIN_S", 0.05)):
        monkeypatch.setattr(runner, name, quick)
    with connect(postgres.url, application="gantry-test") as connection:
        connection.execute("TRUNCATE jobs")
        yield connection
        connection.execute("TRUNCATE jobs")


@pytest.fixture
async def metadata(postgres: PostgresServer, connection: Connection) -> AsyncIterator[Metadata]:
    database = Database.open(postgres.url, clock=SystemClock())
    yield Metadata(database)
    await database.close()


class Count:
    """Counts from its progress to its goal; each number is one piece of work."""

    name = "count"

    def __init__(self, *, at: Callable[[int], Any] = lambda number: None) -> None:
        self.counted: list[int] = []
        self.lost = asyncio.Event()
        self._at = at

    async def run(self, work: Work) -> None:
        goal = work.job.arguments["to"]
        number = (work.job.progress or {"next": 0})["next"]
        while number < goal:
            await asyncio.sleep(0)
            wait = self._at(number)
            if wait is not None:
                await wait
            self.counted.append(number)
            number += 1
            try:
                await work.save({"next": number}, done=number, total=goal)
            except LeaseLostError:
                self.lost.set()
                raise


@asynccontextmanager
async def running(metadata: Metadata, jobs: Jobs, *kinds: Count) -> AsyncIterator[GatewayMetrics]:
    """Run one gateway's runner for each kind, all of the same name."""
    metrics = GatewayMetrics()
    tasks = [
        asyncio.ensure_future(
            JobRunner({kind.name: kind}, metadata, metrics, clock=SystemClock(), keep_days=30, due=jobs.due).run()
        )
        for kind in kinds
    ]
    try:
        yield metrics
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def reach(jobs: Jobs, job: Job, is_reached: Callable[[Job], bool]) -> Job:
    async with asyncio.timeout(20):
        while True:
            found = await jobs.get(str(job.id))
            if is_reached(found):
                return found
            await asyncio.sleep(0.01)


async def test_a_job_is_done_once_by_any_number_of_gateways(metadata: Metadata) -> None:
    jobs, kinds = Jobs(metadata), [Count(), Count(), Count()]
    queued = [await jobs.create("count", {"to": 20}, ALICE) for _ in range(6)]
    assert {job.state for job in queued} == {QUEUED}
    async with running(metadata, jobs, *kinds) as metrics:
        ended = [await reach(jobs, job, lambda found: found.ended_at is not None) for job in queued]
    assert [(job.state, job.done, job.failed, job.total, job.error) for job in ended] == [(DONE, 20, 0, 20, None)] * 6
    assert sorted(number for kind in kinds for number in kind.counted) == sorted([*range(20)] * 6)
    assert metrics.counters["jobs_done"] == 6


async def test_a_job_of_a_dead_gateway_continues_where_it_was(metadata: Metadata, connection: Connection) -> None:
    stuck = asyncio.Event()
    first, second = Count(at=lambda number: stuck.wait() if number == 7 else None), Count()
    jobs = Jobs(metadata)
    job = await jobs.create("count", {"to": 12}, ALICE)
    async with running(metadata, jobs, first):
        await reach(jobs, job, lambda found: found.done == 7)
        # The gateway is not dead, but as good as: its lease has ended, and it does not know.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "RENEW_S", 60.0)
            patch.setattr(runner, "RUNNING_MAX", 1)
            await asyncio.sleep(0.1)
            connection.execute("UPDATE jobs SET due_at = now() - interval '1 s'")
            async with running(metadata, jobs, second):
                ended = await reach(jobs, job, lambda found: found.state == DONE)
            stuck.set()
            async with asyncio.timeout(10):
                await first.lost.wait()
    assert (ended.claims, ended.done) == (2, 12)
    assert second.counted == [7, 8, 9, 10, 11]
    assert (await jobs.get(str(job.id))).done == 12, "the first gateway wrote after it had lost the job"


async def test_a_gateway_that_stops_gives_its_jobs_back_at_once(metadata: Metadata) -> None:
    first, second, jobs = Count(at=lambda number: asyncio.sleep(60) if number == 3 else None), Count(), Jobs(metadata)
    job = await jobs.create("count", {"to": 5}, ALICE)
    async with running(metadata, jobs, first):
        await reach(jobs, job, lambda found: found.done == 3)
    waiting = await jobs.get(str(job.id))
    assert (waiting.state, waiting.error) == (RUNNING, "the gateway stopped")
    async with running(metadata, jobs, second):
        await reach(jobs, job, lambda found: found.state == DONE)
    assert second.counted == [3, 4]


async def test_a_job_waits_for_what_may_pass_and_says_for_what(metadata: Metadata) -> None:
    failures = iter([True, True, False])

    async def fail() -> None:
        if next(failures):
            raise ProblemError(BROKER_UNAVAILABLE, "broker-a: connection refused")

    kind, jobs = Count(at=lambda number: fail() if number == 2 else None), Jobs(metadata)
    job = await jobs.create("count", {"to": 4}, ALICE)
    async with running(metadata, jobs, kind):
        waiting = await reach(jobs, job, lambda found: found.error is not None)
        assert (waiting.state, waiting.done, waiting.error) == (RUNNING, 2, "broker-a: connection refused")
        ended = await reach(jobs, job, lambda found: found.ended_at is not None)
    assert (ended.state, ended.error, kind.counted) == (DONE, None, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("error", "reason", "faults"),
    [
        (ProblemError(UNKNOWN_GROUP, "group: 'G' does not exist"), "group: 'G' does not exist", 0),
        (RuntimeError("secret"), "internal error; the gateway's log describes it", 1),
    ],
)
async def test_a_job_that_can_not_succeed_fails(metadata: Metadata, error: Exception, reason: str, faults: int) -> None:
    async def fail() -> None:
        raise error

    kind, jobs = Count(at=lambda number: fail() if number == 1 else None), Jobs(metadata)
    job = await jobs.create("count", {"to": 4}, ALICE)
    async with running(metadata, jobs, kind) as metrics:
        ended = await reach(jobs, job, lambda found: found.ended_at is not None)
    assert (ended.state, ended.done, ended.error) == (FAILED, 1, reason)
    assert metrics.counters.get("job_faults", 0) == faults
    with pytest.raises(ProblemError, match="is failed and can't become cancelled"):
        await jobs.cancel(str(job.id), ALICE)


async def test_a_cancelled_job_stops(metadata: Metadata) -> None:
    jobs = Jobs(metadata)
    queued = await jobs.create("count", {"to": 3}, ALICE)
    assert (await jobs.cancel(str(queued.id), ALICE)).state == CANCELLED
    kind = Count(at=lambda number: asyncio.sleep(60) if number == 3 else None)
    job = await jobs.create("count", {"to": 5}, ALICE)
    async with running(metadata, jobs, kind):
        await reach(jobs, job, lambda found: found.done == 3)
        assert (await jobs.cancel(str(job.id), ALICE)).is_cancel_requested
        ended = await reach(jobs, job, lambda found: found.ended_at is not None)
    assert (ended.state, ended.done, kind.counted) == (CANCELLED, 3, [0, 1, 2])
    assert (await jobs.cancel(str(job.id), ALICE)).state == CANCELLED
    async with metadata.transaction() as session:
        actions = [entry.action for entry in await AuditRepository(session).page(kind="job", name=str(job.id))]
    assert actions == ["job.cancel", "job.create"]


async def test_lists_are_paged_and_filtered(metadata: Metadata) -> None:
    jobs = Jobs(metadata)
    mine = [await jobs.create("count", {"to": number}, ALICE) for number in range(5)]
    theirs = await jobs.create("count", {"to": 9}, Actor("k-bob"))
    found, cursor = [], None
    while True:
        page = await jobs.page(kind="count", state=QUEUED, created_by=ALICE.id, cursor=cursor, limit=2)
        found += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert [job.id for job in found] == [job.id for job in reversed(mine)]
    page = await jobs.page(kind=None, state=None, created_by=None, cursor=None, limit=10)
    assert page.items[0].id == theirs.id
    with pytest.raises(InvalidValueError, match="cursor"):
        await jobs.page(kind=None, state=None, created_by=None, cursor="x", limit=10)
    with pytest.raises(InvalidValueError, match="job"):
        await jobs.get("x")
    with pytest.raises(ProblemError, match="there is no job"):
        await jobs.get("00000000-0000-0000-0000-000000000000")


async def test_there_is_a_limit_of_jobs_that_have_not_ended(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usecase, "ACTIVE_MAX", 2)
    jobs = Jobs(metadata)
    first, _ = [await jobs.create("count", {"to": 1}, ALICE) for _ in range(2)]
    with pytest.raises(ProblemError, match="2 have not ended, which is the limit"):
        await jobs.create("count", {"to": 1}, ALICE)
    await jobs.cancel(str(first.id), ALICE)
    await jobs.create("count", {"to": 1}, ALICE)


async def test_jobs_are_deleted_a_while_after_their_end(metadata: Metadata, connection: Connection) -> None:
    jobs = Jobs(metadata)
    old, recent, active = [await jobs.create("count", {"to": 1}, ALICE) for _ in range(3)]
    for job in (old, recent):
        await jobs.cancel(str(job.id), ALICE)
    connection.execute(
        "UPDATE jobs SET created_at = now() - interval '31 d', ended_at = now() - interval '31 d' WHERE id = %s",
        (old.id,),
    )
    connection.execute("UPDATE jobs SET created_at = now() - interval '40 d' WHERE id = %s", (recent.id,))
    async with running(metadata, jobs, Count()):
        await reach(jobs, active, lambda found: found.state == DONE)
    page = await jobs.page(kind=None, state=None, created_by=None, cursor=None, limit=10)
    assert {job.id for job in page.items} == {recent.id, active.id}
