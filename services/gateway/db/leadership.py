"""Leadership: one of the gateways does the background work that must not run twice at once, such as reconciling.

A leadership is an advisory lock of Postgres. The leader holds it on a connection of its own, and Postgres releases it
when that connection ends. So there is no lease to renew, but a leader notices the end of its connection only when it
uses the connection. Hence the rule: call `hold()` before each round of work, and keep rounds short and idempotent.
Between the end of the connection and the next `hold()`, another gateway may lead at the same time.
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
"""The limit for one call of `hold()`, with the connect. After it, the leadership is given up."""


class Leadership:
    """The claim of this process to one named leadership.

    Concurrency: one task calls it.
    """

    def __init__(self, database: Database, name: str) -> None:
        """Create a claim that is not held yet.

        Args:
            database: Postgres, which all gateways share.
            name: Name of the work, such as `reconciler`. Gateways with the same name exclude each other.
        """
        self._engine = make_engine(database.url, application=f"gantry-leader-{name}", pooled=False)
        self._key = lock_key(name)
        self._connection: AsyncConnection | None = None

    @property
    def is_leader(self) -> bool:
        """Whether the last `hold()` succeeded."""
        return self._connection is not None

    async def hold(self) -> bool:
        """Take the leadership, or check that it is still held; return whether this process leads.

        False means that another gateway leads, that Postgres is unavailable, or that it did not answer in
        HOLD_TIMEOUT_S.

        Raises:
            SQLAlchemyError: Postgres rejected the statement. The leadership is given up.
        """
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
        """Give up the leadership: close the connection, so that Postgres releases the lock. Errors are ignored."""
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
    """Return the key of the advisory lock with this name, a signed 64-bit number.

    Every advisory lock of the gateways has its key from here, also those that last for one transaction. Names must
    therefore differ, and keys never change: during an upgrade, old and new gateways must use the same ones.
    """
    return int.from_bytes(hashlib.sha256(f"gantry.{name}".encode()).digest()[:8], "big", signed=True)
