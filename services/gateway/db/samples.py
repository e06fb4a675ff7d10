"""Samples of offsets: writing blocks and rounds, and what is done with them as they age."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import LargeBinary, case, delete, func, insert, literal, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.model.sampleblock import Kind
from services.gateway.db.reporttables import LAG_SAMPLE_BLOCKS, LAG_SAMPLE_ROUNDS

PARTITION_PREFIX: Final = "lag_samples_"
# A report may read for long; who waits for it makes all who come later wait, too.
DROP_LOCK_TIMEOUT_MS: Final = 200

_BLOCK: Final = LAG_SAMPLE_BLOCKS.c
_KEY: Final = tuple_(_BLOCK.sampled_at, _BLOCK.broker)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITIONS: Final = text(
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
    "WHERE inhparent = to_regclass('lag_samples') ORDER BY child.relname"
)


class StoredBlock(NamedTuple):
    """A row of lag_sample_blocks."""

    sampled_at: datetime
    broker: str
    kind: Kind
    based_at: datetime | None
    queues: int
    data: bytes

    def to_row(self) -> dict[str, Any]:
        """Return it by the names of columns."""
        return self._asdict()


class SampleRepository:
    """The samples; the caller holds the leadership `samples` (leadership.py)."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    # Writing

    async def add(self, block: StoredBlock) -> None:
        """Add a block. There must be none of its broker and moment."""
        await self._session.execute(insert(LAG_SAMPLE_BLOCKS).values(block.to_row()))

    async def end_round(self, sampled_at: datetime, *, took_ms: int, missing: Sequence[str]) -> None:
        """Note that a round is done: its samples are all there, but for those of brokers in `missing`."""
        values = {"sampled_at": sampled_at, "took_ms": took_ms, "missing": list(missing)}
        await self._session.execute(upsert(LAG_SAMPLE_ROUNDS).values(values).on_conflict_do_nothing())

    # Ageing

    async def find_oldest(self, kind: Kind, *, before: datetime) -> tuple[datetime, str] | None:
        """Return moment and broker of the oldest block of a kind, None where there is none before a moment."""
        query = (
            select(_BLOCK.sampled_at, _BLOCK.broker)
            .where(_BLOCK.kind == kind, _BLOCK.sampled_at < before)
            .order_by(_BLOCK.sampled_at)
            .limit(1)
        )
        row = (await self._session.execute(query)).one_or_none()
        return None if row is None else (row.sampled_at, row.broker)

    async def stretch(self, broker: str, since: datetime, until: datetime) -> list[StoredBlock]:
        """Return a broker's blocks of [since, until), by time; the bytes of changes only."""
        data = case((_BLOCK.kind == Kind.CHANGES, _BLOCK.data), else_=literal(b"", LargeBinary))
        query = (
            select(_BLOCK.sampled_at, _BLOCK.broker, _BLOCK.kind, _BLOCK.based_at, _BLOCK.queues, data)
            .where(_BLOCK.broker == broker, _BLOCK.sampled_at >= since, _BLOCK.sampled_at < until)
            .order_by(_BLOCK.sampled_at)
        )
        rows = (await self._session.execute(query)).all()
        return [StoredBlock(row[0], row[1], Kind(row[2]), *row[3:]) for row in rows]

    async def replace(self, old: Sequence[StoredBlock], new: Sequence[StoredBlock]) -> None:
        """Put blocks in the place of others, all at once."""
        keys = [(block.sampled_at, block.broker) for block in old]
        await self._session.execute(delete(LAG_SAMPLE_BLOCKS).where(_KEY.in_(keys)))
        for block in new:
            await self.add(block)

    async def thin(self, kind: Kind, kept: Kind, step: timedelta, since: datetime, until: datetime) -> None:
        """Keep the last block of a kind of each broker and step, as another kind, and delete the others.

        Args:
            kind: Of the blocks.
            kept: What those become that stay.
            step: Counted from 1970.
            since: The first moment, where a step begins.
            until: Exclusive, where a step ends.
        """
        within = (_BLOCK.kind == kind, _BLOCK.sampled_at >= since, _BLOCK.sampled_at < until)
        place = func.row_number().over(
            partition_by=(_BLOCK.broker, func.date_bin(step, _BLOCK.sampled_at, _EPOCH)),
            order_by=_BLOCK.sampled_at.desc(),
        )
        ranked = select(_BLOCK.sampled_at, _BLOCK.broker, place.label("place")).where(*within).subquery()
        others = select(ranked.c.sampled_at, ranked.c.broker).where(ranked.c.place > 1)
        await self._session.execute(delete(LAG_SAMPLE_BLOCKS).where(_KEY.in_(others)))
        await self._session.execute(update(LAG_SAMPLE_BLOCKS).where(*within).values(kind=kept))

    async def delete_blocks(self, kinds: Iterable[Kind], *, before: datetime, limit: int) -> int:
        """Delete the oldest blocks of some kinds, at most `limit` of each; return how many."""
        deleted = 0
        for kind in kinds:
            oldest = (
                select(_BLOCK.sampled_at, _BLOCK.broker)
                .where(_BLOCK.kind == kind, _BLOCK.sampled_at < before)
                .order_by(_BLOCK.sampled_at)
                .limit(limit)
            )
            rows = await self._session.execute(
                delete(LAG_SAMPLE_BLOCKS).where(_KEY.in_(oldest)).returning(_BLOCK.broker)
            )
            deleted += len(rows.all())
        return deleted

    async def delete_rounds(self, *, before: datetime, limit: int) -> int:
        """Delete the oldest rounds, at most `limit`; return how many."""
        at = LAG_SAMPLE_ROUNDS.c.sampled_at
        oldest = select(at).where(at < before).order_by(at).limit(limit)
        return len((await self._session.execute(delete(LAG_SAMPLE_ROUNDS).where(at.in_(oldest)).returning(at))).all())

    # Rows of gateways before migration 0016

    async def partitions(self) -> list[date]:
        """Return the days for which `lag_samples` has a partition, the oldest first."""
        names = (await self._session.scalars(_PARTITIONS)).all()
        return [day for name in names if (day := find_day(name)) is not None]

    async def drop_before(self, day: date) -> tuple[int, int]:
        """Drop the partitions of the days before `day`.

        Returns:
            How many partitions were dropped, and how many could not be, since somebody reads them; try again later.
        """
        dropped = kept = 0
        for old in await self.partitions():
            if old < day:
                if await self._drop(partition_of(old)):
                    dropped += 1
                else:
                    kept += 1
        return dropped, kept

    async def _drop(self, name: str) -> bool:
        # In a savepoint of its own: that somebody is reading is nothing to hold against Postgres.
        try:
            async with self._session.begin_nested():
                await self._run(f"SET LOCAL lock_timeout = {DROP_LOCK_TIMEOUT_MS}")
                await self._run(f"DROP TABLE {name}")
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            return False
        return True

    async def _run(self, statement: str) -> None:
        await (await self._session.connection()).exec_driver_sql(statement)


_LOCK_NOT_AVAILABLE: Final = "55P03"


def partition_of(day: date) -> str:
    """Return the name of a day's partition."""
    return f"{PARTITION_PREFIX}{day:%Y%m%d}"


def find_day(partition: str) -> date | None:
    """Return the day of a partition, None for a table of another name."""
    digits = partition.removeprefix(PARTITION_PREFIX)
    if len(digits) != 8 or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return None
