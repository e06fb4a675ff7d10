"""Tickets: a browser's way to open a WebSocket without putting its key into a URL.

A ticket works once, within 60 s, on the gateway that gave it. It carries no rights of its own: at its use it stands for
the key it was asked for with, as far as that is still valid.
"""

from base64 import urlsafe_b64encode
from typing import Final, NamedTuple

from gantry.runtime.clock import Clock
from gantry.runtime.rng import secret_bytes
from services.gateway.auth.keyring import KeyRing
from services.gateway.auth.principal import Principal
from services.gateway.errors import UNAUTHENTICATED, ProblemError
from services.gateway.quotas import Quota

TICKET_LIFE_MS: Final = 60_000


class Ticket(NamedTuple):
    """A ticket and its end in wall ms."""

    ticket: str
    expires_at_ms: int


class Tickets:
    """The tickets that were given and not used yet.

    Concurrency: the event loop's thread only.
    """

    def __init__(self, keys: KeyRing, open_tickets: Quota, *, clock: Clock) -> None:
        self._keys = keys
        self._open = open_tickets
        self._clock = clock
        # By the order of their making, which is that of their end.
        self._given: dict[str, tuple[str, int]] = {}

    def give(self, principal: Principal) -> Ticket:
        """Return a new ticket.

        Raises:
            ProblemError: 403: the key has no right that a stream needs. 429: too many of the key are open. 503: too many
                are open in all.
        """
        principal.require_stream()
        now_ms = self._clock.monotonic_ms()
        self._forget_expired(now_ms)
        key_id = principal.key_id
        self._open.take(key_id)
        ticket = urlsafe_b64encode(secret_bytes(32)).rstrip(b"=").decode()
        self._given[ticket] = (key_id, now_ms + TICKET_LIFE_MS)
        return Ticket(ticket, self._clock.now_ms() + TICKET_LIFE_MS)

    def redeem(self, ticket: str) -> Principal:
        """Return whom a ticket stands for; it never works again.

        Raises:
            ProblemError: 401: it is wrong, used, too old, or its key was revoked.
        """
        key_id, expires_at_ms = self._take(ticket)
        principal = self._keys.principal_of(key_id)
        if principal is None or self._clock.monotonic_ms() >= expires_at_ms:
            raise ProblemError(UNAUTHENTICATED, "ticket: is wrong, was used already or is older than 60 s")
        return principal

    def _forget_expired(self, now_ms: int) -> None:
        while self._given:
            ticket, (_, expires_at_ms) = next(iter(self._given.items()))
            if expires_at_ms > now_ms:
                return
            self._take(ticket)

    def _take(self, ticket: str) -> tuple[str, int]:
        """Take a ticket out; return whose it is and when it ends, a key of nobody's for one that is not there."""
        key_id, expires_at_ms = self._given.pop(ticket, ("", 0))
        if key_id:
            self._open.give(key_id)
        return key_id, expires_at_ms
