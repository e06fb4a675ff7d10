"""Jobs: long work that any gateway can do and take over.

A gateway claims a job with a lease: it moves `due_at` ahead and increments `claims`. While it works, it renews the
lease. If it dies, the job is due again, and another gateway continues from `progress`. Every write names the claim, so a
gateway that lost its lease changes nothing.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.jobtables import JOBS
from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import Actor, AuditRepository

QUEUED: Final = "queued"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
STATES: Final = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)

_JOB: Final = JOBS.c
_PLACE: Final = (_JOB.created_at, _JOB.id)
_RESOURCE: Final = "job"


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        id: Id of the job.
        kind: Kind of the work, such as `redrive`.
        arguments: Arguments of the work, as the kind defines them.
        progress: Place from which to continue, as the kind defines it; None before the first one.
        state: `queued`, `running`, `done`, `failed` or `cancelled`.
        is_cancel_requested: Whether the running job is to end as `cancelled`.
        done, failed: Number of items that succeeded and that failed.
        total: Number of all items; None while it is unknown.
        error: Reason of a failure, or the reason why a running job waits.
        created_by: Id of the key that created it.
        created_at, started_at, ended_at: Times; None if not yet.
        claims: Number of times that a gateway took it.
    """

    id: uuid.UUID
    kind: str
    arguments: dict[str, Any]
    progress: dict[str, Any] | None
    state: str
    is_cancel_requested: bool
    done: int
    failed: int
    total: int | None
    error: str | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    claims: int


class JobRepository:
    """Creation, lists, claims and outcomes of jobs."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def create(self, kind: str, arguments: dict[str, Any], *, actor: Actor) -> Job:
        """Queue a job."""
        statement = insert(JOBS).values(kind=kind, arguments=arguments, created_by=actor.id).returning(JOBS)
        [job] = read_all(Job, await self._session.execute(statement))
        after = {"kind": kind, "arguments": arguments}
        self._audit.record(actor, "job.create", _RESOURCE, str(job.id), before=None, after=after)
        return job

    async def active_count(self) -> int:
        """Return the number of jobs that have not ended."""
        query = select(func.count()).select_from(JOBS).where(_JOB.state.in_((QUEUED, RUNNING)))
        return await self._session.scalar(query) or 0

    async def get(self, job_id: uuid.UUID, *, lock: bool = False) -> Job | None:
        """Return a job; with `lock`, others cannot change it until the transaction ends."""
        query = select(JOBS).where(_JOB.id == job_id)
        return find_one(Job, await self._session.execute(query.with_for_update() if lock else query))

    async def page(
        self,
        *,
        kind: str | None,
        state: str | None,
        created_by: str | None,
        before: tuple[datetime, uuid.UUID] | None,
        limit: int,
    ) -> Sequence[Job]:
        """Return jobs, newest first; `before` is the place of the previous page's last job."""
        query = select(JOBS)
        for column, value in ((_JOB.kind, kind), (_JOB.state, state), (_JOB.created_by, created_by)):
            if value is not None:
                query = query.where(column == value)
        if before is not None:
            query = query.where(tuple_(*_PLACE) < before)
        query = query.order_by(*(column.desc() for column in _PLACE)).limit(limit)
        return read_all(Job, await self._session.execute(query))

    async def request_cancel(self, job_id: uuid.UUID, *, actor: Actor) -> Job | None:
        """Cancel a queued job, or ask the gateway of a running one to end it; None if it does not exist.

        A job that has ended stays as it is.
        """
        before = await self.get(job_id, lock=True)
        if before is None or before.state not in (QUEUED, RUNNING) or before.is_cancel_requested:
            return before
        values: dict[str, Any] = {"is_cancel_requested": True}
        if before.state == QUEUED:
            values |= {"state": CANCELLED, "ended_at": func.now()}
        statement = update(JOBS).where(_JOB.id == job_id).values(**values).returning(JOBS)
        [job] = read_all(Job, await self._session.execute(statement))
        self._audit.record(
            actor, "job.cancel", _RESOURCE, str(job_id), before={"state": before.state}, after={"state": job.state}
        )
        return job

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, count_max: int) -> Sequence[Job]:
        """Take due jobs of these kinds, the longest due first; the lease begins now."""
        due = (
            select(_JOB.id)
            .where(_JOB.state.in_((QUEUED, RUNNING)), _JOB.due_at <= func.now(), _JOB.kind.in_(kinds))
            .order_by(_JOB.due_at)
            .limit(count_max)
            .with_for_update(skip_locked=True)
        )
        statement = (
            update(JOBS)
            .where(_JOB.id.in_(due))
            .values(
                state=RUNNING,
                claims=_JOB.claims + 1,
                due_at=func.now() + lease,
                started_at=func.coalesce(_JOB.started_at, func.now()),
            )
        )
        return read_all(Job, await self._session.execute(statement.returning(JOBS)))

    async def save(
        self,
        job: Job,
        *,
        lease: timedelta,
        progress: dict[str, Any] | None,
        done: int,
        failed: int,
        total: int | None,
    ) -> Job | None:
        """Write the progress of a claimed job and renew its lease; None if the claim is lost."""
        values = {"progress": progress, "done": done, "failed": failed, "total": total, "error": None}
        return await self._write(job, {**values, "due_at": func.now() + lease})

    async def renew(self, job: Job, *, lease: timedelta) -> Job | None:
        """Renew the lease of a claimed job; None if the claim is lost."""
        return await self._write(job, {"due_at": func.now() + lease})

    async def postpone(self, job: Job, *, pause: timedelta, error: str) -> None:
        """Give a claimed job back, due again after the pause; `error` says why it waits."""
        await self._write(job, {"due_at": func.now() + pause, "error": error})

    async def end(self, job: Job, state: str, *, error: str | None = None) -> Job | None:
        """End a claimed job; None if the claim is lost."""
        assert state in (DONE, FAILED, CANCELLED), f"{state} is no end"
        return await self._write(job, {"state": state, "ended_at": func.now(), "error": error})

    async def delete_ended(self, *, before: datetime, limit: int) -> int:
        """Delete jobs that ended before a moment; return their number, at most `limit`."""
        old = select(_JOB.id).where(_JOB.ended_at < before, _JOB.created_at < before).limit(limit)
        deleted = await self._session.execute(delete(JOBS).where(_JOB.id.in_(old)).returning(_JOB.id))
        return len(deleted.all())

    async def _write(self, job: Job, values: dict[str, Any]) -> Job | None:
        mine = (_JOB.id == job.id, _JOB.claims == job.claims, _JOB.state == RUNNING)
        return find_one(Job, await self._session.execute(update(JOBS).where(*mine).values(**values).returning(JOBS)))
