"""Samples of offsets: writing them, and the partitions they lie in."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, insert, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.reporttables import LAG_SAMPLE_ROUNDS, LAG_SAMPLES

PARTITION_PREFIX: Final = "lag_samples_"
# A report may read for long; who waits for it makes all who come later wait, too.
DROP_LOCK_TIMEOUT_MS: Final = 200

_PARTITIONS: Final = text(
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
    "WHERE inhparent = to_regclass('lag_samples') ORDER BY child.relname"
)


class SampleRepository:
    """The samples; the caller holds the leadership `samples` (leadership.py)."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def partitions(self) -> list[date]:
        """Return the days for which there is a partition, the oldest first."""
        names = (await self._session.scalars(_PARTITIONS)).all()
        return [day for name in names if (day := find_day(name)) is not None]

    async def make_partitions(self, days: Iterable[date]) -> None:
        """Make the partitions of these days of UTC where there are none.

        A table is made and attached: unlike CREATE TABLE … PARTITION OF that does not wait for those who read.
        """
        there = set(await self.partitions())
        for day in days:
            if day not in there:
                name = partition_of(day)
                # One that is there already was detached by hand, and what it holds is taken back.
                await self._run(f"CREATE TABLE IF NOT EXISTS {name} (LIKE lag_samples)")
                bounds = f"FROM ('{day}T00:00:00Z') TO ('{day + timedelta(days=1)}T00:00:00Z')"
                await self._run(f"ALTER TABLE lag_samples ATTACH PARTITION {name} FOR VALUES {bounds}")

    async def drop_before(self, day: date) -> tuple[int, int]:
        """Drop the partitions of the days before `day`, and the rounds.

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
        before = datetime(day.year, day.month, day.day, tzinfo=UTC)
        await self._session.execute(delete(LAG_SAMPLE_ROUNDS).where(LAG_SAMPLE_ROUNDS.c.sampled_at < before))
        return dropped, kept

    async def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add samples: dictionaries of all columns of `lag_samples`. Their days have partitions."""
        if rows:
            connection = await self._session.connection()
            await connection.execute(insert(LAG_SAMPLES), rows)

    async def end_round(self, sampled_at: datetime, *, took_ms: int, missing: Sequence[str]) -> None:
        """Note that a round is done: its samples are all there, but for those of brokers in `missing`."""
        values = {"sampled_at": sampled_at, "took_ms": took_ms, "missing": list(missing)}
        await self._session.execute(upsert(LAG_SAMPLE_ROUNDS).values(values).on_conflict_do_nothing())

    async def _drop(self, name: str) -> bool:
        # In a savepoint of its own: that a report is reading is nothing to hold against Postgres.
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
