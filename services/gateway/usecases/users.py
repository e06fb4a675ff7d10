"""Users and their sessions: log in and out, list, create, change, delete."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.auth.passwords import Passwords, needs_rehash
from services.gateway.auth.principal import Principal, unauthenticated
from services.gateway.auth.roles import Role
from services.gateway.auth.sessionring import SessionRing, csrf_token_of, digest_of, make_cookie, make_session_id
from services.gateway.auth.sessionstore import SESSION_LIFE, record_of
from services.gateway.auth.throttle import LoginThrottle, Wait
from services.gateway.db.repositories import Actor
from services.gateway.db.users import ADMIN, Credentials, Session, SessionRepository, User, UserRepository
from services.gateway.errors import (
    INVALID_FIELD,
    LAST_ADMIN,
    TOO_MANY,
    UNKNOWN_SESSION,
    UNKNOWN_USER,
    VERSION_CONFLICT,
    ProblemError,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.users import ChangePassword, LogIn, PutUser
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

log = logger("gateway.users")

LISTING: Final = "users"
USERS_MAX: Final = 10_000
USER_AGENT_CHARS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that has just begun.

    Attributes:
        cookie: Value of the cookie; only this result ever contains it.
        csrf: Token that changes with the cookie must repeat.
        user, role: The user.
        expires_at: End of the session, if it is not used until then.
    """

    cookie: str = field(repr=False)
    csrf: str = field(repr=False)
    user: str
    role: Role
    expires_at: datetime


class Users:
    """The operations on users and sessions.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self, metadata: Metadata, ring: SessionRing, passwords: Passwords, metrics: GatewayMetrics, *, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._ring = ring
        self._passwords = passwords
        self._metrics = metrics
        self._clock = clock
        self._throttle = LoginThrottle()

    async def log_in(
        self, given: LogIn, *, address: str, user_agent: str | None, request_id: str | None
    ) -> OpenedSession:
        """Begin a session.

        A wrong user, a wrong password and a disabled user get the same answer, after the same work.

        Raises:
            ProblemError: 401: user or password is wrong, or the user is disabled. 429: too many attempts failed. 503:
                Postgres is unavailable, or too many callers log in.
        """
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._throttle.wait_ms(given.user, address, now_ms)
        if wait_ms > 0:
            self._metrics.count("logins_throttled")
            detail = f"user: too many log-ins failed; the next attempt is allowed in {-(-wait_ms // 1_000)} s"
            raise ProblemError(TOO_MANY, detail, field="/user", retry_after_ms=wait_ms)
        found, is_right = await self._check(given.user, given.password, address, now_ms)
        if found is None or not is_right or found.disabled:
            self._metrics.count("logins_failed")
            log.warning("a log-in failed", user=given.user[:64], address=address)
            raise unauthenticated("user: the user or the password is wrong")
        self._throttle.succeed(given.user, address)
        rehashed = await self._passwords.hash(given.password) if needs_rehash(found.password_hash) else None

        def is_current(present: Credentials) -> bool:
            return present.password_hash == found.password_hash

        return await self.begin_session(
            given.user,
            is_current=is_current,
            rehashed=rehashed,
            address=address,
            user_agent=user_agent,
            request_id=request_id,
        )

    async def begin_session(
        self,
        user: str,
        *,
        is_current: Callable[[Credentials], bool],
        rehashed: str | None = None,
        address: str,
        user_agent: str | None,
        request_id: str | None,
    ) -> OpenedSession:
        """Begin a session of a user whose identity is proven. Each way to log in ends here.

        Args:
            user: Name of the user.
            is_current: Returns whether the proof still holds for the user as Postgres has it now.
            rehashed: New hash of the password, or None.
            address: Address of the client.
            user_agent: Its User-Agent header, or None.
            request_id: Id of the request, for the audit.

        Raises:
            ProblemError: 401: there is no such user any more, the user is disabled, or the proof does not hold. 503:
                Postgres is unavailable.
        """
        cookie, session_id = make_cookie(), make_session_id()
        async with self._metadata.transaction() as session:
            users = UserRepository(session)
            await users.lock()
            present = await users.credentials(user)
            if present is None or present.disabled or not is_current(present):
                raise unauthenticated("user: has changed during the log-in")
            if rehashed is not None:
                await users.rehash(user, rehashed)
            row = await SessionRepository(session).create(
                session_id,
                sha256=digest_of(cookie),
                user=user,
                life=SESSION_LIFE,
                address=address,
                user_agent=None if user_agent is None else user_agent[:USER_AGENT_CHARS_MAX],
                actor=Actor(f"user:{user}", request_id),
            )
        self._ring.add(record_of(row))
        self._metrics.count("logins")
        return OpenedSession(cookie, csrf_token_of(cookie), row.user_name, Role(row.role), row.expires_at)

    def waits(self) -> dict[str, list[Wait]]:
        """Return the waits of users after failed log-ins, as this gateway counts them."""
        return self._throttle.waits(self._clock.monotonic_ms())

    def expires_at(self, principal: Principal) -> datetime | None:
        """Return the end of the caller's session; None for a key."""
        record = self._ring.record_of(principal.credential)
        return None if record is None else datetime.fromtimestamp(record.expires_at_ms / 1_000, UTC)

    async def log_out(self, principal: Principal, actor: Actor) -> None:
        """End the caller's session. Raises ProblemError (503)."""
        async with self._metadata.transaction() as session:
            await SessionRepository(session).end(principal.name, principal.credential, actor=actor)
        self._ring.remove(principal.credential)

    async def change_password(self, principal: Principal, given: ChangePassword, address: str, actor: Actor) -> None:
        """Change the caller's own password, and end the other sessions of the user.

        Raises:
            ProblemError: 400: the present password is wrong, or the new one can't be used. 429: too many attempts failed. 503.
        """
        name = principal.name
        _check_password(name, given.new_password, "/new_password")
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._throttle.wait_ms(name, address, now_ms)
        if wait_ms > 0:
            raise ProblemError(TOO_MANY, "password: too many attempts failed", retry_after_ms=wait_ms)
        _, is_right = await self._check(name, given.password, address, now_ms)
        if not is_right:
            raise ProblemError(INVALID_FIELD, "password: is not the present password", field="/password")
        self._throttle.succeed(name, address)
        hashed = await self._passwords.hash(given.new_password)
        async with self._metadata.transaction() as session:
            users = UserRepository(session)
            await users.lock()
            user = await users.get(name)
            if user is None:
                raise _unknown(name)
            await users.change(user, role=user.role, disabled=user.disabled, password_hash=hashed, actor=actor)
            ended = await SessionRepository(session).end(name, None, but=principal.credential, actor=actor)
        for session_id in ended:
            self._ring.remove(session_id)

    async def page(self, *, cursor: str | None, limit: int) -> Page[User]:
        """List users by name. Raises InvalidValueError if the cursor is not valid."""
        after = "" if cursor is None else decode_cursor(cursor, LISTING)
        async with self._metadata.transaction() as session:
            rows = list(await UserRepository(session).page(after=after, limit=limit + 1))
        more = len(rows) > limit
        rows = rows[:limit]
        return Page(rows, encode_cursor(LISTING, rows[-1].name) if more else None)

    async def get(self, name: str) -> User:
        """Return a user. Raises ProblemError (404)."""
        async with self._metadata.transaction() as session:
            user = await UserRepository(session).get(name)
        if user is None:
            raise _unknown(name)
        return user

    async def put(self, name: str, given: PutUser, actor: Actor, *, exists: bool | None = None) -> tuple[User, bool]:
        """Create or change a user; return it, and whether it is new.

        A change of the password, of the role or to disabled ends the user's sessions.

        Args:
            name: Name of the user.
            given: The desired user.
            actor: The caller.
            exists: Whether the caller expects the user to exist; None for no condition.

        Raises:
            ProblemError: 400: a new user has no role or password, or the password can't be used. 409: the user is the
                last admin who can log in. 412: the user exists, or does not, against the condition. 429: there are too
                many users.
        """
        hashed = None
        if given.password is not UNSET:
            _check_password(name, given.password, "/password")
            hashed = await self._passwords.hash(given.password)
        async with self._metadata.transaction() as session:
            users = UserRepository(session)
            await users.lock()
            before = await users.get(name)
            if exists is not None and exists is (before is None):
                detail = f"user: {name} does not exist" if exists else f"user: {name} exists already"
                raise ProblemError(VERSION_CONFLICT, detail, field="If-Match" if exists else "If-None-Match")
            if before is None:
                return await self._create(users, name, given, hashed, actor), True
            role = before.role if given.role is UNSET else given.role
            disabled = before.disabled if given.disabled is UNSET else given.disabled
            if (role != ADMIN or disabled) and await users.is_last_admin(name):
                raise _last_admin(name)
            user = await users.change(before, role=role, disabled=disabled, password_hash=hashed, actor=actor)
            must_end = hashed is not None or disabled or role != before.role
            if must_end:
                await SessionRepository(session).end(name, None, actor=actor)
        if must_end:
            self._ring.remove_user(name)
        return user, False

    async def delete(self, name: str, actor: Actor) -> None:
        """Delete a user with all sessions. Raises ProblemError: 404; 409: the last admin who can log in."""
        async with self._metadata.transaction() as session:
            users = UserRepository(session)
            await users.lock()
            user = await users.get(name)
            if user is None:
                raise _unknown(name)
            if await users.is_last_admin(name):
                raise _last_admin(name)
            await users.delete(user, actor=actor)
        self._ring.remove_user(name)

    async def sessions(self, name: str) -> Sequence[Session]:
        """Return the valid sessions of a user, newest first. Raises ProblemError (404)."""
        async with self._metadata.transaction() as session:
            if await UserRepository(session).get(name) is None:
                raise _unknown(name)
            return await SessionRepository(session).of_user(name)

    async def end_sessions(self, name: str, session_id: str | None, actor: Actor) -> None:
        """End one session of a user, or all. Raises ProblemError (404)."""
        async with self._metadata.transaction() as session:
            if await UserRepository(session).get(name) is None:
                raise _unknown(name)
            ended = await SessionRepository(session).end(name, session_id, actor=actor)
        if session_id is not None and not ended:
            raise ProblemError(UNKNOWN_SESSION, f"session: {name} has no session {session_id!r}", field="session")
        for one in ended:
            self._ring.remove(one)

    async def _check(self, user: str, password: str, address: str, now_ms: int) -> tuple[Credentials | None, bool]:
        """Return the user, and whether the password is right. Raises ProblemError (503), which is no failed attempt."""
        # Nothing may wait between the look at the throttle and this: attempts at the same time would not count.
        self._throttle.begin(user, address, now_ms)
        try:
            async with self._metadata.transaction() as session:
                # Postgres can't store NUL, so no user has it in the name.
                found = None if "\0" in user else await UserRepository(session).credentials(user)
            return found, await self._passwords.is_right(password, None if found is None else found.password_hash)
        except ProblemError:
            self._throttle.withdraw(user, address)
            raise

    async def _create(self, users: UserRepository, name: str, given: PutUser, hashed: str | None, actor: Actor) -> User:
        if given.role is UNSET or hashed is None:
            missing = "role" if given.role is UNSET else "password"
            raise ProblemError(INVALID_FIELD, f"{missing}: is missing; user {name} is new", field=f"/{missing}")
        if await users.count() >= USERS_MAX:
            raise ProblemError(TOO_MANY, f"user: there are {USERS_MAX} users already", field="user")
        disabled = given.disabled is True
        return await users.create(name, role=given.role, password_hash=hashed, disabled=disabled, actor=actor)


def _check_password(user: str, password: str, at: str) -> None:
    if user in password.lower() and len(password) < 2 * len(user) + 4:
        raise ProblemError(INVALID_FIELD, f"{at.strip('/')}: is too much like the user's name", field=at)
    if len(set(password)) < 4:
        raise ProblemError(INVALID_FIELD, f"{at.strip('/')}: has fewer than 4 different characters", field=at)


def _unknown(name: str) -> ProblemError:
    return ProblemError(UNKNOWN_USER, f"user: there is no user {name!r}", field="user")


def _last_admin(name: str) -> ProblemError:
    detail = f"user: {name} is the last user with the role admin who can log in"
    return ProblemError(LAST_ADMIN, detail, field="user")
