"""The gateway as a Starlette application."""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp, Lifespan

from gantry.runtime.clock import Clock
from services.gateway.asgi.cors import Cors
from services.gateway.asgi.gate import Gate
from services.gateway.asgi.operation import Operation, answer_unmatched
from services.gateway.auth.callers import Callers
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import RequestMiddleware, StrictPathMiddleware
from services.gateway.ws.opening import UnknownStream


class GatewayApplication(Starlette):
    """A Starlette application in which `RequestMiddleware` is the outermost middleware."""

    def build_middleware_stack(self) -> ASGIApp:
        """Leave out Starlette's own answer to errors.

        `RequestMiddleware` turns every error into a problem, so the layer would only pass requests on. Each of them would
        pay for it.
        """
        outermost = super().build_middleware_stack()
        assert isinstance(outermost, ServerErrorMiddleware), outermost
        return outermost.app


def make_application(
    routes: Sequence[BaseRoute],
    callers: Callers,
    metrics: GatewayMetrics,
    *,
    clock: Clock,
    limits: Limits,
    access_log: bool,
    cors_origins: Sequence[str] = (),
    is_public_contract: bool = False,
    is_stopping: Callable[[], bool],
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """Return an application over routes of the gateway."""
    operations = [route for route in routes if isinstance(route, Operation)]
    assert len({(each.method, each.path) for each in operations}) == len(operations), "an operation is there twice"
    streams = [route.path for route in routes if isinstance(route, WebSocketRoute)]
    cors = Cors(cors_origins) if cors_origins else None
    requests = Middleware(
        RequestMiddleware,
        gate=Gate(callers, limits, clock, cors, is_public_contract),
        bare=[operation for operation in operations if operation.is_bare],
        metrics=metrics,
        clock=clock,
        access_log=access_log,
        is_stopping=is_stopping,
    )
    app = GatewayApplication(
        routes=[*routes, WebSocketRoute("/{path:path}", UnknownStream(streams))],
        middleware=[requests, Middleware(StrictPathMiddleware)],
        exception_handlers={HTTPException: answer_unmatched},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app
