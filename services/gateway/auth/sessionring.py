"""SessionRing: the sessions of users that this gateway has seen, in memory.

A session is 256 random bits in a cookie. Postgres and this ring only have its SHA-256. The CSRF token of a session is an
HMAC of its cookie, so it needs no place of its own: only a page that the gateway has told it can repeat it.

A session that another gateway has made is not in the ring at first. `SessionStore` (sessionstore.py) reads it, and
later drops sessions that have ended elsewhere.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from gantry.runtime.clock import Clock
from gantry.runtime.rng import secret_bytes
from services.gateway.auth.principal import Principal, user_principal
from services.gateway.auth.roles import Role

SESSIONS_CACHED_MAX: Final = 10_000
COOKIE: Final = "gantry_session"
SESSION_PREFIX: Final = "session-"
_SESSION_BYTES: Final = 32
_COOKIE_LENGTH_MAX: Final = 128


class SessionRecord(msgspec.Struct, frozen=True):
    """A session as it is stored.

    Attributes:
        id: Public id, which lists show.
        sha256: Digest of the cookie.
        user: Name of the user.
        role: Role of the user.
        expires_at_ms: End of the session in wall ms, if it is not used until then.
    """

    id: str
    sha256: bytes
    user: str
    role: Role
    expires_at_ms: int


class SessionRing:
    """The known sessions.

    Concurrency: the event loop's thread; no call waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[SessionRecord, Principal]] = OrderedDict()
        self._by_id: dict[str, bytes] = {}
        self._used: set[str] = set()

    def find(self, cookie: str) -> Principal | None:
        """Return the principal of a session, and note its use; None if the session is not known or has ended."""
        found = self._known.get(digest_of(cookie))
        if found is None:
            return None
        record, principal = found
        if record.expires_at_ms <= self._clock.now_ms():
            self.remove(record.id)
            return None
        self._used.add(record.id)
        return principal

    def record_of(self, session_id: str) -> SessionRecord | None:
        """Return a known session by its public id."""
        digest = self._by_id.get(session_id)
        return None if digest is None else self._known[digest][0]

    def principal_of(self, session_id: str) -> Principal | None:
        """Return the principal of a session by its public id; None if it is not known or has ended."""
        digest = self._by_id.get(session_id)
        if digest is None:
            return None
        record, principal = self._known[digest]
        return principal if record.expires_at_ms > self._clock.now_ms() else None

    def add(self, record: SessionRecord) -> None:
        """Add a session, or replace what is known of it. The least recently added one gives way if there are too many."""
        known = self._known.get(record.sha256)
        if known is not None and known[0].role is record.role:
            principal = known[1]
        else:
            if known is not None:
                known[1].is_revoked = True
            principal = user_principal(record.user, record.role, record.id)
        self._known[record.sha256] = (record, principal)
        self._known.move_to_end(record.sha256)
        self._by_id[record.id] = record.sha256
        while len(self._known) > SESSIONS_CACHED_MAX:
            _, (oldest, _) = self._known.popitem(last=False)
            del self._by_id[oldest.id]

    def remove(self, session_id: str) -> None:
        """Remove a session; it is not valid from now on."""
        digest = self._by_id.pop(session_id, None)
        if digest is not None:
            self._known.pop(digest)[1].is_revoked = True

    def remove_user(self, user: str) -> None:
        """Remove all sessions of a user."""
        for record in [record for record, _ in self._known.values() if record.user == user]:
            self.remove(record.id)

    def ids(self) -> list[str]:
        """Return the public ids of the known sessions."""
        return list(self._by_id)

    def refresh(self, asked: Iterable[str], records: Iterable[SessionRecord]) -> None:
        """Take over what Postgres has of the sessions `asked`; sessions that it does not have are removed."""
        fresh = {record.id: record for record in records}
        for session_id in asked:
            record = fresh.get(session_id)
            if record is None:
                self.remove(session_id)
            elif session_id in self._by_id:
                self.add(record)

    def take_used(self) -> set[str]:
        """Return the ids of the sessions that were used since the last call."""
        used, self._used = self._used, set()
        return used


def make_cookie() -> str:
    """Return the value of a new session's cookie: 256 random bits."""
    return urlsafe_b64encode(secret_bytes(_SESSION_BYTES)).rstrip(b"=").decode()


def make_session_id() -> str:
    """Return the public id of a new session."""
    return SESSION_PREFIX + secret_bytes(8).hex()


def digest_of(cookie: str) -> bytes:
    """Return the digest of a cookie."""
    return hashlib.sha256(cookie.encode()).digest()


def csrf_token_of(cookie: str) -> str:
    """Return the CSRF token of a session."""
    return hmac.new(cookie.encode(), b"gantry csrf", hashlib.sha256).hexdigest()


def is_csrf_token(cookie: str, given: str) -> bool:
    """Return whether `given` is the CSRF token of a session, in constant time."""
    return hmac.compare_digest(csrf_token_of(cookie).encode(), given.encode("utf-8", "replace"))


def find_cookie(header: bytes) -> str | None:
    """Return the session's cookie in a `Cookie` header, or None. Raises nothing: other cookies may have any form."""
    for pair in header.split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE.encode() and value.isascii() and 0 < len(value) <= _COOKIE_LENGTH_MAX:
            return value.decode("ascii")
    return None
