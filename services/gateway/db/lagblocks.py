"""Sample blocks for histories: the last block of each broker and step."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.model.sampleblock import Kind
from services.gateway.db.reporttables import LAG_SAMPLE_BLOCKS
from services.gateway.db.samples import StoredBlock

_BLOCK: Final = LAG_SAMPLE_BLOCKS.c
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class LagBlockRepository:
    """Reads blocks of lag samples."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def size(self, kind: Kind, since: datetime, until: datetime) -> int:
        """Return the total bytes of the blocks of a kind and above, from `since` to `until`."""
        length = func.coalesce(func.sum(func.octet_length(_BLOCK.data)), 0)
        return int((await self._session.execute(select(length).where(*_within(kind, since, until)))).scalar_one())

    async def blocks(
        self, kind: Kind, since: datetime, until: datetime, *, step: timedelta | None
    ) -> Sequence[StoredBlock]:
        """Return blocks of a kind and above, by broker and time; with a step, only the last block of each step."""
        query = select(LAG_SAMPLE_BLOCKS).where(*_within(kind, since, until))
        if step is not None:
            place = func.row_number().over(
                partition_by=(_BLOCK.broker, func.date_bin(step, _BLOCK.sampled_at, _EPOCH)),
                order_by=_BLOCK.sampled_at.desc(),
            )
            ranked = select(_BLOCK.sampled_at, _BLOCK.broker, place.label("place"))
            found = ranked.where(*_within(kind, since, until)).subquery().c
            last = select(found.sampled_at, found.broker).where(found.place == 1)
            query = query.where(tuple_(_BLOCK.sampled_at, _BLOCK.broker).in_(last))
        rows = (await self._session.execute(query.order_by(_BLOCK.broker, _BLOCK.sampled_at))).all()
        return [
            StoredBlock(row.sampled_at, row.broker, Kind(row.kind), row.based_at, row.queues, row.data) for row in rows
        ]

    async def base(self, broker: str, sampled_at: datetime) -> bytes | None:
        """Return the bytes of a full block, or None if it no longer exists."""
        query = select(_BLOCK.data).where(
            _BLOCK.broker == broker, _BLOCK.sampled_at == sampled_at, _BLOCK.based_at.is_(None)
        )
        data: bytes | None = (await self._session.execute(query)).scalar_one_or_none()
        return data


def _within(kind: Kind, since: datetime, until: datetime) -> tuple[ColumnElement[bool], ...]:
    return _BLOCK.kind >= kind, _BLOCK.sampled_at >= since, _BLOCK.sampled_at <= until
