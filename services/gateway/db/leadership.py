"""Leadership: work that must not run twice at once is done by one gateway at a time.

It is a session-level advisory lock on a connection of its own. The lock lives exactly as long as the connection, so
there is no lease to renew; but a leader learns of its connection's end only by asking. Hence the rule: call `hold()`
before each round of work, and keep rounds short and idempotent. Between the end of the connection and the next
`hold()`, another gateway may lead at the same time.
"""

import asyncio
import hashlib
from contextlib import suppress

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.db.driver import unavailable
from services.gateway.db.engine import Database, make_engine

HOLD_TIMEOUT_S = 5.0


class Leadership:
    """The claim of this process to one named leadership.

    Concurrency: one task calls it.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._engine = make_engine(database.url, application=f"gantry-leader-{name}", pooled=False)
        self._key = lock_key(name)
        self._connection: AsyncConnection | None = None

    @property
    def is_leader(self) -> bool:
        """Whether the last `hold()` succeeded."""
        return self._connection is not None

    async def hold(self) -> bool:
        """Keep or take the leadership; return False if another gateway has it or Postgres is unavailable."""
        try:
            async with asyncio.timeout(HOLD_TIMEOUT_S):
                return await self._keep() if self._connection is not None else await self._take()
        except TimeoutError:
            await self.release()
        except SQLAlchemyError as error:
            await self.release()
            if unavailable(error) is None:
                raise
        return False

    async def release(self) -> None:
        """Give the leadership up by closing the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError, TimeoutError):
                await connection.invalidate()
            with suppress(SQLAlchemyError, TimeoutError):
                await connection.close()

    async def _keep(self) -> bool:
        assert self._connection is not None
        await self._connection.execute(text("SELECT 1"))
        return True

    async def _take(self) -> bool:
        connection = await self._engine.connect()
        try:
            # AUTOCOMMIT: a transaction that stays open for days would keep Postgres from ever vacuuming.
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            if await connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": self._key}):
                self._connection = connection
        finally:
            if self._connection is None:
                await connection.close()
        return self._connection is not None


def lock_key(name: str) -> int:
    """Return the 64-bit advisory lock key of a leadership."""
    return int.from_bytes(hashlib.sha256(f"gantry.{name}".encode()).digest()[:8], "big", signed=True)
