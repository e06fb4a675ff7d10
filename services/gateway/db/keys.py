"""API keys in Postgres. The key itself never gets here, only its SHA-256."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.errors import AlreadyExistsError
from services.gateway.db.models import ApiKey, EarlierSecret, Json
from services.gateway.db.repositories import Actor, AuditRepository, bounded

EARLIER_MAX: Final = 8
"""Earlier secrets of one key that are valid at the same time."""
KEPT_MAX: Final = 100
"""Earlier secrets of one key whose digests are kept; the others are deleted."""


class KeyRepository:
    """API keys. The key itself never gets here, only its SHA-256."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def create(
        self,
        key_id: str,
        *,
        sha256: bytes,
        name: str,
        rights: Json,
        actor: Actor,
        expires_at: datetime | None = None,
        limits: Json | None = None,
    ) -> ApiKey:
        """Add a key.

        Raises:
            AlreadyExistsError: The id or the key exists already.
        """
        row = await self._insert(key_id, sha256, name, rights, expires_at=expires_at, limits=limits)
        if row is None:
            raise AlreadyExistsError("key", key_id)
        self._audit.record(actor, "key.create", "key", key_id, before=None, after=_key_facts(row))
        return row

    async def ensure(self, key_id: str, *, sha256: bytes, name: str, rights: Json, actor: Actor) -> ApiKey:
        """Return the key with this SHA-256, and add it if it is missing; for the first key of an installation.

        A secret that a key had before a rotation belongs to that key, and is not added again.
        """
        earlier = await self._session.get(EarlierSecret, sha256)
        if earlier is not None:
            rotated = await self.get(earlier.key_id)
            assert rotated is not None, "a foreign key"
            return rotated
        row = await self._insert(key_id, sha256, name, rights)
        if row is not None:
            self._audit.record(actor, "key.create", "key", key_id, before=None, after=_key_facts(row))
            return row
        found = await self.by_sha256(sha256)
        if found is None:
            raise AlreadyExistsError("key", key_id)
        return found

    async def get(self, key_id: str) -> ApiKey | None:
        """Return a key by its id, revoked or not."""
        return await self._session.get(ApiKey, key_id)

    async def by_sha256(self, sha256: bytes) -> ApiKey | None:
        """Return a key by its digest, revoked or not."""
        return (await self._session.scalars(select(ApiKey).where(ApiKey.sha256 == sha256))).one_or_none()

    async def page(self, *, after: str = "", limit: int = 100, revoked: bool = True) -> Sequence[ApiKey]:
        """Return keys by id, after `after`; `revoked` False leaves out revoked keys."""
        query = select(ApiKey).where(ApiKey.id > after).order_by(ApiKey.id).limit(bounded(limit))
        if not revoked:
            query = query.where(ApiKey.revoked_at.is_(None))
        return (await self._session.scalars(query)).all()

    async def lock_admin_keys(self) -> Sequence[str]:
        """Return the ids of the valid admin keys that do not expire, and block revocations by others until the commit.

        A caller that waited for the lock sees the changes that others committed meanwhile. The order of the rows
        prevents a deadlock between two callers.
        """
        lasts = and_(ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None), ApiKey.rights["admin"].as_boolean())
        query = select(ApiKey.id).where(lasts).order_by(ApiKey.id).with_for_update()
        return (await self._session.scalars(query)).all()

    async def revoke(self, key_id: str, *, actor: Actor) -> ApiKey | None:
        """Revoke a key; None if it does not exist. A key that was revoked before stays as it is."""
        row = await self._locked(key_id)
        if row is None or row.revoked_at is not None:
            return row
        self._audit.record(actor, "key.revoke", "key", key_id, before=_key_facts(row), after=None)
        await self._session.execute(update(ApiKey).where(ApiKey.id == key_id).values(revoked_at=func.now()))
        await self._session.refresh(row)
        return row

    async def rotate(self, key_id: str, sha256: bytes, *, overlap: timedelta, actor: Actor) -> ApiKey | None:
        """Give a key another secret; None if it does not exist, or was revoked.

        The present secret and all earlier ones stay valid for `overlap` at most; of the earlier ones, the newest
        EARLIER_MAX.
        """
        row = await self._locked(key_id)
        if row is None or row.revoked_at is not None:
            return None
        until = func.now() + overlap
        of_key = EarlierSecret.key_id == key_id
        await self._session.execute(
            update(EarlierSecret).where(of_key).values(expires_at=func.least(EarlierSecret.expires_at, until))
        )
        retired = insert(EarlierSecret).values(
            sha256=row.sha256, key_id=key_id, retired_at=func.clock_timestamp(), expires_at=until
        )
        await self._session.execute(retired)
        newest = select(EarlierSecret.sha256).where(of_key).order_by(EarlierSecret.retired_at.desc()).limit(EARLIER_MAX)
        await self._session.execute(
            update(EarlierSecret)
            .where(of_key, EarlierSecret.sha256.not_in(newest), EarlierSecret.expires_at > func.now())
            .values(expires_at=func.now())
        )
        kept = select(EarlierSecret.sha256).where(of_key).order_by(EarlierSecret.retired_at.desc()).limit(KEPT_MAX)
        await self._session.execute(delete(EarlierSecret).where(of_key, EarlierSecret.sha256.not_in(kept)))
        changed = {"sha256": sha256, "rotated_at": func.now(), "previous_valid_until": until}
        await self._session.execute(update(ApiKey).where(ApiKey.id == key_id).values(**changed))
        await self._session.refresh(row)
        after = {"overlap_s": int(overlap.total_seconds())}
        self._audit.record(actor, "key.rotate", "key", key_id, before=None, after=after)
        return row

    async def change(self, key_id: str, values: Mapping[str, Any], *, actor: Actor) -> ApiKey | None:
        """Change `name`, `expires_at` or `limits`; None if the key does not exist, or was revoked."""
        row = await self._locked(key_id)
        if row is None or row.revoked_at is not None:
            return None
        before = _key_facts(row)
        if values:
            await self._session.execute(update(ApiKey).where(ApiKey.id == key_id).values(**values))
            await self._session.refresh(row)
        after = _key_facts(row)
        if after != before:
            self._audit.record(actor, "key.change", "key", key_id, before=before, after=after)
        return row

    async def by_secret(self, sha256: bytes) -> ApiKey | None:
        """Return the key that a valid secret belongs to, present or earlier; None if there is none."""
        earlier = select(EarlierSecret.key_id).where(
            EarlierSecret.sha256 == sha256, EarlierSecret.expires_at > func.now()
        )
        is_valid = and_(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()))
        query = select(ApiKey).where(or_(ApiKey.sha256 == sha256, ApiKey.id.in_(earlier)), is_valid)
        return (await self._session.scalars(query)).one_or_none()

    async def earlier_secrets(self, key_id: str | None = None) -> Sequence[EarlierSecret]:
        """Return the earlier secrets that are still valid, of one key or of all, the newest first."""
        query = select(EarlierSecret).where(EarlierSecret.expires_at > func.now())
        if key_id is not None:
            query = query.where(EarlierSecret.key_id == key_id)
        query = query.order_by(EarlierSecret.retired_at.desc()).execution_options(populate_existing=True)
        return (await self._session.scalars(query)).all()

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """Record when keys were last used, collected over a while; the time never goes back."""
        for key_id, at in last_used.items():
            newer = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
            await self._session.execute(update(ApiKey).where(and_(ApiKey.id == key_id, newer)).values(last_used_at=at))

    async def _locked(self, key_id: str) -> ApiKey | None:
        query = select(ApiKey).where(ApiKey.id == key_id).with_for_update().execution_options(populate_existing=True)
        return (await self._session.scalars(query)).one_or_none()

    async def _insert(
        self,
        key_id: str,
        sha256: bytes,
        name: str,
        rights: Json,
        *,
        expires_at: datetime | None = None,
        limits: Json | None = None,
    ) -> ApiKey | None:
        assert len(sha256) == hashlib.sha256().digest_size
        values = {"id": key_id, "sha256": sha256, "name": name, "rights": rights}
        statement = insert(ApiKey).values(**values, expires_at=expires_at, limits=limits)
        return (await self._session.scalars(statement.on_conflict_do_nothing().returning(ApiKey))).one_or_none()


def _key_facts(row: ApiKey) -> dict[str, Any]:
    expires_at = None if row.expires_at is None else row.expires_at.isoformat()
    return {"name": row.name, "rights": row.rights, "expires_at": expires_at, "limits": row.limits}
