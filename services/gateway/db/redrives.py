"""Redrives of dead letters: each letter of a group is sent again at most once.

A row is written before its letter is sent (`begin`). If the gateway dies before it writes `sent_at`, the letter may have
been sent; the next gateway looks for it.
"""

import enum
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.jobtables import DEAD_LETTER_REDRIVES, JOBS

_ROW: Final = DEAD_LETTER_REDRIVES.c


class Begun(enum.Enum):
    """The knowledge of a job about a letter that it is to send."""

    NEW = "new"
    """No job has sent it."""
    UNCERTAIN = "uncertain"
    """A gateway began to send it and has not written the outcome."""
    SENT = "sent"
    """This job has sent it."""


class RedriveRepository:
    """The letters that were sent again, or are being sent."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def sent(self, group: str, stored_ids: Collection[str]) -> Mapping[str, datetime]:
        """Return the times at which letters were sent again, by stored id."""
        query = select(_ROW.stored_id, _ROW.sent_at).where(
            _ROW.group_name == group, _ROW.stored_id.in_(stored_ids), _ROW.sent_at.is_not(None)
        )
        return dict((await self._session.execute(query)).tuples().all())

    async def begin(self, group: str, stored_ids: Sequence[str], job_id: uuid.UUID) -> Mapping[str, Begun]:
        """Write rows for letters that a job is about to send.

        A row that a job has left behind without an outcome goes to this job.

        Returns:
            The letters of this job, by stored id. Other letters were sent by other jobs, or are being sent by them.
        """
        named = (_ROW.group_name == group, _ROW.stored_id.in_(stored_ids))
        rows = [{"group_name": group, "stored_id": stored_id, "job_id": job_id} for stored_id in stored_ids]
        begun = insert(DEAD_LETTER_REDRIVES).values(rows).on_conflict_do_nothing().returning(_ROW.stored_id)
        new = set(await self._session.scalars(begun))
        active = select(JOBS.c.id).where(JOBS.c.ended_at.is_(None))
        left = (*named, _ROW.sent_at.is_(None), _ROW.job_id.not_in(active))
        await self._session.execute(update(DEAD_LETTER_REDRIVES).where(*left).values(job_id=job_id))
        mine = select(_ROW.stored_id, _ROW.sent_at).where(*named, _ROW.job_id == job_id)
        return {
            stored_id: Begun.NEW if stored_id in new else Begun.UNCERTAIN if sent_at is None else Begun.SENT
            for stored_id, sent_at in await self._session.execute(mine)
        }

    async def finish(self, group: str, stored_ids: Collection[str]) -> None:
        """Record that letters were sent."""
        mine = (_ROW.group_name == group, _ROW.stored_id.in_(stored_ids), _ROW.sent_at.is_(None))
        await self._session.execute(update(DEAD_LETTER_REDRIVES).where(*mine).values(sent_at=func.now()))

    async def give_up(self, group: str, stored_ids: Collection[str]) -> None:
        """Delete the rows of letters that were certainly not sent, so that a later redrive may send them."""
        mine = (_ROW.group_name == group, _ROW.stored_id.in_(stored_ids), _ROW.sent_at.is_(None))
        await self._session.execute(delete(DEAD_LETTER_REDRIVES).where(*mine))

    async def delete_old(self, age: timedelta) -> None:
        """Delete rows of this age. Brokers have deleted their letters long ago."""
        await self._session.execute(delete(DEAD_LETTER_REDRIVES).where(_ROW.began_at < func.now() - age))
