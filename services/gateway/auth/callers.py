"""Callers: the holders of keys and the users in sessions, as one."""

from services.gateway.auth.keyring import KeyRing, UnknownKeyError
from services.gateway.auth.keystore import KeyStore
from services.gateway.auth.principal import Principal
from services.gateway.auth.sessionring import SESSION_PREFIX, SessionRing
from services.gateway.auth.sessionstore import SessionStore


class Callers:
    """Finds principals by their credential.

    Attributes:
        keys: API keys.
        sessions: Sessions of users.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self, keys: KeyRing, sessions: SessionRing, store: SessionStore, key_store: KeyStore | None = None
    ) -> None:
        """Make them; without `key_store`, keys that the ring does not have are not looked up."""
        self._key_store = key_store
        self.keys = keys
        self.sessions = sessions
        self._store = store

    async def load_session(self, cookie: str) -> None:
        """Read a session that this gateway has not seen yet. Raises ProblemError (503)."""
        if self.sessions.find(cookie) is None:
            await self._store.load(cookie)

    async def look_up(self, unknown: UnknownKeyError) -> None:
        """Look for a key that this gateway does not know yet; return if it is known now.

        Raises:
            UnknownKeyError: `unknown`: there is no such key.
            ProblemError: 503: Postgres is unavailable.
        """
        if self._key_store is None or not await self._key_store.look_up(unknown.digest):
            raise unknown

    async def authenticate(self, header: bytes | str | None) -> Principal:
        """Return the principal of an `Authorization` header. Raises ProblemError (401, 503)."""
        try:
            return self.keys.authenticate(header)
        except UnknownKeyError as unknown:
            await self.look_up(unknown)
        return self.keys.authenticate(header)

    def principal_of(self, credential: str) -> Principal | None:
        """Return the current principal of a key or a session; None if it is no longer valid."""
        if credential.startswith(SESSION_PREFIX):
            return self.sessions.principal_of(credential)
        return self.keys.principal_of(credential)
