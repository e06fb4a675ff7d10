"""API keys in Postgres. The key itself never gets here, only its SHA-256."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.errors import AlreadyExistsError
from services.gateway.db.models import ApiKey, Json
from services.gateway.db.repositories import Actor, AuditRepository, bounded


class KeyRepository:
    """API keys. The key itself never gets here, only its SHA-256."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def create(self, key_id: str, *, sha256: bytes, name: str, rights: Json, actor: Actor) -> ApiKey:
        """Add a key.

        Raises:
            AlreadyExistsError: The id or the key exists already.
        """
        row = await self._insert(key_id, sha256, name, rights)
        if row is None:
            raise AlreadyExistsError("key", key_id)
        self._audit.record(actor, "key.create", "key", key_id, before=None, after=_key_facts(row))
        return row

    async def ensure(self, key_id: str, *, sha256: bytes, name: str, rights: Json, actor: Actor) -> ApiKey:
        """Return the key with this SHA-256, and add it if it is missing; for the first key of an installation."""
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
        """Return the ids of the valid admin keys, and block revocations by others until the commit.

        A caller that waited for the lock sees the changes that others committed meanwhile. The order of the rows
        prevents a deadlock between two callers.
        """
        is_admin = ApiKey.rights["admin"].as_boolean()
        query = select(ApiKey.id).where(ApiKey.revoked_at.is_(None), is_admin).order_by(ApiKey.id).with_for_update()
        return (await self._session.scalars(query)).all()

    async def revoke(self, key_id: str, *, actor: Actor) -> ApiKey | None:
        """Revoke a key; None if it does not exist. A key that was revoked before stays as it is."""
        query = select(ApiKey).where(ApiKey.id == key_id).with_for_update()
        row = (await self._session.scalars(query)).one_or_none()
        if row is None or row.revoked_at is not None:
            return row
        self._audit.record(actor, "key.revoke", "key", key_id, before=_key_facts(row), after=None)
        await self._session.execute(update(ApiKey).where(ApiKey.id == key_id).values(revoked_at=func.now()))
        await self._session.refresh(row)
        return row

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """Record when keys were last used, collected over a while; the time never goes back."""
        for key_id, at in last_used.items():
            newer = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
            await self._session.execute(update(ApiKey).where(and_(ApiKey.id == key_id, newer)).values(last_used_at=at))

    async def _insert(self, key_id: str, sha256: bytes, name: str, rights: Json) -> ApiKey | None:
        assert len(sha256) == hashlib.sha256().digest_size
        statement = insert(ApiKey).values(id=key_id, sha256=sha256, name=name, rights=rights)
        return (await self._session.scalars(statement.on_conflict_do_nothing().returning(ApiKey))).one_or_none()


def _key_facts(row: ApiKey) -> dict[str, Any]:
    return {"name": row.name, "rights": row.rights}
