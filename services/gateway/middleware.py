"""What happens to every request, hot or not: id, limits, identity, route, answer, count.

`HttpApp` is a bare ASGI function. It does for each request, in this order:

1. gives it an id, or keeps the caller's;
2. finds the route (404, 405, malformed escapes);
3. finds out who calls, unless the route is public: where the contract is not, nobody learns which paths exist without a
   valid key (except who asks by OPTIONS for a page that CORS lets in);
4. counts it (rates) and gives it a place among the requests under way, or refuses it (429, 503); probes are exempt;
   reads the query strictly;
5. runs the endpoint and writes its answer;
6. turns whatever was raised into a problem, and counts.
"""

from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import REST, Answer, Headers, problem_answer
from services.gateway.asgi.call import Call, ClientGoneError, Receive, Scope, Send
from services.gateway.asgi.cors import Cors
from services.gateway.asgi.query import parse_query
from services.gateway.asgi.router import Found, Route, Router
from services.gateway.auth.keyring import KeyRing
from services.gateway.errors import INTERNAL, NOT_STORED, STOPPING, ProblemError, invalid, problem_of
from services.gateway.limits import UNSENT_BYTES_FREE, Limits, Slot
from services.gateway.metrics import GatewayMetrics
from services.gateway.quotas import ADDRESS, KEY
from services.gateway.rates import Allowance, Rate
from services.gateway.requestids import RequestIds, read_given_id

log = logger("gateway.front")

UNMATCHED: Final = "unmatched"
_READS: Final = ("GET", "HEAD")
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304


class HttpApp:
    """The ASGI application for HTTP.

    Concurrency: the event loop's thread; a task a request.
    """

    def __init__(
        self,
        router: Router,
        keys: KeyRing,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        limits: Limits,
        access_log: bool,
        cors_origins: Sequence[str] = (),
        is_public_contract: bool = False,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._router = router
        self._keys = keys
        self._metrics = metrics
        self._clock = clock
        self._limits = limits
        self._access_log = access_log
        self._cors = Cors(cors_origins) if cors_origins else None
        self._is_public_contract = is_public_contract
        self._is_stopping = is_stopping
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started_ms = self._clock.monotonic_ms()
        headers = dict(scope["headers"])
        call = Call(scope, receive, headers, self._limits.bodies)
        try:
            await self._answer(call, scope, send, headers, started_ms)
        finally:
            if call.unsent is not None:
                call.unsent.release()

    async def _answer(
        self, call: Call, scope: Scope, send: Send, headers: Mapping[bytes, bytes], started_ms: int
    ) -> None:
        method: str = scope["method"]
        path = UNMATCHED
        try:
            bad_id = self._take_id(call, headers)
            route = self._admit(call, scope, headers)
            path = route.path
            if bad_id is not None or len(headers) != len(scope["headers"]):
                call.refuse_headers(bad_id)
            answer: Answer = await route.endpoint(call)
            if method in _READS:
                # It may have waited for half a minute. A change that was made must be told; messages that were found need not be.
                call.principal.require_unrevoked()
            if len(answer.body) > UNSENT_BYTES_FREE or answer.rest or call.unsent is not None:
                self._count_unsent(call, method, answer.size)
        except CancelledError:
            # The server gives up on requests that are still under way when it stops.
            if not self._is_stopping():
                raise
            problem = ProblemError(STOPPING, "the gateway is stopping", outcome=call.outcome)
            answer = problem_answer(problem, call.request_id)
        except ClientGoneError:
            self._metrics.observe(method, path, 499, self._clock.monotonic_ms() - started_ms)
            return
        except Exception as error:  # noqa: BLE001 # boundary: of a request; whatever it is becomes a problem.
            answer = self._answer_error(error, call, method, path)
        finally:
            call.close()
        if call.rates:
            answer.headers += rate_lines(call.rates)
        if self._cors is not None:
            self._cors.admit(answer, headers)
        size = answer.size if answer.rest else len(answer.body)
        duration_ms = self._clock.monotonic_ms() - started_ms
        await write_answer(send, answer, size, call.request_id)
        self._metrics.observe(method, path, answer.status, duration_ms)
        if self._access_log:
            self._log_access(call, method, answer.status, size, duration_ms)

    def _take_id(self, call: Call, headers: Mapping[bytes, bytes]) -> ProblemError | None:
        given = headers.get(b"x-request-id")
        kept = None if given is None else read_given_id(given)
        if kept is not None:
            call.request_id = kept
            return None
        call.request_id = self._ids.next()
        return None if given is None else invalid("X-Request-Id", given, "is not 1 to 128 visible ASCII characters")

    def _count(self, call: Call, scope: str, holder: str) -> None:
        """Count a request of a key or an address; raise ProblemError (429) where it makes too many a second."""
        rate = self._limits.rates[scope]
        now_ms = self._clock.monotonic_ms()
        try:
            allowance = rate.take(holder, now_ms)
        except ProblemError:
            call.rates = [(rate, rate.allowance(holder, now_ms))]
            raise
        call.rates = [*call.rates, (rate, allowance)]

    def _admit(self, call: Call, scope: Scope, headers: Mapping[bytes, bytes]) -> Route:
        method = scope["method"]
        found: Found | None = None
        problem: ProblemError | None = None
        try:
            found = self._router.find(scope["raw_path"])
            route = found.route_for(method)
            if route.is_send:
                call.outcome = NOT_STORED
        except ProblemError as error:
            problem = error
            if method == "POST":
                call.outcome = NOT_STORED  # It may have been meant as a send.
        has_rates = bool(self._limits.rates) and (problem is not None or not route.is_probe)
        if has_rates and ADDRESS in self._limits.rates:
            self._count(call, ADDRESS, call.address)
        is_preflight = self._cors is not None and self._cors.is_preflight(method, headers)
        is_open = is_preflight or (self._is_public_contract and method == "OPTIONS")
        if (problem is not None or not route.is_public) and not is_open:
            call.principal = self._keys.authenticate(headers.get(b"authorization"))
            if has_rates and KEY in self._limits.rates:
                self._count(call, KEY, call.principal.key_id)
            if problem is None and not route.is_probe:
                call.slot = Slot(self._limits, call.principal.key_id)
        if found is not None and method == "OPTIONS":
            more = (
                self._cors.preflight_headers(found.allowed, headers) if self._cors is not None and is_preflight else []
            )
            return Route(method, UNMATCHED, _options_endpoint(found, more))
        if problem is not None or found is None:
            raise problem or AssertionError("no route and no problem")
        call.parameters = found.parameters
        query_string = scope["query_string"]
        if query_string:
            call.query = parse_query(query_string, route.query)
        return route

    def _answer_error(self, error: Exception, call: Call, method: str, path: str) -> Answer:
        problem = problem_of(error, outcome=call.outcome)
        if problem.kind is INTERNAL:
            self._metrics.faults += 1
            log.error("fault", request_id=call.request_id, method=method, path=path, exc_info=error)
        return problem_answer(problem, call.request_id)

    def _count_unsent(self, call: Call, method: str, size: int) -> None:
        """Count an answer until it is taken. Raises ProblemError (429, 503) where it may be refused."""
        if call.unsent is None:
            call.unsent = self._limits.unsent_of(call.key_id if call.slot is not None else None, call.address)
        if method == "GET":
            call.unsent.take(size)
        else:
            # What it tells has been done.
            call.unsent.take_back(size)

    def _log_access(self, call: Call, method: str, status: int, size: int, duration_ms: int) -> None:
        log.info(
            "request",
            request_id=call.request_id,
            key=call.principal.key_id,
            method=method,
            path=call.scope["path"],
            status=status,
            ms=duration_ms,
            bytes=size,
        )


async def write_answer(send: Send, answer: Answer, size: int, request_id: str) -> None:
    """Write an answer, with its length and the request's id."""
    headers = answer.headers
    headers.append((b"x-request-id", request_id.encode()))
    # The server alone holds the body from here on: while the caller takes it, a second copy would stay.
    message: dict[str, Any] = {"type": "http.response.body", "body": answer.body}
    if answer.rest:
        message[REST] = answer.rest
        answer.rest = ()
    answer.body = b""
    if size or answer.status not in (_NO_CONTENT, _NOT_MODIFIED):
        headers.append((b"content-length", b"%d" % size))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send(message)


def rate_lines(rates: Iterable[tuple[Rate, Allowance]]) -> Headers:
    """Return the headers that tell a caller its rates (draft-ietf-httpapi-ratelimit-headers-10)."""
    policies, left = [], []
    for rate, allowance in rates:
        policies.append(b'"%b";q=%d;w=1' % (rate.scope.encode(), rate.per_s))
        reset_s = -(-allowance.full_in_ms // 1_000)
        left.append(b'"%b";r=%d;t=%d' % (rate.scope.encode(), allowance.left, reset_s))
    return [(b"ratelimit-policy", b", ".join(policies)), (b"ratelimit", b", ".join(left))]


def _options_endpoint(found: Found, more: Headers) -> Callable[[Call], Any]:
    async def options(call: Call) -> Answer:
        return Answer(_NO_CONTENT, b"", [(b"allow", found.allowed.encode()), *more])

    return options
