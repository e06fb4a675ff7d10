"""Jobs as callers see them: queued, listed, cancelled. runner.py does their work."""

import asyncio
import uuid
from typing import Any, Final

from gantry.model.errors import InvalidValueError
from services.gateway.db.jobs import CANCELLED, DONE, FAILED, Job, JobRepository
from services.gateway.db.repositories import Actor
from services.gateway.errors import JOB_ENDED, TOO_MANY, UNKNOWN_JOB, ProblemError
from services.gateway.schemas.cursors import decode_moment_cursor, encode_moment_cursor
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING: Final = "jobs"
ACTIVE_MAX: Final = 100
"""Limit of jobs that have not ended. Gateways do a few at a time, so more would only wait."""


class Jobs:
    """The operations on jobs. The caller has checked the rights.

    Attributes:
        due: Set when a job was queued, so that this gateway starts it at once. Others see that it is due (duework.py).
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.due = asyncio.Event()

    async def create(self, kind: str, arguments: dict[str, Any], actor: Actor) -> Job:
        """Queue a job. Its kind has checked the arguments.

        Raises:
            ProblemError: 429: too many jobs have not ended; 503: Postgres is unavailable.
        """
        async with self._metadata.transaction() as session:
            repository = JobRepository(session)
            if await repository.active_count() >= ACTIVE_MAX:
                raise ProblemError(TOO_MANY, f"jobs: {ACTIVE_MAX} have not ended, which is the limit")
            job = await repository.create(kind, arguments, actor=actor)
        self.due.set()
        return job

    async def page(
        self, *, kind: str | None, state: str | None, created_by: str | None, cursor: str | None, limit: int
    ) -> Page[Job]:
        """List jobs, newest first; None selects all kinds, states or creators.

        Raises:
            InvalidValueError: The cursor is not valid.
            ProblemError: 503: Postgres is unavailable.
        """
        before = None if cursor is None else decode_moment_cursor(cursor, LISTING)
        async with self._metadata.transaction() as session:
            found = await JobRepository(session).page(
                kind=kind, state=state, created_by=created_by, before=before, limit=limit
            )
        if len(found) < limit:
            return Page(found)
        return Page(found, encode_moment_cursor(LISTING, found[-1].created_at, found[-1].id))

    async def get(self, job: str) -> Job:
        """Return a job. Raises InvalidValueError, ProblemError (404, 503)."""
        job_id = _read_id(job)
        async with self._metadata.transaction() as session:
            return _require(await JobRepository(session).get(job_id), job)

    async def cancel(self, job: str, actor: Actor) -> Job:
        """Cancel a queued job at once, and a running one within seconds; return the job.

        To cancel a job again changes nothing.

        Raises:
            InvalidValueError: It is not the id of a job.
            ProblemError: 404: there is no such job; 409: it is done or has failed; 503: Postgres is unavailable.
        """
        job_id = _read_id(job)
        async with self._metadata.transaction() as session:
            found = _require(await JobRepository(session).request_cancel(job_id, actor=actor), job)
        if found.state in (DONE, FAILED):
            raise ProblemError(JOB_ENDED, f"job: {job} is {found.state} and can't become {CANCELLED}", field="job")
        return found


def _require(job: Job | None, text: str) -> Job:
    if job is None:
        raise ProblemError(UNKNOWN_JOB, f"job: there is no job {text}", field="job")
    return job


def _read_id(text: str) -> uuid.UUID:
    try:
        found = uuid.UUID(text)
    except ValueError:
        found = None
    # UUID() also accepts braces, `urn:uuid:`, missing hyphens and capitals; these are rejected here.
    if found is None or str(found) != text:
        raise InvalidValueError("job", text, "is not a job's id")
    return found
