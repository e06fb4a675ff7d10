"""API keys: create, list and revoke."""

from dataclasses import dataclass, field

import msgspec

from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of, make_key, make_key_id
from services.gateway.auth.keystore import KeyStore
from services.gateway.db.keys import KeyRepository
from services.gateway.db.models import ApiKey
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor
from services.gateway.errors import LAST_ADMIN_KEY, UNKNOWN_KEY, ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.keys import NewKey
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING = "keys"


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new API key; `secret` is the text that callers send, of which only a digest is stored."""

    row: ApiKey
    secret: str = field(repr=False)


class Keys:
    """The operations on API keys. The caller has checked the right `admin`."""

    def __init__(self, metadata: Metadata, keys: KeyRing, store: KeyStore) -> None:
        self._metadata = metadata
        self._keys = keys
        self._store = store

    async def create(self, new: NewKey, actor: Actor) -> CreatedKey:
        """Create a key; only this result ever contains its secret."""
        secret = make_key()
        digest = digest_of(secret)
        rights = msgspec.to_builtins(new.rights)
        async with self._metadata.transaction() as session:
            repository = KeyRepository(session)
            row = await repository.create(make_key_id(), sha256=digest, name=new.name, rights=rights, actor=actor)
        self._keys.add(KeyRecord(row.id, digest, row.name, new.rights))
        self._store.save_cache()
        return CreatedKey(row, secret)

    async def page(self, *, cursor: str | None, limit: int, revoked: bool) -> Page[ApiKey]:
        """List keys by id. Raises InvalidValueError if the cursor is not valid."""
        after = "" if cursor is None else decode_cursor(cursor, LISTING)
        async with self._metadata.transaction() as session:
            rows = await KeyRepository(session).page(after=after, limit=min(limit + 1, LIST_LIMIT_MAX), revoked=revoked)
        more = len(rows) > limit or (limit == LIST_LIMIT_MAX == len(rows))
        rows = rows[:limit]
        return Page(rows, encode_cursor(LISTING, rows[-1].id) if more else None)

    async def get(self, key_id: str) -> ApiKey:
        """Return a key. Raises ProblemError (404)."""
        async with self._metadata.transaction() as session:
            row = await KeyRepository(session).get(key_id)
        if row is None:
            raise _unknown(key_id)
        return row

    async def revoke(self, key_id: str, actor: Actor) -> None:
        """Revoke a key.

        Raises:
            ProblemError: 404: the key does not exist; 409: it is the last one with the right `admin`.
        """
        async with self._metadata.transaction() as session:
            repository = KeyRepository(session)
            # The lock comes before any read: of two keys that revoke each other, only one may succeed.
            if await repository.lock_admin_keys() == [key_id]:
                raise ProblemError(LAST_ADMIN_KEY, f"id: {key_id} is the last key with the right `admin`", field="id")
            if await repository.revoke(key_id, actor=actor) is None:
                raise _unknown(key_id)
        self._keys.remove(key_id)
        self._store.save_cache()


def _unknown(key_id: str) -> ProblemError:
    return ProblemError(UNKNOWN_KEY, f"id: there is no key {key_id!r}", field="id")
