"""Samples of offsets: blocks and rounds are written, thinned out and deleted."""

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
# A report may read for long, and a statement that waits for its lock makes all later ones wait, too.
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
        """Return the values by column name."""
        return self._asdict()


class SampleRepository:
    """The samples; the caller holds the leadership `samples` (leadership.py)."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, block: StoredBlock) -> None:
        """Add a block. There must be none of the same broker and time."""
        await self._session.execute(insert(LAG_SAMPLE_BLOCKS).values(block.to_row()))

    async def end_round(self, sampled_at: datetime, *, took_ms: int, missing: Sequence[str]) -> None:
        """Record that a round is complete: all its samples are written, except for the brokers in `missing`."""
        values = {"sampled_at": sampled_at, "took_ms": took_ms, "missing": list(missing)}
        await self._session.execute(upsert(LAG_SAMPLE_ROUNDS).values(values).on_conflict_do_nothing())

    async def find_oldest(self, kind: Kind, *, before: datetime) -> tuple[datetime, str] | None:
        """Return time and broker of the oldest block of a kind, or None if there is none before the given time."""
        query = (
            select(_BLOCK.sampled_at, _BLOCK.broker)
            .where(_BLOCK.kind == kind, _BLOCK.sampled_at < before)
            .order_by(_BLOCK.sampled_at)
            .limit(1)
        )
        row = (await self._session.execute(query)).one_or_none()
        return None if row is None else (row.sampled_at, row.broker)

    async def stretch(self, broker: str, since: datetime, until: datetime) -> list[StoredBlock]:
        """Return a broker's blocks of [since, until), by time; only changes come with their bytes."""
        data = case((_BLOCK.kind == Kind.CHANGES, _BLOCK.data), else_=literal(b"", LargeBinary))
        query = (
            select(_BLOCK.sampled_at, _BLOCK.broker, _BLOCK.kind, _BLOCK.based_at, _BLOCK.queues, data)
            .where(_BLOCK.broker == broker, _BLOCK.sampled_at >= since, _BLOCK.sampled_at < until)
            .order_by(_BLOCK.sampled_at)
        )
        rows = (await self._session.execute(query)).all()
        return [StoredBlock(row[0], row[1], Kind(row[2]), *row[3:]) for row in rows]

    async def replace(self, old: Sequence[StoredBlock], new: Sequence[StoredBlock]) -> None:
        """Replace blocks by others in one transaction."""
        keys = [(block.sampled_at, block.broker) for block in old]
        await self._session.execute(delete(LAG_SAMPLE_BLOCKS).where(_KEY.in_(keys)))
        for block in new:
            await self.add(block)

    async def downsample(self, kind: Kind, kept: Kind, step: timedelta, since: datetime, until: datetime) -> None:
        """Keep the last block of a kind for each broker and step, as another kind, and delete the others.

        Args:
            kind: Kind of the blocks.
            kept: New kind of those that stay.
            step: Length of a step, counted from 1970.
            since: Begin, at which a step begins.
            until: Exclusive end, at which a step ends.
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
        """Delete the oldest blocks of some kinds, at most `limit` of each; return their number."""
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
        """Delete the oldest rounds, at most `limit`; return their number."""
        at = LAG_SAMPLE_ROUNDS.c.sampled_at
        oldest = select(at).where(at < before).order_by(at).limit(limit)
        return len((await self._session.execute(delete(LAG_SAMPLE_ROUNDS).where(at.in_(oldest)).returning(at))).all())

    # The table lag_samples has rows of gateways before migration 0016.

    async def partitions(self) -> list[date]:
        """Return the days for which `lag_samples` has a partition, the oldest first."""
        names = (await self._session.scalars(_PARTITIONS)).all()
        return [day for name in names if (day := find_day(name)) is not None]

    async def drop_before(self, day: date) -> tuple[int, int]:
        """Drop the partitions of the days before `day`.

        Returns:
            The number of dropped partitions, and of those that readers have locked; try these again later.
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
        # A savepoint of its own: a lock time-out here is expected, and must not fail the transaction.
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
    """Return the day of a partition, or None for a table of another name."""
    digits = partition.removeprefix(PARTITION_PREFIX)
    if len(digits) != 8 or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return None
