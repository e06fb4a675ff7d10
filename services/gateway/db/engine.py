"""Database: short transactions with a deadline, over a pool that replaces broken connections.

    async with database.transaction() as session:
        topic = await TopicRepository(session).get("FLIGHTS")

The block commits at its end and rolls back on any exception. It ends within its deadline even if Postgres hangs, and
errors of the driver leave it as MetadataUnavailableError (driver.py). After such a failure, callers are rejected at
once for BACK_OFF_MS, so that only one caller at a time waits for a server that hangs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from gantry.runtime.clock import Clock
from services.gateway.db.driver import BoundedConnection, connect_arguments, driver_url, first_line, unavailable
from services.gateway.db.errors import MetadataUnavailableError, UnstorableError

POOL_SIZE = 5
POOL_OVERFLOW_MAX = 5
POOL_TIMEOUT_S = 3.0
# Clients are promised a 503 within 10 s; the rest is for the way there and back.
TRANSACTION_TIMEOUT_MS = 8_000
BACK_OFF_MS = 1_000


class Database:
    """The gateway's Postgres.

    Concurrency: one for each process and event loop; each transaction belongs to the task that opened it.
    """

    def __init__(self, bind: AsyncEngine | AsyncConnection, *, clock: Clock) -> None:
        self._engine: AsyncEngine = bind if isinstance(bind, AsyncEngine) else bind.engine
        self._clock = clock
        self._refuse_until_ms = 0
        self._refusal: MetadataUnavailableError | None = None
        # On a connection with an open transaction (a test's), commits end savepoints inside it.
        self._sessions = async_sessionmaker(bind, expire_on_commit=False, join_transaction_mode="create_savepoint")

    @classmethod
    def open(cls, url: str, *, clock: Clock, application: str = "gantry-gateway") -> "Database":
        """Create it for a URL. It connects at first use, so Postgres may be down. Raises ValueError for a bad URL."""
        return cls(make_engine(driver_url(url), application=application), clock=clock)

    @property
    def url(self) -> URL:
        """The URL of the database; its text form hides the password."""
        return self._engine.url

    @asynccontextmanager
    async def transaction(self, *, within_ms: int = TRANSACTION_TIMEOUT_MS) -> AsyncIterator[AsyncSession]:
        """Open a transaction that is committed at the end of the block.

        Args:
            within_ms: Deadline of the whole transaction, including connecting and committing.

        Raises:
            MetadataUnavailableError: Postgres is unavailable. If the answer to the commit was lost, the commit may have
                happened.
            UnstorableError: Postgres cannot store a value.
        """
        self._refuse_while_away()
        limit = asyncio.timeout(within_ms / 1_000)
        try:
            async with limit, self._sessions() as session, session.begin():
                yield session
        except (SQLAlchemyError, TimeoutError) as error:
            # A TimeoutError that the block itself raises is not caused by Postgres.
            late = isinstance(error, TimeoutError) and limit.expired()
            problem = MetadataUnavailableError("Postgres did not answer in time") if late else unavailable(error)
            if problem is None and isinstance(error, DataError):
                raise UnstorableError(first_line(error.orig)) from error
            if problem is None:
                raise
            self._refusal = problem
            self._refuse_until_ms = self._clock.monotonic_ms() + BACK_OFF_MS
            raise problem from error
        self._refusal = None

    async def ping(self, *, within_ms: int = 2_000) -> None:
        """Raise MetadataUnavailableError unless Postgres answers."""
        async with self.transaction(within_ms=within_ms) as session:
            await session.execute(text("SELECT 1"))

    async def close(self) -> None:
        """Close every idle connection."""
        await self._engine.dispose()

    def _refuse_while_away(self) -> None:
        if self._refusal is not None and self._clock.monotonic_ms() < self._refuse_until_ms:
            raise MetadataUnavailableError(self._refusal.reason)


def make_engine(url: URL, *, application: str, pooled: bool = True) -> AsyncEngine:
    """Create an engine whose connections have all the limits of driver.py."""
    arguments = {**connect_arguments(application), "async_creator_fn": BoundedConnection.connect}
    if not pooled:
        return create_async_engine(url, connect_args=arguments, poolclass=NullPool)
    return create_async_engine(
        url,
        connect_args=arguments,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW_MAX,
        pool_timeout=POOL_TIMEOUT_S,
        # This costs one more round trip a transaction; without it, the first calls after a restart of Postgres would
        # fail.
        pool_pre_ping=True,
        pool_recycle=1_800,
    )
