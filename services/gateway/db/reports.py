"""Reports: requested runs, and their pages. Jobs write the results; reports/rows.py reads their rows."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Executable, and_, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.leadership import lock_key
from services.gateway.db.records import find_one, read_all
from services.gateway.db.reporttables import REPORT_PAGES, REPORT_RUNS, REPORT_SCHEDULES, REPORT_SCHEDULES_SET
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor, AuditRepository

QUEUED: Final = "queued"
SUCCEEDED: Final = "succeeded"
FAILED: Final = ("failed", "timed_out")
MANUAL: Final = "manual"

_RUN: Final = REPORT_RUNS.c


@dataclass(frozen=True, slots=True)
class Window:
    """The time range of a run."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job.

    Attributes:
        id: Id of the run.
        job: Name of the job.
        window_start, window_end: Time range; without a start, the report is on the time at which the run starts.
        trigger: `schedule` or `manual`.
        requested_by: Id of the key that requested the run; None if the scheduler did.
        status: `queued`, `running`, `succeeded`, `failed` or `timed_out`.
        attempt: Number of attempts so far.
        progress_percent, progress: Progress in percent, and the present step.
        created_at, started_at, finished_at: Times of the request, the start and the end.
        rows: Number of rows of the result.
        error: Reason for which it failed.
        files: Paths of the files that it wrote, by kind: `html`, `parquet`.
    """

    id: uuid.UUID
    job: str
    window_start: datetime | None
    window_end: datetime
    trigger: str
    requested_by: str | None
    status: str
    attempt: int
    progress_percent: int | None
    progress: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    rows: int | None
    error: str | None
    files: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a job, as the scheduler has put it in force.

    Attributes:
        job: Name of the job.
        cron: Cron expression.
        time_zone: Time zone of the cron expression.
        next_run_at: Time of the next run, if known.
    """

    job: str
    cron: str
    time_zone: str
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class ScheduleSet:
    """A schedule that was set over REST. It takes precedence over the scheduler's settings.

    Attributes:
        job: Name of the job.
        cron: Cron expression; None: the job runs on demand only.
        time_zone: Time zone of the cron expression.
        set_by: Id of the key or the user.
        set_at: Time of the change.
    """

    job: str
    cron: str | None
    time_zone: str
    set_by: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A requested run; `is_queued` is whether this request queued it, or, without a window, it was queued already."""

    run: Run
    is_queued: bool


class ReportRepository:
    """Runs, pages and schedules."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def start(
        self, job: str, window: Window | None, *, actor: Actor, is_repeatable: bool = False
    ) -> RequestedRun:
        """Request a run; a second request for the same run returns the first.

        Args:
            job: Name of the job.
            window: Time range; None for a report on the time at which it starts.
            actor: The caller.
            is_repeatable: Whether a run that has succeeded is queued again.
        """
        # Concurrent requests run one after the other; the lock ends with the transaction.
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key(f"report.{job}"))))
        run = await self._find_run(job, window)
        if run is None:
            run = await self._insert(job, window, actor)
            if (
                run is None
            ):  # The scheduler, which takes no lock, created the window's run between the read and the insert.
                return await self.start(job, window, actor=actor, is_repeatable=is_repeatable)
        elif window is None or run.status not in ((*FAILED, SUCCEEDED) if is_repeatable else FAILED):
            return RequestedRun(run, is_queued=window is None)
        else:
            run = await self._requeue(run, actor)
        after = {
            "run": str(run.id),
            "window": None if run.window_start is None else [run.window_start.isoformat(), run.window_end.isoformat()],
        }
        AuditRepository(self._session).record(actor, "report.run", "report", job, before=None, after=after)
        return RequestedRun(run, is_queued=True)

    async def get(self, job: str, run_id: uuid.UUID) -> Run | None:
        """Return a run, or None if the job has no such run."""
        return await self._find(select(REPORT_RUNS).where(_RUN.id == run_id, _RUN.job == job))

    async def latest(self, job: str) -> Run | None:
        """Return the run that succeeded for the newest window, even if a run for an older window finished later."""
        query = select(REPORT_RUNS).where(_RUN.job == job, _RUN.status == SUCCEEDED)
        # A run with a window that ends in the future only knows the time until it finished, so later runs are newer.
        end = func.least(_RUN.window_end, _RUN.finished_at)
        return await self._find(query.order_by(end.desc(), _RUN.finished_at.desc().nulls_last()).limit(1))

    async def page(
        self, job: str, *, before: tuple[datetime, uuid.UUID] | None = None, limit: int = 100
    ) -> Sequence[Run]:
        """Return a job's runs, newest first; `before` is the position of the previous page's last run."""
        assert 1 <= limit <= LIST_LIMIT_MAX, f"a page of {limit}"
        query = select(REPORT_RUNS).where(_RUN.job == job)
        if before is not None:
            query = query.where(tuple_(_RUN.created_at, _RUN.id) < before)
        query = query.order_by(_RUN.created_at.desc(), _RUN.id.desc()).limit(limit)
        return read_all(Run, await self._session.execute(query))

    async def last_runs(self) -> Mapping[str, Run]:
        """Return the newest run of each job."""
        query = (
            select(REPORT_RUNS).ext(distinct_on(_RUN.job)).order_by(_RUN.job, _RUN.created_at.desc(), _RUN.id.desc())
        )
        return {run.job: run for run in read_all(Run, await self._session.execute(query))}

    async def schedules(self) -> Mapping[str, Schedule]:
        """Return the schedules of the scheduler, by job."""
        schedules = read_all(Schedule, await self._session.execute(select(REPORT_SCHEDULES)))
        return {schedule.job: schedule for schedule in schedules}

    async def schedules_set(self) -> Mapping[str, ScheduleSet]:
        """Return the schedules that were set over REST, by job."""
        found = read_all(ScheduleSet, await self._session.execute(select(REPORT_SCHEDULES_SET)))
        return {schedule.job: schedule for schedule in found}

    async def set_schedule(self, job: str, cron: str | None, time_zone: str, *, actor: Actor) -> None:
        """Set the schedule of a job; without a cron expression, the job runs on demand only."""
        before = await self._find_schedule_set(job)
        values = {"cron": cron, "time_zone": time_zone, "set_by": actor.id}
        statement = insert(REPORT_SCHEDULES_SET).values(job=job, **values)
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["job"], set_={**values, "set_at": func.clock_timestamp()})
        )
        self._record_schedule(actor, job, before, {"cron": cron, "time_zone": time_zone})

    async def remove_schedule(self, job: str, *, actor: Actor) -> None:
        """Remove the schedule of a job that was set, so that the scheduler's settings count; nothing if there is none."""
        before = await self._find_schedule_set(job)
        if before is not None:
            await self._session.execute(delete(REPORT_SCHEDULES_SET).where(REPORT_SCHEDULES_SET.c.job == job))
            self._record_schedule(actor, job, before, None)

    async def _find_schedule_set(self, job: str) -> ScheduleSet | None:
        # Concurrent changes of a job run one after the other, so that the audit tells them in their order.
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key(f"report.schedule.{job}"))))
        query = select(REPORT_SCHEDULES_SET).where(REPORT_SCHEDULES_SET.c.job == job)
        return find_one(ScheduleSet, await self._session.execute(query))

    def _record_schedule(
        self, actor: Actor, job: str, before: ScheduleSet | None, after: dict[str, Any] | None
    ) -> None:
        former = None if before is None else {"cron": before.cron, "time_zone": before.time_zone}
        AuditRepository(self._session).record(actor, "report.schedule", "report", job, before=former, after=after)

    async def html(self, run_id: uuid.UUID) -> str | None:
        """Return the HTML page of a run, or None if it has none."""
        query = select(REPORT_PAGES.c.html).where(REPORT_PAGES.c.run_id == run_id)
        return (await self._session.execute(query)).scalar_one_or_none()

    async def _find_run(self, job: str, window: Window | None) -> Run | None:
        """Return the run of the window; without a window, the run that is queued already."""
        query = select(REPORT_RUNS).where(_RUN.job == job)
        if window is None:
            query = query.where(_RUN.window_start.is_(None), _RUN.status == QUEUED).order_by(_RUN.created_at).limit(1)
        else:
            query = query.where(and_(_RUN.window_start == window.start, _RUN.window_end == window.end))
        return await self._find(query.with_for_update())

    async def _insert(self, job: str, window: Window | None, actor: Actor) -> Run | None:
        values: dict[str, Any] = {"job": job, "trigger": MANUAL, "requested_by": actor.id}
        if window is None:
            # Not now(), which is constant within a transaction: the window is a key.
            values["window_end"] = func.clock_timestamp()
        else:
            values |= {"window_start": window.start, "window_end": window.end}
        return await self._find(insert(REPORT_RUNS).values(values).on_conflict_do_nothing().returning(REPORT_RUNS))

    async def _requeue(self, failed: Run, actor: Actor) -> Run:
        """Queue a failed run again, as if it were new; its id and window stay.

        `attempt` stays, too: it keeps an attempt that was given up for dead from overwriting a later one.
        """
        nothing = dict.fromkeys(
            ("started_at", "finished_at", "heartbeat_at", "progress_percent", "progress", "rows", "error", "files")
        )
        change = (
            update(REPORT_RUNS)
            .where(_RUN.id == failed.id)
            .values(status=QUEUED, trigger=MANUAL, requested_by=actor.id, **nothing)
        )
        [run] = read_all(Run, await self._session.execute(change.returning(REPORT_RUNS)))
        return run

    async def _find(self, statement: Executable) -> Run | None:
        return find_one(Run, await self._session.execute(statement))
