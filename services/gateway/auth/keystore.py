"""KeyStore: updates the key ring from Postgres, and makes the first key of an installation.

The ring is filled from the cache at start, and from Postgres at once and then every `interval_ms`, so a key that was
revoked through another gateway is valid here for at most that long. While Postgres is unavailable, the ring stays as it
is.

The first key is made if Postgres has no valid key. It is written to its file before it is added to Postgres: if the
gateway dies in between, the next start finds the file and adds that key. So the file always holds a working key, which
is never shown anywhere else.

If the file must be kept (`gantry up`, which shows its content), a start without the file creates it again in the same
way, with one more key: of the other keys, only the digests are known. They stay valid.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.runtime.clock import Clock
from gantry.runtime.privatefiles import find_private, write_private
from gantry.runtime.telemetry import logger
from services.gateway.auth.keycache import KeyCache
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of, make_key, make_key_id
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.db.engine import Database
from services.gateway.db.errors import MetadataUnavailableError
from services.gateway.db.keys import KeyRepository
from services.gateway.db.leadership import lock_key
from services.gateway.db.models import ApiKey
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor
from services.gateway.schemas.rights import ALL_RIGHTS, Rights

log = logger("gateway.keys")

FIRST_KEY_NAME = "first key"
RESTORED_KEY_NAME = "made at a start that found no key file"
BOOTSTRAP = Actor("bootstrap")


class KeyStore:
    """The gateway's link between its key ring and Postgres.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        keys: KeyRing,
        database: Database | None,
        cache: KeyCache,
        *,
        clock: Clock,
        interval_ms: int,
        first_key_file: str,
        keep_first_key_file: bool = False,
        receipt_key: ReceiptKey | None = None,
    ) -> None:
        self._keys = keys
        self._database = database
        self._cache = cache
        self._clock = clock
        self._interval_ms = interval_ms
        self._first_key_file = first_key_file
        self._must_restore_file = keep_first_key_file
        self._receipt_key = receipt_key
        self.unavailable: str | None = None if database is not None else "no database is configured"
        """The reason why Postgres did not answer last time, or None."""

    def load_cache(self) -> None:
        """Fill the ring with the keys of the last run, and read the key of receipts."""
        if self._receipt_key is not None:
            self._receipt_key.load()
        records = self._cache.load()
        if records is not None:
            self._keys.replace(records)

    async def refresh(self) -> bool:
        """Update the ring from Postgres; False if Postgres is unavailable."""
        if self._database is None:
            return False
        used = self._keys.take_used()
        # While the keys are read below, requests may create and revoke some.
        self._keys.note_changes()
        try:
            async with self._database.transaction() as session:
                rows = await _valid_keys(session)
                if not rows:
                    rows = [await self._make_first(session)]
                elif self._must_restore_file:
                    rows = await self._restore_file_key(session)
                now = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)
                await KeyRepository(session).touch(dict.fromkeys(sorted(used), now))
                if self._receipt_key is not None:
                    await self._receipt_key.share(session)
        except MetadataUnavailableError as error:
            if self.unavailable is None:
                log.warning("Postgres is unavailable; the loaded keys stay valid", reason=error.reason)
            self.unavailable = error.reason
            return False
        except OSError as error:
            self.unavailable = f"cannot write the first API key to {self._first_key_file}: {error.strerror or error}"
            log.warning("the first API key was not created", reason=self.unavailable)
            return False
        self.unavailable = None
        self._must_restore_file = False
        if self._keys.replace(_record(row) for row in rows):
            self._cache.save(self._keys.records())
        return True

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            # Until the ring is filled once, every request is rejected, so the attempts are more frequent.
            await asyncio.sleep((self._interval_ms if self._keys.is_loaded else 1_000) / 1_000)

    def save_cache(self) -> None:
        """Write the cache after a request changed the ring."""
        self._cache.save(self._keys.records())

    async def _make_first(self, session: AsyncSession) -> ApiKey:
        await _lock(session)
        rows = await _valid_keys(session)
        if rows:
            return rows[0]
        row = await self._add_file_key(session, FIRST_KEY_NAME)
        if row is None or row.revoked_at is not None:
            row = await self._create_file_key(session, FIRST_KEY_NAME)
        log.info("created the first API key", key_id=row.id, file=self._first_key_file)
        return row

    async def _restore_file_key(self, session: AsyncSession) -> Sequence[ApiKey]:
        """Return the valid keys, including the one in the file unless it was revoked on purpose."""
        await _lock(session)
        if await self._add_file_key(session, RESTORED_KEY_NAME) is None:
            row = await self._create_file_key(session, RESTORED_KEY_NAME)
            log.info("the key file was missing: created one more API key", key_id=row.id, file=self._first_key_file)
        return await _valid_keys(session)

    async def _add_file_key(self, session: AsyncSession, name: str) -> ApiKey | None:
        """Add the key in the file to Postgres; None if there is no file."""
        key = (find_private(self._first_key_file) or b"").decode("ascii", "replace").strip()
        return await _add(session, key, name) if key else None

    async def _create_file_key(self, session: AsyncSession, name: str) -> ApiKey:
        key = make_key()
        write_private(self._first_key_file, key.encode() + b"\n")
        return await _add(session, key, name)


async def _lock(session: AsyncSession) -> None:
    # Two gateways that start together must not make two keys.
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key("first-key")})


async def _add(session: AsyncSession, key: str, name: str) -> ApiKey:
    rights = msgspec.to_builtins(ALL_RIGHTS)
    repository = KeyRepository(session)
    return await repository.ensure(make_key_id(), sha256=digest_of(key), name=name, rights=rights, actor=BOOTSTRAP)


async def _valid_keys(session: AsyncSession) -> Sequence[ApiKey]:
    rows: list[ApiKey] = []
    while True:
        page = await KeyRepository(session).page(after=rows[-1].id if rows else "", limit=LIST_LIMIT_MAX, revoked=False)
        rows += page
        if len(page) < LIST_LIMIT_MAX:
            return rows


def _record(row: ApiKey) -> KeyRecord:
    return KeyRecord(row.id, bytes(row.sha256), row.name, msgspec.convert(row.rights, Rights))
