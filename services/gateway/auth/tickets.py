"""Tickets: a browser opens a WebSocket with a ticket, so that its key is in no URL.

A ticket works once, within 60 s, on the gateway that issued it. It has no rights of its own: when used, it stands for
the key or the user's session that requested it, if that is still valid.
"""

from base64 import urlsafe_b64encode
from typing import Final, NamedTuple

from gantry.runtime.clock import Clock
from gantry.runtime.rng import secret_bytes
from services.gateway.auth.callers import Callers
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

    def __init__(self, callers: Callers, open_tickets: Quota, *, clock: Clock) -> None:
        self._callers = callers
        self._open = open_tickets
        self._clock = clock
        # In the order of issue, which is that of expiry.
        self._given: dict[str, tuple[Principal, int]] = {}

    def give(self, principal: Principal) -> Ticket:
        """Return a new ticket.

        Raises:
            ProblemError: 403: the key has no right that a stream needs. 429: too many tickets of the key are open. 503:
                too many are open in total.
        """
        principal.require_stream()
        now_ms = self._clock.monotonic_ms()
        self._forget_expired(now_ms)
        self._open.take(principal.key_id)
        ticket = urlsafe_b64encode(secret_bytes(32)).rstrip(b"=").decode()
        self._given[ticket] = (principal, now_ms + TICKET_LIFE_MS)
        return Ticket(ticket, self._clock.now_ms() + TICKET_LIFE_MS)

    def redeem(self, ticket: str) -> Principal:
        """Return the principal of a ticket, which never works again.

        Raises:
            ProblemError: 401: it is wrong, used, too old, or its key or session is no longer valid.
        """
        holder, expires_at_ms = self._take(ticket)
        principal = None if holder is None else self._callers.principal_of(holder.credential)
        if principal is None or self._clock.monotonic_ms() >= expires_at_ms:
            raise ProblemError(UNAUTHENTICATED, "ticket: is wrong, was used already or is older than 60 s")
        return principal

    def _forget_expired(self, now_ms: int) -> None:
        while self._given:
            ticket, (_, expires_at_ms) = next(iter(self._given.items()))
            if expires_at_ms > now_ms:
                return
            self._take(ticket)

    def _take(self, ticket: str) -> tuple[Principal | None, int]:
        """Remove a ticket; return its holder and expiry, or None if it does not exist."""
        if ticket not in self._given:
            return None, 0
        holder, expires_at_ms = self._given.pop(ticket)
        self._open.give(holder.key_id)
        return holder, expires_at_ms
