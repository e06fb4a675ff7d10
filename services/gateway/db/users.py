"""Users and their sessions in Postgres.

Changes of users take one lock, so that of two admins who demote each other only one succeeds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.leadership import lock_key
from services.gateway.db.models import Json
from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.db.usertables import SESSIONS, USERS

KIND: Final = "user"
ADMIN: Final = "admin"
SESSIONS_OF_USER_MAX: Final = 50
"""Limit of sessions of a user. A new one beyond it ends the oldest."""

_USER: Final = USERS.c
_SESSION: Final = SESSIONS.c
_LISTED: Final = (_USER.name, _USER.role, _USER.disabled, _USER.created_at, _USER.password_changed_at)


@dataclass(frozen=True, slots=True)
class User:
    """A user, without the password's hash.

    Attributes:
        name: Name of the user.
        role: Role: `viewer`, `operator` or `admin`.
        disabled: Whether the user can't log in.
        created_at: Time of the creation.
        password_changed_at: Time of the last change of the password.
    """

    name: str
    role: str
    disabled: bool
    created_at: datetime
    password_changed_at: datetime


@dataclass(frozen=True, slots=True)
class Credentials:
    """The facts that a log-in is checked against."""

    name: str
    role: str
    disabled: bool
    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Session:
    """A session, with the role that its user has now.

    Attributes:
        id: Public id.
        sha256: Digest of the cookie.
        user_name, role: The user.
        created_at: Time of the log-in.
        last_seen_at: Time of a recent use.
        expires_at: End of the session, if it is not used until then.
        address, user_agent: Origin of the log-in.
    """

    id: str
    sha256: bytes = field(repr=False)
    user_name: str
    role: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str | None
    user_agent: str | None


class UserRepository:
    """The users."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def lock(self) -> None:
        """Block changes of users by others until the transaction ends."""
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key("users"))))

    async def count(self) -> int:
        """Return the number of users."""
        return (await self._session.scalar(select(func.count()).select_from(USERS))) or 0

    async def get(self, name: str) -> User | None:
        """Return a user."""
        return find_one(User, await self._session.execute(select(*_LISTED).where(_USER.name == name)))

    async def credentials(self, name: str) -> Credentials | None:
        """Return the facts that a log-in of this user is checked against."""
        query = select(_USER.name, _USER.role, _USER.disabled, _USER.password_hash).where(_USER.name == name)
        return find_one(Credentials, await self._session.execute(query))

    async def page(self, *, after: str, limit: int) -> Sequence[User]:
        """Return users by name, after `after`."""
        query = select(*_LISTED).where(_USER.name > after).order_by(_USER.name).limit(limit)
        return read_all(User, await self._session.execute(query))

    async def is_last_admin(self, name: str) -> bool:
        """Return whether no other user is an admin that can log in. The caller holds the lock."""
        query = select(_USER.name).where(_USER.role == ADMIN, ~_USER.disabled).limit(2)
        return list(await self._session.scalars(query)) == [name]

    async def create(self, name: str, *, role: str, password_hash: str, disabled: bool, actor: Actor) -> User:
        """Add a user that does not exist; the caller holds the lock."""
        values = {"name": name, "role": role, "password_hash": password_hash, "disabled": disabled}
        result = await self._session.execute(insert(USERS).values(values).returning(*_LISTED))
        [user] = read_all(User, result)
        self._audit.record(actor, "user.create", KIND, name, before=None, after=_facts(user))
        return user

    async def change(self, before: User, *, role: str, disabled: bool, password_hash: str | None, actor: Actor) -> User:
        """Change a user; the caller holds the lock. `password_hash` None keeps the password."""
        values: dict[str, Any] = {"role": role, "disabled": disabled}
        if password_hash is not None:
            values |= {"password_hash": password_hash, "password_changed_at": func.now()}
        result = await self._session.execute(
            update(USERS).where(_USER.name == before.name).values(values).returning(*_LISTED)
        )
        [after] = read_all(User, result)
        facts = {**_facts(after), **({} if password_hash is None else {"password": "changed"})}
        if facts != _facts(before):
            self._audit.record(actor, "user.change", KIND, before.name, before=_facts(before), after=facts)
        return after

    async def rehash(self, name: str, password_hash: str) -> None:
        """Replace the hash of an unchanged password."""
        await self._session.execute(update(USERS).where(_USER.name == name).values(password_hash=password_hash))

    async def delete(self, before: User, *, actor: Actor) -> None:
        """Delete a user with its sessions; the caller holds the lock."""
        await self._session.execute(delete(USERS).where(_USER.name == before.name))
        self._audit.record(actor, "user.delete", KIND, before.name, before=_facts(before), after=None)


class SessionRepository:
    """The sessions."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def create(
        self,
        session_id: str,
        *,
        sha256: bytes,
        user: str,
        life: timedelta,
        address: str,
        user_agent: str | None,
        actor: Actor,
    ) -> Session:
        """Add a session; the oldest sessions beyond the limit of the user end."""
        await self._session.execute(
            insert(SESSIONS).values(
                id=session_id,
                sha256=sha256,
                user_name=user,
                expires_at=func.now() + life,
                address=address,
                user_agent=user_agent,
            )
        )
        newest = (
            select(_SESSION.id)
            .where(_SESSION.user_name == user)
            .order_by(_SESSION.created_at.desc(), _SESSION.id)
            .limit(SESSIONS_OF_USER_MAX)
        )
        await self._session.execute(
            delete(SESSIONS).where(_SESSION.user_name == user, _SESSION.id.not_in(newest), _SESSION.id != session_id)
        )
        after = {"session": session_id, "address": address}
        self._audit.record(actor, "session.create", KIND, user, before=None, after=after)
        found = await self.find([session_id])
        assert len(found) == 1, "it was added above"
        return found[0]

    async def find(self, ids: Collection[str]) -> Sequence[Session]:
        """Return those sessions of `ids` that are valid."""
        return await self._select(_SESSION.id.in_(ids))

    async def by_sha256(self, sha256: bytes) -> Session | None:
        """Return a valid session by the digest of its cookie."""
        found = await self._select(_SESSION.sha256 == sha256)
        return found[0] if found else None

    async def of_user(self, user: str) -> Sequence[Session]:
        """Return the valid sessions of a user, newest first; at most `SESSIONS_OF_USER_MAX`."""
        return await self._select(_SESSION.user_name == user)

    async def touch(self, ids: Collection[str], *, life: timedelta, life_max: timedelta) -> None:
        """Note that sessions were used: each lives on for `life`, but no longer than `life_max` after the log-in."""
        end = func.least(_SESSION.created_at + life_max, func.now() + life)
        await self._session.execute(
            update(SESSIONS).where(_SESSION.id.in_(sorted(ids))).values(last_seen_at=func.now(), expires_at=end)
        )

    async def end(self, user: str, session_id: str | None, *, but: str | None = None, actor: Actor) -> Sequence[str]:
        """End one session of a user, or all (but `but`). Return the ids of those that were there."""
        statement = delete(SESSIONS).where(_SESSION.user_name == user)
        if session_id is not None:
            statement = statement.where(_SESSION.id == session_id)
        if but is not None:
            statement = statement.where(_SESSION.id != but)
        ended = sorted(await self._session.scalars(statement.returning(_SESSION.id)))
        if ended:
            before: Json = {"sessions": ended}
            self._audit.record(actor, "session.end", KIND, user, before=before, after=None)
        return ended

    async def delete_expired(self) -> None:
        """Delete sessions that have ended."""
        await self._session.execute(delete(SESSIONS).where(_SESSION.expires_at <= func.now()))

    async def _select(self, condition: Any) -> Sequence[Session]:
        query = (
            select(*(_SESSION[name] for name in _SESSION_COLUMNS), _USER.role)
            .join(USERS, _USER.name == _SESSION.user_name)
            .where(condition, ~_USER.disabled, _SESSION.expires_at > func.now())
            .order_by(_SESSION.created_at.desc(), _SESSION.id)
        )
        return read_all(Session, await self._session.execute(query))


_SESSION_COLUMNS: Final = (
    "id",
    "sha256",
    "user_name",
    "created_at",
    "last_seen_at",
    "expires_at",
    "address",
    "user_agent",
)


def _facts(user: User) -> dict[str, Any]:
    return {"role": user.role, "disabled": user.disabled}
