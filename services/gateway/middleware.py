"""The middleware around Starlette's router: what happens to every request.

`RequestMiddleware` is the outermost. For each HTTP request, in this order, it

1. gives the request an id, or keeps the caller's;
2. has it answered: by Starlette's router, or for a bare operation directly;
3. turns every error into a problem;
4. adds the headers of every answer to the answer's head, and counts the request.

`StrictPathMiddleware` stands between it and the router, and decodes the path (asgi/paths.py). The route itself asks the
gate who calls and whether there is room (asgi/operation.py, asgi/gate.py).

A bare operation is an ordinary route of Starlette's table, and the router would find it. But `RequestMiddleware` finds
it by a cache of paths and runs it without the rest of Starlette, which would cost a single send more than 10 %
(docs/adr/0025-starlette.md has the figures). The cache reads paths with the function that `StrictPathMiddleware` uses.
"""

from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import BODY_PARTS, Answer, Headers, problem_answer
from services.gateway.asgi.call import CALL, Call, ClientGoneError
from services.gateway.asgi.gate import Gate
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.paths import routing_path
from services.gateway.errors import INTERNAL, STOPPING, ProblemError, invalid, problem_of
from services.gateway.metrics import GatewayMetrics
from services.gateway.rates import RateLine
from services.gateway.requestids import RequestIds, read_given_id

log = logger("gateway.requests")

# Hot paths are few: one for each topic in use. Past this many the cache starts anew.
_CONSOLE: Final = b"/console/"
PATHS_CACHED_MAX: Final = 8_192
_PATH_CACHED_BYTES_MAX: Final = 512
_CLIENT_GONE: Final = 499


class RequestMiddleware:
    """Identifies, answers and counts requests.

    Concurrency: the event loop's thread; one task for each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        gate: Gate,
        bare: Sequence[Operation],
        metrics: GatewayMetrics,
        clock: Clock,
        access_log: bool,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._gate = gate
        self._bare = BarePaths(bare)
        self._metrics = metrics
        self._clock = clock
        self._access_log = access_log
        self._is_stopping = is_stopping
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; WebSockets go on to the router."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call(scope, receive, self._gate)
        try:
            await self._serve(call, scope, receive, send)
        finally:
            scope.pop(CALL, None)
            if call.unsent is not None:
                call.unsent.release()

    async def _serve(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        started_ms = self._clock.monotonic_ms()
        method, path = scope["method"], scope["path"]
        answer: Answer | None = None
        try:
            self._take_id(call)
            operation = self._bare.find(scope)
            if operation is not None:
                answer = await operation.answer(call)
            else:
                scope[CALL] = call
                await self._app(scope, receive, partial(self._send, call, started_ms, send))
        except CancelledError:
            # The server gives up on requests that are still in progress when it stops.
            if call.status or not self._is_stopping():
                raise
            problem = ProblemError(STOPPING, "the gateway is stopping", outcome=call.outcome)
            answer = problem_answer(problem, call.request_id)
        except ClientGoneError:
            self._metrics.observe(method, call.path_label, _CLIENT_GONE, self._clock.monotonic_ms() - started_ms)
            return
        except Exception as error:  # boundary: of a request; every error becomes a problem.
            if call.status:
                raise
            answer = self._problem(error, call)
        if answer is not None:
            self._begin(call, started_ms, answer.status_code)
            call.sent_bytes = answer.size
            answer.raw_headers += self._headers(call)
            await answer(scope, receive, send)
        self._metrics.observe(method, call.path_label, call.status, call.duration_ms)
        if self._access_log:
            self._log_access(call, path)

    async def _send(self, call: Call, started_ms: int, send: Send, message: Message) -> None:
        """Pass on a message of a response that Starlette sends, with the headers of every answer."""
        if message["type"] == "http.response.start":
            self._begin(call, started_ms, message["status"])
            message["headers"] = [*message["headers"], *self._headers(call)]
        else:
            call.sent_bytes += len(message.get("body", b"")) + sum(map(len, message.get(BODY_PARTS, ())))
        await send(message)

    def _begin(self, call: Call, started_ms: int, status: int) -> None:
        call.status = status
        call.duration_ms = self._clock.monotonic_ms() - started_ms

    def _take_id(self, call: Call) -> None:
        given = call.header_values.get(b"x-request-id")
        if given is None:
            call.request_id = self._ids.next()
            return
        kept = read_given_id(given)
        call.request_id = kept or self._ids.next()
        if kept is None:
            call.bad_id = invalid("X-Request-Id", given, "is not 1 to 128 visible ASCII characters")

    def _problem(self, error: Exception, call: Call) -> Answer:
        problem = problem_of(error, outcome=call.outcome)
        if problem.kind is INTERNAL:
            self._metrics.faults += 1
            log.error("fault", request_id=call.request_id, method=call.method, path=call.path_label, exc_info=error)
        return problem_answer(problem, call.request_id)

    def _headers(self, call: Call) -> Headers:
        """Return the headers of every answer."""
        headers: Headers = [(b"x-request-id", call.request_id.encode())]
        rates = call.rates
        if call.principal.limits is not None:
            rates = [*rates, *self._gate.limits.key_rates.lines(call.principal)]
        if rates:
            headers += rate_lines(rates)
        if self._gate.cors is not None:
            headers += self._gate.cors.headers(call.header_values)
        return headers

    def _log_access(self, call: Call, path: str) -> None:
        log.info(
            "request",
            request_id=call.request_id,
            key=call.principal.key_id,
            method=call.method,
            path=path,
            status=call.status,
            ms=call.duration_ms,
            bytes=call.sent_bytes,
        )


class StrictPathMiddleware:
    """Gives the router a path that is decoded strictly, and rejects paths that can't be.

    Concurrency: the event loop's thread.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a WebSocket.

        Raises:
            ProblemError: The path of a request is malformed (400), or the gate rejects the request first (401, 429).
        """
        if scope["type"] != "lifespan":
            scope["path"] = self._path(scope)
        await self._app(scope, receive, send)

    def _path(self, scope: Scope) -> str:
        raw_path: bytes = scope["raw_path"]
        try:
            return routing_path(raw_path)
        except ProblemError:
            if scope["type"] == "websocket":
                # It matches no stream as it is, and the last route rejects the handshake.
                return raw_path.decode("latin-1")
            if raw_path.startswith(_CONSOLE) and scope["method"] == "GET":
                # An address of the console, which shows to people that there is no such page.
                return _CONSOLE.decode() + "-"
            call: Call = scope[CALL]
            call.gate.admit_unmatched(call)
            raise


class BarePaths:
    """A cache from raw paths to bare operations.

    Concurrency: the event loop's thread.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = tuple(operations)
        assert len({operation.path for operation in operations}) == len(operations), "one bare operation for a path"
        self._found: dict[bytes, tuple[Operation, dict[str, str]]] = {}

    def find(self, scope: Scope) -> Operation | None:
        """Return the bare operation of a request, with its path parameters in the scope; None if there is none."""
        found = self._found.get(scope["raw_path"]) or self._match(scope)
        if found is None or found[0].method != scope["method"]:
            return None
        scope["path_params"] = found[1]
        return found[0]

    def _match(self, scope: Scope) -> tuple[Operation, dict[str, str]] | None:
        raw_path = scope["raw_path"]
        candidates = [operation for operation in self._operations if operation.method == scope["method"]]
        if not candidates:
            return None
        try:
            decoded = {**scope, "path": routing_path(raw_path)}
        except ProblemError:
            return None
        for operation in candidates:
            match, child_scope = operation.matches(decoded)
            if match is Match.FULL:
                found = operation, child_scope["path_params"]
                if len(raw_path) <= _PATH_CACHED_BYTES_MAX:
                    if len(self._found) >= PATHS_CACHED_MAX:
                        self._found.clear()
                    self._found[raw_path] = found
                return found
        return None


def rate_lines(rates: Iterable[RateLine]) -> Headers:
    """Return the headers that tell a caller its limits (draft-ietf-httpapi-ratelimit-headers-10)."""
    policies, left = [], []
    for rate in rates:
        policy, state = f'"{rate.name}";q={rate.quota}', f'"{rate.name}";r={rate.left}'
        if rate.unit is not None:
            policy += f';qu="{rate.unit}"'
        if rate.full_in_ms is not None:
            policy += ";w=1"
            state += f";t={-(-rate.full_in_ms // 1_000)}"
        policies.append(policy)
        left.append(state)
    return [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(left).encode())]
