"""Operation: a Starlette route for one operation of the contract, and the answers where there is none."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.gateway.asgi.answer import Answer
from services.gateway.asgi.call import CALL, Call
from services.gateway.asgi.paths import nothing_at
from services.gateway.asgi.query import parse_query
from services.gateway.auth.keyring import UnknownKeyError
from services.gateway.errors import METHOD_NOT_ALLOWED, ProblemError, not_implemented
from services.gateway.limits import UNSENT_BYTES_FREE

Endpoint = Callable[[Call], Awaitable[Answer]]

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_OIDC: Final = "/v1/oidc"
"""Paths of single sign-on. They are not in the contract, because it comes later."""
_CONVERTOR: Final = re.compile(r":\w+\}")


class Operation(Route):
    """A route whose endpoint takes a `Call` and returns an `Answer`.

    Attributes:
        method: HTTP method.
        path: Template of the path as the contract has it, `/v1/topics/{topic}`. The constructor also takes parameters with
            a convertor of paths.py, `{job:id}`.
        query: Names of the query parameters; any other is rejected.
        is_public: Whether the operation needs no key.
        is_send: Whether its problems carry an outcome.
        is_probe: Whether it tells the state of the gateway, and so needs no place among the requests in progress.
        is_empty: Whether it takes no body; DELETE never does. A body with fields is rejected.
        is_bare: Whether the middleware calls it without Starlette's router (middleware.py says when).
    """

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        query: frozenset[str] = frozenset(),
        *,
        is_public: bool = False,
        is_send: bool = False,
        is_probe: bool = False,
        is_empty: bool = False,
        is_bare: bool = False,
    ) -> None:
        super().__init__(_PARAMETER.sub(r"{\1:segment}", path), endpoint, methods=[method])
        self.path = _CONVERTOR.sub("}", path)
        self.method = method
        self.query = query
        self.is_public = is_public
        self.is_send = is_send
        self.is_probe = is_probe
        self.is_empty = is_empty or method == "DELETE"
        self.is_bare = is_bare
        self.app = self._respond

    async def answer(self, call: Call) -> Answer:
        """Check a request, run the endpoint, and return its answer.

        Raises:
            ProblemError: The request is refused.
            Exception: Errors that the middleware turns into problems.
        """
        try:
            if b"cookie" in call.header_values and not self.is_public:
                await call.gate.load_session(call)
            try:
                call.gate.admit(call, self)
            except UnknownKeyError as unknown:
                await call.gate.callers.look_up(unknown)
                call.gate.admit(call, self)
            query_string = call.scope["query_string"]
            if query_string:
                call.query = parse_query(query_string, self.query)
            call.path_label = self.path
            call.check_headers()
            if self.is_empty:
                await call.require_empty()
            answer: Answer = await self.endpoint(call)
            if self.method == "GET":
                # The read may have waited for half a minute. An answer to a change is given in any case.
                call.principal.require_unrevoked()
            if answer.size > UNSENT_BYTES_FREE or answer.remaining or call.unsent is not None:
                call.count_answer(answer.size)
            return answer
        finally:
            call.release()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.answer(scope[CALL])
        await answer(scope, receive, send)


async def answer_unmatched(request: Request, error: Exception) -> Response:
    """Answer a request that no route takes: OPTIONS, a wrong method (405) or an unknown path (404).

    Raises:
        ProblemError: 400, 401, 404, 405, 429, 501.
    """
    assert isinstance(error, HTTPException), error
    call: Call = request.scope[CALL]
    if request.scope["path"] == _OIDC or request.scope["path"].startswith(f"{_OIDC}/"):
        raise not_implemented("path", "single sign-on with OIDC is not supported yet; log in with POST /v1/session")
    try:
        call.gate.admit_unmatched(call)
    except UnknownKeyError as unknown:
        await call.gate.callers.look_up(unknown)
        call.gate.admit_unmatched(call)
    if error.status_code != METHOD_NOT_ALLOWED.status:
        raise nothing_at(request.scope["raw_path"])
    allowed = _allowed_methods(request)
    if request.method == "OPTIONS":
        call.check_headers()
        return Answer(204, b"", call.gate.options_headers(call, allowed))
    detail = f"method: {request.method} is not one of {allowed}"
    raise ProblemError(METHOD_NOT_ALLOWED, detail, field="method", headers={"Allow": allowed})


def _allowed_methods(request: Request) -> str:
    """Return the value of Allow: Starlette's own names the methods of one route only."""
    found: Any = request.scope["route"]
    same = [route for route in request.app.routes if isinstance(route, Route) and route.path == found.path]
    return ", ".join(sorted({"OPTIONS"}.union(*(route.methods or () for route in same))))
