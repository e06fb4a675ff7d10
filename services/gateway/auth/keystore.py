"""KeyStore: updates the key ring from Postgres, and makes the first key of an installation.

The ring is filled from the cache at start, and from Postgres at once and then every `interval_ms`, so a key that was
revoked through another gateway is valid here for at most that long. A key that the ring does not have is looked up, so a
new key or secret is valid on every gateway at once. While Postgres is unavailable, the ring stays as it
is.

The first key is made if Postgres has no valid key. It is written to its file before it is added to Postgres: if the
gateway dies in between, the next start finds the file and adds that key. So the file always holds a working key, which
is never shown anywhere else.

If the file must be kept (`gantry up`, which shows its content), a start without the file creates it again in the same
way, with one more key: of the other keys, only the digests are known. They stay valid.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.privatefiles import find_private, write_private
from gantry.runtime.telemetry import logger
from services.gateway.auth.keycache import KeyCache
from services.gateway.auth.keyring import EarlierSecret, KeyRecord, KeyRing, digest_of, make_key, make_key_id
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.db.engine import Database
from services.gateway.db.errors import MetadataUnavailableError
from services.gateway.db.keys import KeyRepository
from services.gateway.db.leadership import lock_key
from services.gateway.db.models import ApiKey
from services.gateway.db.models import EarlierSecret as EarlierRow
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError
from services.gateway.schemas.rights import ALL_RIGHTS, KeyLimits, Rights

log = logger("gateway.keys")

FIRST_KEY_NAME = "first key"
RESTORED_KEY_NAME = "made at a start that found no key file"
BOOTSTRAP = Actor("bootstrap")
LOOKUPS_AT_ONCE: Final = 4
LOOKUPS_WAITING_MAX: Final = 100
"""Look-ups of unknown keys at the same time, and beside them waiting. Postgres has ten connections of this gateway."""
MISSED_MS: Final = 5_000
"""Time for which a wrong key is not looked up again."""
MISSED_MAX: Final = 10_000


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
        self._missed: dict[bytes, int] = {}
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._waiting = 0
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
                records = records_of(rows, await KeyRepository(session).earlier_secrets())
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
        if self._keys.replace(records):
            self._cache.save(self._keys.records())
        return True

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            self._keys.end_expired()
            # Until the ring is filled once, every request is rejected, so the attempts are more frequent.
            await asyncio.sleep((self._interval_ms if self._keys.is_loaded else 1_000) / 1_000)

    async def look_up(self, digest: bytes) -> bool:
        """Look in Postgres for a key that the ring does not have; return whether the ring has it now.

        Another gateway may have made it a moment ago. Wrong keys are remembered for MISSED_MS, and only a few
        look-ups run at the same time; beyond LOOKUPS_WAITING_MAX, a key counts as wrong until the next refresh.

        Raises:
            ProblemError: 503: Postgres is unavailable.
        """
        now_ms = self._clock.monotonic_ms()
        if self._database is None or self._missed.get(digest, 0) > now_ms or self._waiting >= LOOKUPS_WAITING_MAX:
            return False
        self._waiting += 1
        try:
            async with self._lookups, self._database.transaction() as session:
                repository = KeyRepository(session)
                row = await repository.by_secret(digest)
                earlier = () if row is None else await repository.earlier_secrets(row.id)
        except MetadataUnavailableError as error:
            detail = f"Authorization: the key is not known here, and can't be looked up: {error.reason}"
            raise ProblemError(METADATA_UNAVAILABLE, detail) from None
        finally:
            self._waiting -= 1
        if row is None:
            if len(self._missed) >= MISSED_MAX:
                self._missed.clear()
            self._missed[digest] = now_ms + MISSED_MS
            return False
        self._keys.add(records_of([row], earlier)[0])
        self.save_cache()
        return True

    def save_cache(self) -> None:
        """Write the cache after a request changed the ring."""
        self._cache.save(self._keys.records())

    async def _make_first(self, session: AsyncSession) -> ApiKey:
        await _lock(session)
        rows = await _valid_keys(session)
        if rows:
            return rows[0]
        row = await self._add_file_key(session, FIRST_KEY_NAME)
        if row is None or row.revoked_at is not None or row.expires_at is not None or row.rotated_at is not None:
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
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC)
    after = ""
    while True:
        page = await KeyRepository(session).page(after=after, limit=LIST_LIMIT_MAX, revoked=False)
        rows += [row for row in page if row.expires_at is None or row.expires_at > now]
        if len(page) < LIST_LIMIT_MAX:
            return rows
        after = page[-1].id


def records_of(rows: Iterable[ApiKey], earlier: Iterable[EarlierRow]) -> list[KeyRecord]:
    """Return keys of Postgres as the ring keeps them, with their earlier secrets."""
    secrets: dict[str, list[EarlierSecret]] = {}
    for each in earlier:
        secrets.setdefault(each.key_id, []).append(EarlierSecret(bytes(each.sha256), _ms(each.expires_at)))
    return [
        KeyRecord(
            row.id,
            bytes(row.sha256),
            row.name,
            msgspec.convert(row.rights, Rights),
            None if row.expires_at is None else _ms(row.expires_at),
            None if row.limits is None else msgspec.convert(row.limits, KeyLimits),
            tuple(secrets.get(row.id, ())),
        )
        for row in rows
    ]


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
