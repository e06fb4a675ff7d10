"""SessionStore: the gateway's link between its sessions and Postgres, and the first user of an installation.

Every `interval_ms` it tells Postgres which sessions were used, and drops those that have ended elsewhere: a user was
disabled or deleted, or a session was ended through another gateway. So an ended session is valid here for at most that
long. While Postgres is unavailable, the known sessions stay valid until they expire.

The first user is `admin`, made if there are no users. The password is written to its file before the user is added to
Postgres: if the gateway dies in between, the next start finds the file and takes its password.
"""

import asyncio
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from gantry.runtime.privatefiles import find_private, write_private
from gantry.runtime.telemetry import logger
from services.gateway.auth.passwords import Passwords, make_password
from services.gateway.auth.roles import Role
from services.gateway.auth.sessionring import SessionRecord, SessionRing, digest_of
from services.gateway.db.engine import Database
from services.gateway.db.errors import MetadataUnavailableError
from services.gateway.db.repositories import Actor
from services.gateway.db.users import Session, SessionRepository, UserRepository
from services.gateway.errors import METADATA_UNAVAILABLE, OVERLOADED, ProblemError

log = logger("gateway.users")

FIRST_USER: Final = "admin"
SESSION_LIFE: Final = timedelta(hours=12)
"""Life of a session that is not used."""
SESSION_LIFE_MAX: Final = timedelta(days=7)
"""Life of a session from its log-in, however much it is used."""
_LOOKUPS_AT_ONCE: Final = 4
_LOOKUPS_WAITING_MAX: Final = 100
_BOOTSTRAP: Final = Actor("bootstrap")
_RETRY_S: Final = 1.0


class SessionStore:
    """Reads and refreshes sessions.

    Concurrency: the event loop's thread; one task runs it.
    """

    def __init__(
        self,
        ring: SessionRing,
        database: Database | None,
        passwords: Passwords,
        *,
        interval_ms: int,
        first_password_file: str,
    ) -> None:
        self._ring = ring
        self._database = database
        self._passwords = passwords
        self._interval_ms = interval_ms
        self._first_password_file = first_password_file
        self._has_users = False
        self._lookups = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._waiting = 0

    async def load(self, cookie: str) -> None:
        """Read a session that the ring does not have. Nothing happens if there is none.

        Raises:
            ProblemError: 503: Postgres is unavailable, or too many callers wait.
        """
        if self._database is None:
            raise ProblemError(METADATA_UNAVAILABLE, "session: can't be checked, because no database is configured")
        if self._waiting >= _LOOKUPS_WAITING_MAX:
            raise ProblemError(OVERLOADED, f"session: {self._waiting} look-ups of sessions wait", retry_after_ms=1_000)
        self._waiting += 1
        try:
            async with self._lookups, self._database.transaction() as session:
                found = await SessionRepository(session).by_sha256(digest_of(cookie))
        except MetadataUnavailableError as error:
            raise ProblemError(METADATA_UNAVAILABLE, f"session: can't be checked: {error.reason}") from None
        finally:
            self._waiting -= 1
        if found is not None:
            self._ring.add(record_of(found))

    async def refresh(self) -> bool:
        """Write the uses of sessions, drop those that ended, and make the first user; False: Postgres is unavailable."""
        if self._database is None:
            return False
        used, asked = self._ring.take_used(), self._ring.ids()
        try:
            async with self._database.transaction() as session:
                repository = SessionRepository(session)
                if used:
                    await repository.touch(used, life=SESSION_LIFE, life_max=SESSION_LIFE_MAX)
                await repository.delete_expired()
                found = await repository.find(asked) if asked else ()
                if not self._has_users:
                    await self._make_first(session)
        except MetadataUnavailableError:
            return False
        except OSError as error:
            reason = f"cannot write the first password to {self._first_password_file}: {error.strerror or error}"
            log.warning("the first user was not created", reason=reason)
            return False
        self._has_users = True
        self._ring.refresh(asked, map(record_of, found))
        return True

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            is_done = await self.refresh()
            await asyncio.sleep(self._interval_ms / 1_000 if is_done or self._has_users else _RETRY_S)

    async def _make_first(self, session: AsyncSession) -> None:
        users = UserRepository(session)
        await users.lock()
        if await users.count():
            return
        password = (find_private(self._first_password_file) or b"").decode("utf-8", "replace").strip()
        if not password:
            password = make_password()
            write_private(self._first_password_file, password.encode() + b"\n")
        hashed = await self._passwords.hash(password)
        await users.create(FIRST_USER, role=Role.ADMIN, password_hash=hashed, disabled=False, actor=_BOOTSTRAP)
        log.info("created the first user", user=FIRST_USER, file=self._first_password_file)


def record_of(row: Session) -> SessionRecord:
    """Return a session of Postgres as the ring keeps it."""
    return SessionRecord(
        row.id, bytes(row.sha256), row.user_name, Role(row.role), int(row.expires_at.timestamp() * 1_000)
    )
