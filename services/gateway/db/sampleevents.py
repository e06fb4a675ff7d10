"""Observations of the sampler besides offsets: resets of committed offsets, and brokers that gave no numbers."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.remoting.bodies.resets import MadeReset
from services.gateway.db.reporttables import LAG_OFFSET_RESETS, LAG_SAMPLE_OUTAGES, LAG_SAMPLE_ROUNDS

_RESET = LAG_OFFSET_RESETS.c
_OUTAGE = LAG_SAMPLE_OUTAGES.c


class SampleEventRepository:
    """Resets and outages; only the gateway that samples writes them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add_resets(
        self, broker: str, seen_at: datetime, resets: Sequence[MadeReset], *, settled_epoch: int
    ) -> None:
        """Add the resets that a survey of a broker may contain and the survey before may not.

        Args:
            broker: Name of the broker.
            seen_at: Time of the survey.
            resets: The resets.
            settled_epoch: The survey contains resets up to this epoch for certain; later ones may come in the next.
        """
        rows = [
            {
                "broker": broker,
                "seen_at": seen_at,
                "epoch": one.epoch,
                "is_settled": one.epoch <= settled_epoch,
                "group_name": one.group,
                "topic": one.topic,
                "queue_ids": [queue.queue_id for queue in one.queues],
                "from_offsets": [queue.from_offset for queue in one.queues],
                "to_offsets": [queue.offset for queue in one.queues],
            }
            for one in resets
            if one.queues
        ]
        if rows:
            await self._session.execute(insert(LAG_OFFSET_RESETS).values(rows).on_conflict_do_nothing())

    async def settled_epochs(self, *, since: datetime) -> Mapping[str, int]:
        """Return broker → the epoch of the last reset that a survey contained for certain, of surveys after `since`."""
        query = (
            select(_RESET.broker, func.max(_RESET.epoch))
            .where(_RESET.seen_at >= since, _RESET.is_settled)
            .group_by(_RESET.broker)
        )
        return {row[0]: row[1] for row in (await self._session.execute(query)).all()}

    async def note_outages(self, at: datetime, missing: Collection[str], *, continued: Collection[str]) -> None:
        """Record the brokers that gave no numbers in a round.

        Args:
            at: Time of the round.
            missing: Names of the brokers.
            continued: The brokers that were missing in the round before, too.
        """
        for broker in sorted(missing):
            if broker in continued:
                latest = select(func.max(_OUTAGE.began_at)).where(_OUTAGE.broker == broker).scalar_subquery()
                change = update(LAG_SAMPLE_OUTAGES).where(_OUTAGE.broker == broker, _OUTAGE.began_at == latest)
                if (await self._session.execute(change.values(ended_at=at).returning(_OUTAGE.broker))).all():
                    continue
            values = {"broker": broker, "began_at": at, "ended_at": at}
            await self._session.execute(insert(LAG_SAMPLE_OUTAGES).values(values).on_conflict_do_nothing())

    async def outages(self, since: datetime, until: datetime) -> list[tuple[str, datetime, datetime]]:
        """Return broker, begin and end of each outage that overlaps a period."""
        query = select(_OUTAGE.broker, _OUTAGE.began_at, _OUTAGE.ended_at)
        within = query.where(_OUTAGE.ended_at >= since, _OUTAGE.began_at <= until).order_by(_OUTAGE.began_at)
        return [(row[0], row[1], row[2]) for row in (await self._session.execute(within)).all()]

    async def rounds(self, since: datetime, until: datetime) -> list[datetime]:
        """Return the times at which rounds of a period began, sorted. Old rounds are deleted."""
        began = LAG_SAMPLE_ROUNDS.c.sampled_at
        query = select(began).where(began >= since, began <= until).order_by(began)
        return list((await self._session.scalars(query)).all())

    async def delete(self, *, before: datetime, limit: int) -> int:
        """Delete old resets and outages, at most `limit` of each; return their number."""
        old_resets = select(_RESET.seen_at, _RESET.broker, _RESET.epoch).where(_RESET.seen_at < before).limit(limit)
        key = tuple_(_RESET.seen_at, _RESET.broker, _RESET.epoch)
        deleted = (
            await self._session.execute(delete(LAG_OFFSET_RESETS).where(key.in_(old_resets)).returning(_RESET.epoch))
        ).all()
        old = select(_OUTAGE.broker, _OUTAGE.began_at).where(_OUTAGE.ended_at < before).limit(limit)
        place = tuple_(_OUTAGE.broker, _OUTAGE.began_at)
        ended = (
            await self._session.execute(delete(LAG_SAMPLE_OUTAGES).where(place.in_(old)).returning(_OUTAGE.broker))
        ).all()
        return len(deleted) + len(ended)
