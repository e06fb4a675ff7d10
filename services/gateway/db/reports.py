"""Reports: requested runs, and their pages. Jobs write the results; reports/rows.py reads their rows."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, and_, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.leadership import lock_key
from services.gateway.db.reporttables import REPORT_PAGES, REPORT_RUNS, REPORT_SCHEDULES
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
class Started:
    """A requested run; `is_queued` is whether this request queued it, or, without a window, it was queued already."""

    run: Row[Any]
    is_queued: bool


class ReportRepository:
    """Runs, pages and schedules."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def start(self, job: str, window: Window | None, *, actor: Actor) -> Started:
        """Request a run; a second request for the same run returns the first.

        Args:
            job: Name of the job.
            window: Time range; None for a report on the time at which it starts.
            actor: The caller.
        """
        # Concurrent requests run one after the other; the lock ends with the transaction.
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key(f"report.{job}"))))
        run = await self._find_run(job, window)
        if run is None:
            run = await self._insert(job, window, actor)
            if (
                run is None
            ):  # The scheduler, which takes no lock, created the window's run between the read and the insert.
                return await self.start(job, window, actor=actor)
        elif window is None or run.status not in FAILED:
            return Started(run, is_queued=window is None)
        else:
            run = await self._requeue(run, actor)
        after = {
            "run": str(run.id),
            "window": None if window is None else [run.window_start.isoformat(), run.window_end.isoformat()],
        }
        AuditRepository(self._session).record(actor, "report.run", "report", job, before=None, after=after)
        return Started(run, is_queued=True)

    async def get(self, job: str, run_id: uuid.UUID) -> Row[Any] | None:
        """Return a run, or None if the job has no such run."""
        return (
            await self._session.execute(select(REPORT_RUNS).where(_RUN.id == run_id, _RUN.job == job))
        ).one_or_none()

    async def latest(self, job: str) -> Row[Any] | None:
        """Return the run that succeeded for the newest window, even if a run for an older window finished later."""
        query = select(REPORT_RUNS).where(_RUN.job == job, _RUN.status == SUCCEEDED)
        # A run with a window that ends in the future only knows the time until it finished, so later runs are newer.
        end = func.least(_RUN.window_end, _RUN.finished_at)
        newest = query.order_by(end.desc(), _RUN.finished_at.desc().nulls_last()).limit(1)
        return (await self._session.execute(newest)).one_or_none()

    async def page(
        self, job: str, *, before: tuple[datetime, uuid.UUID] | None = None, limit: int = 100
    ) -> Sequence[Row[Any]]:
        """Return a job's runs, newest first; `before` is the position of the previous page's last run."""
        assert 1 <= limit <= LIST_LIMIT_MAX, f"a page of {limit}"
        query = select(REPORT_RUNS).where(_RUN.job == job)
        if before is not None:
            query = query.where(tuple_(_RUN.created_at, _RUN.id) < before)
        query = query.order_by(_RUN.created_at.desc(), _RUN.id.desc()).limit(limit)
        return (await self._session.execute(query)).all()

    async def last_runs(self) -> Mapping[str, Row[Any]]:
        """Return the newest run of each job."""
        query = (
            select(REPORT_RUNS).ext(distinct_on(_RUN.job)).order_by(_RUN.job, _RUN.created_at.desc(), _RUN.id.desc())
        )
        return {row.job: row for row in await self._session.execute(query)}

    async def schedules(self) -> Mapping[str, Row[Any]]:
        """Return the schedules of the scheduler, by job."""
        return {row.job: row for row in await self._session.execute(select(REPORT_SCHEDULES))}

    async def html(self, run_id: uuid.UUID) -> str | None:
        """Return the HTML page of a run, or None if it has none."""
        query = select(REPORT_PAGES.c.html).where(REPORT_PAGES.c.run_id == run_id)
        return (await self._session.execute(query)).scalar_one_or_none()

    async def _find_run(self, job: str, window: Window | None) -> Row[Any] | None:
        """Return the run of the window; without a window, the run that is queued already."""
        query = select(REPORT_RUNS).where(_RUN.job == job)
        if window is None:
            query = query.where(_RUN.window_start.is_(None), _RUN.status == QUEUED).order_by(_RUN.created_at).limit(1)
        else:
            query = query.where(and_(_RUN.window_start == window.start, _RUN.window_end == window.end))
        return (await self._session.execute(query.with_for_update())).one_or_none()

    async def _insert(self, job: str, window: Window | None, actor: Actor) -> Row[Any] | None:
        values: dict[str, Any] = {"job": job, "trigger": MANUAL, "requested_by": actor.id}
        if window is None:
            # Not now(), which is constant within a transaction: the window is a key.
            values["window_end"] = func.clock_timestamp()
        else:
            values |= {"window_start": window.start, "window_end": window.end}
        statement = insert(REPORT_RUNS).values(values).on_conflict_do_nothing().returning(REPORT_RUNS)
        run: Row[Any] | None = (await self._session.execute(statement)).one_or_none()
        return run

    async def _requeue(self, failed: Row[Any], actor: Actor) -> Row[Any]:
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
        run: Row[Any] = (await self._session.execute(change.returning(REPORT_RUNS))).one()
        return run
