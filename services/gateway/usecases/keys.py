"""API keys: create, list, change, rotate and revoke."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock, SystemClock
from services.gateway.auth.keyring import KeyRing, digest_of, make_key, make_key_id
from services.gateway.auth.keystore import KeyStore, records_of
from services.gateway.db.keys import KeyRepository
from services.gateway.db.models import ApiKey, EarlierSecret
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor
from services.gateway.errors import LAST_ADMIN_KEY, UNKNOWN_KEY, ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.keys import OVERLAP_MS_MAX, KeyChange, KeyRotation, NewKey
from services.gateway.schemas.rights import KeyLimits
from services.gateway.schemas.times import parse_duration_ms, parse_time_ms
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

    def __init__(self, metadata: Metadata, keys: KeyRing, store: KeyStore, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._metadata = metadata
        self._keys = keys
        self._store = store

    async def create(self, new: NewKey, actor: Actor) -> CreatedKey:
        """Create a key; only this result ever contains its secret.

        Raises:
            InvalidValueError: The end of the key is not a time in the future.
            ProblemError: 503: Postgres is unavailable.
        """
        secret, expires_at = make_key(), self._end_of(new.expires_at)
        digest = digest_of(secret)
        async with self._metadata.transaction() as session:
            row = await KeyRepository(session).create(
                make_key_id(),
                sha256=digest,
                name=new.name,
                rights=msgspec.to_builtins(new.rights),
                actor=actor,
                expires_at=expires_at,
                limits=_limits_row(new.limits),
            )
        self._know(row, ())
        return CreatedKey(row, secret)

    async def rotate(self, key_id: str, wanted: KeyRotation, actor: Actor) -> CreatedKey:
        """Give a key another secret; the earlier ones stay valid for the overlap.

        Raises:
            InvalidValueError: The overlap is not a duration, or too long.
            ProblemError: 404: there is no valid key with the id. 503: Postgres is unavailable.
        """
        overlap_ms = parse_duration_ms(wanted.overlap, "/overlap", max_ms=OVERLAP_MS_MAX)
        secret = make_key()
        async with self._metadata.transaction() as session:
            repository = KeyRepository(session)
            overlap = timedelta(milliseconds=overlap_ms)
            row = await repository.rotate(key_id, digest_of(secret), overlap=overlap, actor=actor)
            if row is None:
                raise _unknown(key_id)
            earlier = await repository.earlier_secrets(key_id)
        self._know(row, earlier)
        return CreatedKey(row, secret)

    async def change(self, key_id: str, wanted: KeyChange, actor: Actor) -> ApiKey:
        """Change the name, the end or the limits of a key.

        Raises:
            InvalidValueError: The end of the key is not a time in the future.
            ProblemError: 404: there is no valid key with the id; 409: it is the last one with the right `admin` that
                does not expire; 503: Postgres is unavailable.
        """
        values: dict[str, Any] = {}
        if wanted.name is not UNSET:
            values["name"] = wanted.name
        if wanted.expires_at is not UNSET:
            values["expires_at"] = self._end_of(wanted.expires_at)
        if wanted.limits is not UNSET:
            values["limits"] = _limits_row(wanted.limits)
        async with self._metadata.transaction() as session:
            repository = KeyRepository(session)
            if values.get("expires_at") is not None:
                await _require_other_admin(repository, key_id)
            row = await repository.change(key_id, values, actor=actor)
            if row is None:
                raise _unknown(key_id)
            earlier = await repository.earlier_secrets(key_id)
        self._know(row, earlier)
        return row

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
            await _require_other_admin(repository, key_id)
            if await repository.revoke(key_id, actor=actor) is None:
                raise _unknown(key_id)
        self._keys.remove(key_id)
        self._store.save_cache()

    def _end_of(self, text: str | None) -> datetime | None:
        if text is None:
            return None
        end_ms = parse_time_ms(text, "/expires_at")
        if end_ms <= self._clock.now_ms():
            raise InvalidValueError("/expires_at", text, "is not in the future")
        return datetime.fromtimestamp(end_ms / 1_000, UTC)

    def _know(self, row: ApiKey, earlier: Sequence[EarlierSecret]) -> None:
        self._keys.add(records_of([row], earlier)[0])
        self._store.save_cache()


async def _require_other_admin(repository: KeyRepository, key_id: str) -> None:
    if await repository.lock_admin_keys() == [key_id]:
        detail = f"id: {key_id} is the last key with the right `admin` that does not expire"
        raise ProblemError(LAST_ADMIN_KEY, detail, field="id")


def _limits_row(limits: KeyLimits) -> dict[str, int] | None:
    """Return the limits as Postgres stores them; None if there are none."""
    given = {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
    return given or None


def _unknown(key_id: str) -> ProblemError:
    return ProblemError(UNKNOWN_KEY, f"id: there is no key {key_id!r}", field="id")
