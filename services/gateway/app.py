"""The ASGI application: HTTP to the front, WebSockets to the stream, nothing else.

HTTP goes straight to `HttpApp`, a bare ASGI function with a router of its own (asgi/router.py says why).
"""

from starlette.types import ASGIApp

from services.gateway.asgi.call import Receive, Scope, Send
from services.gateway.asgi.router import Route, Router
from services.gateway.bootstrap import Dependencies
from services.gateway.errors import NOT_FOUND, ProblemError
from services.gateway.middleware import HttpApp
from services.gateway.requestids import RequestIds
from services.gateway.routes.alerts import alert_routes, webhook_routes
from services.gateway.routes.cluster import cluster_routes
from services.gateway.routes.groups import group_routes
from services.gateway.routes.keys import audit_routes, key_routes, ticket_routes
from services.gateway.routes.later import later_routes
from services.gateway.routes.limits import limit_routes
from services.gateway.routes.objectives import objective_routes
from services.gateway.routes.read import read_routes
from services.gateway.routes.reports import report_routes
from services.gateway.routes.send import send_routes
from services.gateway.routes.service import STREAM_PATH, service_routes
from services.gateway.routes.topics import topic_routes
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.opening import refuse


class Gateway:
    """The application."""

    def __init__(self, front: HttpApp, stream: ASGIApp) -> None:
        self._front = front
        self._stream = stream
        self._request_ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a WebSocket."""
        if scope["type"] == "http":
            await self._front(scope, receive, send)
        elif scope["type"] == "websocket" and scope["path"] == STREAM_PATH:
            await self._stream(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send, self._request_ids.of(scope["headers"]))


def create_app(dependencies: Dependencies) -> Gateway:
    """Return the application over what bootstrap has built."""
    settings = dependencies.settings
    front = HttpApp(
        Router(all_routes(dependencies)),
        dependencies.keys,
        dependencies.metrics,
        clock=dependencies.clock,
        limits=dependencies.limits,
        access_log=settings.access_log,
        cors_origins=settings.cors_origins,
        is_public_contract=settings.public_contract,
        is_stopping=lambda: dependencies.health.is_stopping,
    )
    return Gateway(front, dependencies.stream_app)


def all_routes(dependencies: Dependencies) -> list[Route]:
    """Return every route of the contract."""
    settings = dependencies.settings
    return [
        *send_routes(dependencies.sending),
        *read_routes(dependencies.reader, dependencies.lookup, wait_ms_max=settings.wait_ms_max),
        *topic_routes(dependencies.topics),
        *group_routes(dependencies.groups, dependencies.offsets, dependencies.consumers),
        *objective_routes(dependencies.objectives),
        *cluster_routes(dependencies.cluster),
        *report_routes(dependencies.reports, dependencies.report_rows, dependencies.lag_history),
        *alert_routes(dependencies.alerts),
        *webhook_routes(dependencies.webhooks),
        *key_routes(dependencies.key_admin),
        *ticket_routes(dependencies.tickets),
        *audit_routes(dependencies.audit),
        *limit_routes(dependencies.limits, settings, stream=StreamLimits().as_frame(), clock=dependencies.clock),
        *service_routes(
            dependencies.health,
            dependencies.metrics,
            dependencies.contract,
            is_public_contract=dependencies.settings.public_contract,
        ),
        *later_routes(),
    ]


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
    await receive()
    problem = ProblemError(NOT_FOUND, f"path: only {STREAM_PATH} is a WebSocket", field="path")
    await refuse(scope, send, problem, request_id)
