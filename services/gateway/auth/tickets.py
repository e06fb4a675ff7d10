"""Tickets: a browser opens a WebSocket with a ticket, so that its key is in no URL.

A ticket works once, within 60 s, on the gateway that issued it. It has no rights of its own: when used, it stands for
the key that requested it, if that key is still valid.
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
    """A ticket, and its expiry in wall ms."""

    ticket: str
    expires_at_ms: int


class Tickets:
    """The tickets that were issued and not used yet.

    Concurrency: the event loop's thread only.
    """

    def __init__(self, keys: KeyRing, open_tickets: Quota, *, clock: Clock) -> None:
        self._keys = keys
        self._open = open_tickets
        self._clock = clock
        # In the order of issue, which is that of expiry.
        self._given: dict[str, tuple[str, int]] = {}

    def give(self, principal: Principal) -> Ticket:
        """Return a new ticket.

        Raises:
            ProblemError: 403: the key has no right that a stream needs. 429: too many tickets of the key are open. 503:
                too many are open in total.
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
        """Return the principal of a ticket, which never works again.

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
        """Remove a ticket; return its key id and expiry, or an empty key id if it does not exist."""
        key_id, expires_at_ms = self._given.pop(ticket, ("", 0))
        if key_id:
            self._open.give(key_id)
        return key_id, expires_at_ms
