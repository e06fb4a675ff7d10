"""Callers: the holders of keys and the users in sessions, as one."""

from services.gateway.auth.keyring import KeyRing
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

    def __init__(self, keys: KeyRing, sessions: SessionRing, store: SessionStore) -> None:
        self.keys = keys
        self.sessions = sessions
        self._store = store

    async def load_session(self, cookie: str) -> None:
        """Read a session that this gateway has not seen yet. Raises ProblemError (503)."""
        if self.sessions.find(cookie) is None:
            await self._store.load(cookie)

    def principal_of(self, credential: str) -> Principal | None:
        """Return the current principal of a key or a session; None if it is no longer valid."""
        if credential.startswith(SESSION_PREFIX):
            return self.sessions.principal_of(credential)
        return self.keys.principal_of(credential)
