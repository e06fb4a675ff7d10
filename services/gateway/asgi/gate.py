"""Gate: who calls, and whether there is room for the request.

Every HTTP request passes the gate before it learns anything, also one that has no route: without a valid key nobody
learns which paths exist, unless the contract is public.

A caller is the holder of an API key (`Authorization: Bearer KEY`), or a user whose browser sends the cookie of a session.
If a request has both, the key counts. A page of another site can make a browser send the cookie, so a change with a
cookie also needs the session's CSRF token, which only our own pages can read.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from gantry.runtime.clock import Clock
from services.gateway.asgi.answer import Headers
from services.gateway.asgi.call import Call
from services.gateway.asgi.cors import Cors
from services.gateway.auth.callers import Callers
from services.gateway.auth.principal import Principal, unauthenticated
from services.gateway.auth.sessionring import find_cookie, is_csrf_token
from services.gateway.errors import CSRF_TOKEN, NOT_STORED, ProblemError
from services.gateway.limits import Limits, RequestSlot
from services.gateway.quotas import ADDRESS, KEY

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class RouteRules(Protocol):
    """The part of a route that the gate looks at; see `Operation`."""

    is_public: bool
    is_send: bool
    is_probe: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks requests before their endpoint runs.

    Attributes:
        callers: API keys and sessions.
        limits: Quotas and rates.
        clock: Time for rates.
        cors: Origins whose pages may call; None if there are none.
        is_public_contract: Whether OPTIONS and the contract need no key.

    Concurrency: the event loop's thread.
    """

    callers: Callers
    limits: Limits
    clock: Clock
    cors: Cors | None = None
    is_public_contract: bool = False

    def admit(self, call: Call, rules: RouteRules) -> None:
        """Count a request that has a route, authenticate it, and give it a place among those in progress.

        Raises:
            ProblemError: 401: no valid key or session. 403: no valid CSRF token. 429, 503: too many requests.
        """
        if rules.is_send:
            call.outcome = NOT_STORED
        rates = self.limits.rates
        if rates and not rules.is_probe and ADDRESS in rates:
            self._count(call, ADDRESS, call.address)
        if rules.is_public:
            return
        call.principal = self._authenticate(call)
        if rules.is_probe:
            return
        if rates and KEY in rates:
            self._count(call, KEY, call.principal.key_id)
        if call.principal.limits is not None:
            self.limits.key_rates.require_slot(call.principal)
        call.slot = RequestSlot(self.limits, call.principal.key_id)

    async def load_session(self, call: Call) -> None:
        """Read the session of a request's cookie, if this gateway has not seen it yet.

        Raises:
            ProblemError: 503: Postgres is unavailable, or too many callers wait.
        """
        headers = call.header_values
        if b"authorization" in headers:
            return
        cookie = call.session_cookie = find_cookie(headers[b"cookie"])
        if cookie is not None:
            await self.callers.load_session(cookie)

    def admit_unmatched(self, call: Call) -> None:
        """Count and authenticate a request that has no route, before it is told so.

        Raises:
            ProblemError: 401: no valid key. 429: too many requests.
        """
        if call.method == "POST":
            call.outcome = NOT_STORED  # It may have been meant as a send.
        rates = self.limits.rates
        if ADDRESS in rates:
            self._count(call, ADDRESS, call.address)
        is_open = call.method == "OPTIONS" and (self.is_public_contract or self._is_preflight(call))
        if not is_open:
            call.principal = self._authenticate(call)
            if KEY in rates:
                self._count(call, KEY, call.principal.key_id)

    def options_headers(self, call: Call, allowed: str) -> Headers:
        """Return the headers of an answer to OPTIONS, which may be a browser's preflight."""
        headers: Headers = [(b"allow", allowed.encode())]
        if self.cors is not None and self._is_preflight(call):
            headers += self.cors.preflight_headers(allowed, call.header_values)
        return headers

    def _is_preflight(self, call: Call) -> bool:
        return self.cors is not None and self.cors.is_preflight(call.method, call.header_values)

    def _authenticate(self, call: Call) -> Principal:
        cookie = call.session_cookie
        if cookie is None:
            return self.callers.keys.authenticate(call.header_values.get(b"authorization"))
        principal = self.callers.sessions.find(cookie)
        if principal is None:
            raise unauthenticated("session: has ended, or never existed; log in again (POST /v1/session)")
        if call.method not in _SAFE_METHODS:
            given = call.header_values.get(b"x-csrf-token")
            if given is None or not is_csrf_token(cookie, given.decode("latin-1")):
                state = "is missing" if given is None else "is wrong"
                detail = f"X-CSRF-Token: {state}; a change with a session needs the `csrf` of GET /v1/session"
                raise ProblemError(CSRF_TOKEN, detail, field="X-CSRF-Token")
        return principal

    def _count(self, call: Call, scope: str, holder: str) -> None:
        """Count a request of a key or an address; raise ProblemError (429) if it makes too many a second."""
        rate = self.limits.rates[scope]
        now_ms = self.clock.monotonic_ms()
        try:
            allowance = rate.take(holder, now_ms)
        except ProblemError:
            call.rates = [rate.line(rate.allowance(holder, now_ms))]
            raise
        call.rates = [*call.rates, rate.line(allowance)]
