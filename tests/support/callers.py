"""Callers of gateways in tests: keys, and sessions without a database."""

from gantry.runtime.clock import Clock
from services.gateway.auth.callers import Callers
from services.gateway.auth.keyring import KeyRing
from services.gateway.auth.passwords import Passwords
from services.gateway.auth.sessionring import SessionRing
from services.gateway.auth.sessionstore import SessionStore


def callers_of(keys: KeyRing, clock: Clock) -> Callers:
    """Return the callers with these keys and no sessions."""
    sessions = SessionRing(clock)
    return Callers(
        keys, sessions, SessionStore(sessions, None, Passwords(), interval_ms=30_000, first_password_file="unused")
    )
