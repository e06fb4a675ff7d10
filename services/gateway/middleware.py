"""What happens to every request, hot or not: id, limits, identity, route, answer, count.

`Front` is a bare ASGI function. It does for each request, in this order:

1. gives it an id, or keeps the caller's;
2. refuses it when too many are under way;
3. finds out who calls, unless the route is public: without a valid key nobody learns which paths exist;
4. finds the route (404, 405, malformed escapes) and reads the query strictly;
5. runs the endpoint and writes its answer;
6. turns whatever was raised into a problem, and counts.
"""

import re
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from typing import Any, Final

from gantry.runtime.clock import Clock
from gantry.runtime.rng import secret_bytes
from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import Answer, problem_answer
from services.gateway.asgi.call import ByteBudget, Call, ClientGoneError, Receive, Scope, Send
from services.gateway.asgi.query import parse_query
from services.gateway.asgi.router import Found, Route, Router
from services.gateway.auth.keyring import KeyRing
from services.gateway.errors import INTERNAL, NOT_STORED, OVERLOADED, STOPPING, ProblemError, invalid, problem_of
from services.gateway.metrics import GatewayMetrics

log = logger("gateway.front")

UNMATCHED: Final = "unmatched"
_GIVEN_ID = re.compile(rb"[!-~]{1,128}")
_NO_CONTENT: Final = 204


class RequestIds:
    """Makes ids of requests: what is the same for a process, and a number."""

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        self._prefix = secret_bytes(6).hex()
        self._count = 0

    def next(self) -> str:
        """Return an id that no other request has."""
        self._count += 1
        return f"{self._prefix}-{self._count:x}"


class Front:
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
        in_flight_max: int,
        body_bytes_total_max: int,
        access_log: bool,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._router = router
        self._keys = keys
        self._metrics = metrics
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._budget = ByteBudget(body_bytes_total_max)
        self._access_log = access_log
        self._is_stopping = is_stopping
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started_ms = self._clock.monotonic_ms()
        headers = dict(scope["headers"])
        call = Call(scope, receive, headers, self._budget)
        method: str = scope["method"]
        path = UNMATCHED
        self._metrics.in_flight += 1
        try:
            bad_id = self._take_id(call, headers)
            route = self._admit(call, scope, headers)
            path = route.path
            if bad_id is not None or len(headers) != len(scope["headers"]):
                call.refuse_headers(bad_id)
            answer: Answer = await route.endpoint(call)
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
            self._metrics.in_flight -= 1
            call.close()
        await write_answer(send, answer, call.request_id)
        duration_ms = self._clock.monotonic_ms() - started_ms
        self._metrics.observe(method, path, answer.status, duration_ms)
        if self._access_log:
            self._log_access(call, method, answer, duration_ms)

    def _take_id(self, call: Call, headers: Mapping[bytes, bytes]) -> ProblemError | None:
        given = headers.get(b"x-request-id")
        if given is not None and _GIVEN_ID.fullmatch(given):
            call.request_id = given.decode("ascii")
            return None
        call.request_id = self._ids.next()
        return None if given is None else invalid("X-Request-Id", given, "is not 1 to 128 visible ASCII characters")

    def _admit(self, call: Call, scope: Scope, headers: Mapping[bytes, bytes]) -> Route:
        if self._metrics.in_flight > self._in_flight_max:
            raise ProblemError(OVERLOADED, f"requests: {self._in_flight_max} are under way already")
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
        if problem is not None or not route.is_public:
            call.principal = self._keys.authenticate(headers.get(b"authorization"))
        if found is not None and method == "OPTIONS":
            return Route(method, UNMATCHED, _options_endpoint(found))
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

    def _log_access(self, call: Call, method: str, answer: Answer, duration_ms: int) -> None:
        log.info(
            "request",
            request_id=call.request_id,
            key=call.principal.key_id,
            method=method,
            path=call.scope["path"],
            status=answer.status,
            ms=duration_ms,
            bytes=len(answer.body),
        )


async def write_answer(send: Send, answer: Answer, request_id: str) -> None:
    """Write an answer, with its length and the request's id."""
    headers = answer.headers
    headers.append((b"x-request-id", request_id.encode()))
    body = answer.body
    if body or answer.status != _NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _options_endpoint(found: Found) -> Callable[[Call], Any]:
    async def options(call: Call) -> Answer:
        return Answer(_NO_CONTENT, b"", [(b"allow", found.allowed.encode())])

    return options
