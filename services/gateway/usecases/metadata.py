"""Metadata: transactions on Postgres whose failures are problems."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.engine import TRANSACTION_TIMEOUT_MS, Database
from services.gateway.db.errors import (
    AlreadyExistsError,
    MetadataUnavailableError,
    UnstorableError,
    VersionConflictError,
)
from services.gateway.errors import INVALID_FIELD, METADATA_UNAVAILABLE, VERSION_CONFLICT, ProblemError


class Metadata:
    """The gateway's metadata in Postgres, or its absence.

    Attributes:
        database: Database; None if none is configured, and then every transaction raises a 503.
    """

    def __init__(self, database: Database | None) -> None:
        self.database = database

    @asynccontextmanager
    async def transaction(self, *, within_ms: int = TRANSACTION_TIMEOUT_MS) -> AsyncIterator[AsyncSession]:
        """Open a transaction that is committed at the end of the block and rolled back after `within_ms`.

        Raises:
            ProblemError: 503: Postgres is unavailable. 412: the row does not match the caller's condition. 400:
                Postgres cannot store a value.
        """
        if self.database is None:
            raise ProblemError(METADATA_UNAVAILABLE, "metadata: no database is configured")
        try:
            async with self.database.transaction(within_ms=within_ms) as session:
                yield session
        except MetadataUnavailableError as error:
            raise ProblemError(
                METADATA_UNAVAILABLE, f"metadata: {error.reason}", retry_after_ms=error.retry_after_ms
            ) from None
        except VersionConflictError as error:
            raise ProblemError(VERSION_CONFLICT, f"If-Match: {error}", field="If-Match") from None
        except UnstorableError as error:
            raise ProblemError(INVALID_FIELD, f"request: {error}") from None
        except AlreadyExistsError as error:
            raise ProblemError(VERSION_CONFLICT, f"If-None-Match: {error}", field="If-None-Match") from None

    async def is_available(self) -> bool:
        """Return whether Postgres answers."""
        if self.database is None:
            return False
        try:
            await self.database.ping()
        except MetadataUnavailableError:
            return False
        return True


def is_metadata_unavailable(error: ProblemError) -> bool:
    """Return whether a problem means that Postgres is unavailable, so that brokers may be asked instead."""
    return error.kind is METADATA_UNAVAILABLE
