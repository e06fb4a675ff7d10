"""Reports: the jobs and their runs; reports/rows.py returns their rows.

The gateway only requests runs and returns them. The scheduler takes queued runs, and each job writes its results into
Postgres in one transaction at its end, so that a reader sees either the whole report or the one before it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gantry.model.laghistory import WRITTEN_EVERY
from gantry.runtime.clock import Clock
from services.gateway.db.reports import ReportRepository, RequestedRun, Run, Schedule, ScheduleSet, Window
from services.gateway.db.repositories import Actor
from services.gateway.errors import CONFLICT, UNKNOWN_REPORT, UNKNOWN_RUN, ProblemError
from services.gateway.schemas.cursors import decode_moment_cursor, encode_moment_cursor
from services.gateway.schemas.reports import (
    LATEST,
    NewRun,
    NewSchedule,
    check_schedule,
    moment_of,
    read_run_id,
    read_window,
)
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LAG_REPORT: Final = "lag_report"
BACKLOG_PROFILE: Final = "backlog_profile"
THROUGHPUT_ROLLUP: Final = "throughput_rollup"
JOBS: Final = (BACKLOG_PROFILE, LAG_REPORT, THROUGHPUT_ROLLUP)

RUNS_LISTING: Final = "report-runs"


@dataclass(frozen=True, slots=True)
class Job:
    """A report job.

    Attributes:
        name: Name of the job.
        schedule: Schedule that is in force; None if there is none, or no scheduler has run yet.
        schedule_set: Schedule that was set over REST; None: the scheduler's settings count.
        last_run: Newest run; None if there is none.
    """

    name: str
    schedule: Schedule | None
    schedule_set: ScheduleSet | None
    last_run: Run | None


class Reports:
    """The operations on reports. The caller has checked the rights."""

    def __init__(self, metadata: Metadata, *, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def list(self) -> Sequence[Job]:
        """Return all jobs with their schedules and last runs. Raises ProblemError (503)."""
        async with self._metadata.transaction() as session:
            return await _read_jobs(ReportRepository(session))

    async def set_schedule(self, job: str, wanted: NewSchedule, actor: Actor) -> Job:
        """Set a job's schedule; the scheduler puts it in force at its next turn.

        Raises:
            InvalidValueError: The cron expression or the time zone is not valid.
            ProblemError: 404: the job does not exist; 503: Postgres is unavailable.
        """
        check_job(job)
        check_schedule(wanted)
        async with self._metadata.transaction() as session:
            repository = ReportRepository(session)
            await repository.set_schedule(job, wanted.cron, wanted.time_zone, actor=actor)
            return await _read_job(repository, job)

    async def remove_schedule(self, job: str, actor: Actor) -> Job:
        """Remove a job's schedule that was set, so that the scheduler's settings count. Raises ProblemError (404, 503)."""
        check_job(job)
        async with self._metadata.transaction() as session:
            repository = ReportRepository(session)
            await repository.remove_schedule(job, actor=actor)
            return await _read_job(repository, job)

    async def start(self, job: str, wanted: NewRun, actor: Actor) -> RequestedRun:
        """Request a run; return it, and whether this call queued it.

        Raises:
            InvalidValueError: The window is not valid.
            ProblemError: 404: the job does not exist; 409: the samples of the window are not complete yet; 503: Postgres
                is unavailable.
        """
        check_job(job)
        now_ms = self._clock.now_ms()
        window = None if wanted.window is None else Window(*read_window(wanted.window, now_ms=now_ms))
        is_rollup = job == THROUGHPUT_ROLLUP
        if window is not None and is_rollup:
            _require_samples(window, moment_of(now_ms))
        async with self._metadata.transaction() as session:
            # The buckets of a rollup replace those of the run before.
            return await ReportRepository(session).start(job, window, actor=actor, is_repeatable=is_rollup)

    async def page(self, job: str, *, cursor: str | None, limit: int) -> Page[Run]:
        """List a job's runs, newest first. Raises InvalidValueError if the cursor is not valid, ProblemError."""
        check_job(job)
        before = None if cursor is None else decode_moment_cursor(cursor, RUNS_LISTING)
        async with self._metadata.transaction() as session:
            runs = await ReportRepository(session).page(job, before=before, limit=limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        return Page(
            runs, encode_moment_cursor(RUNS_LISTING, runs[-1].created_at, runs[-1].id) if len(runs) == limit else None
        )

    async def get(self, job: str, run: str) -> Run:
        """Return a run. Raises InvalidValueError, ProblemError (404)."""
        return (await self._find(job, run, html=False))[0]

    async def html(self, job: str, run: str) -> str:
        """Return the HTML page of a run. Raises InvalidValueError, ProblemError (404)."""
        found, page = await self._find(job, run, html=True)
        if page is None:
            raise ProblemError(UNKNOWN_RUN, f"run: {found.id} is {found.status} and has no page", field="run")
        return page

    async def _find(self, job: str, run: str, *, html: bool) -> tuple[Run, str | None]:
        check_job(job)
        run_id = read_run_id(run, "run")
        async with self._metadata.transaction() as session:
            repository = ReportRepository(session)
            found = await require_run(repository, job, run_id)
            return found, await repository.html(found.id) if html else None


def _require_samples(window: Window, now: datetime) -> None:
    """Raise ProblemError (409) if samples that belong to a window may still be missing.

    A group that does not move is only sampled every few minutes, and the end of the window lies between two samples.
    """
    ready = window.end + WRITTEN_EVERY
    if ready > now:
        left_ms = (ready - now) // timedelta(milliseconds=1)
        reason = f"is too recent: its samples are complete at {format_moment(ready)}; run it then"
        detail = f"/window/to: {format_moment(window.end)} {reason}"
        raise ProblemError(CONFLICT, detail, field="/window/to", retry_after_ms=left_ms)


async def _read_jobs(repository: ReportRepository) -> Sequence[Job]:
    schedules, schedules_set = await repository.schedules(), await repository.schedules_set()
    last_runs = await repository.last_runs()
    return [Job(job, schedules.get(job), schedules_set.get(job), last_runs.get(job)) for job in JOBS]


async def _read_job(repository: ReportRepository, name: str) -> Job:
    return next(job for job in await _read_jobs(repository) if job.name == name)


def check_job(job: str) -> None:
    """Raise ProblemError (404) unless the job exists."""
    if job not in JOBS:
        raise ProblemError(UNKNOWN_REPORT, f"job: {job!r} is not one of {', '.join(JOBS)}", field="job")


async def require_run(repository: ReportRepository, job: str, run_id: uuid.UUID | None) -> Run:
    """Return a run; without an id, the latest that succeeded. Raises ProblemError (404)."""
    found = await (repository.latest(job) if run_id is None else repository.get(job, run_id))
    if found is None:
        there = (
            f"{LATEST}: no run of {job} has succeeded yet" if run_id is None else f"there is no run {run_id} of {job}"
        )
        raise ProblemError(UNKNOWN_RUN, f"run: {there}", field="run")
    return found
