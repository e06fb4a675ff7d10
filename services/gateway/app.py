"""The gateway as a Starlette application."""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Lifespan

from gantry.runtime.clock import Clock
from services.gateway.asgi.cors import Cors
from services.gateway.asgi.gate import Gate
from services.gateway.asgi.operation import Operation, answer_unmatched
from services.gateway.auth.keyring import KeyRing
from services.gateway.bootstrap import Dependencies
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import RequestMiddleware
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
from services.gateway.ws.opening import UnknownStream


def make_application(
    routes: Sequence[BaseRoute],
    keys: KeyRing,
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
    cors = Cors(cors_origins) if cors_origins else None
    requests = Middleware(
        RequestMiddleware,
        gate=Gate(keys, limits, clock, cors, is_public_contract),
        bare=[operation for operation in operations if operation.is_bare],
        metrics=metrics,
        clock=clock,
        access_log=access_log,
        is_stopping=is_stopping,
    )
    app = Starlette(
        routes=routes,
        middleware=[requests],
        exception_handlers={HTTPException: answer_unmatched},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def create_app(dependencies: Dependencies) -> Starlette:
    """Return the application over the parts that bootstrap has built."""
    settings = dependencies.settings
    return make_application(
        [
            *all_routes(dependencies),
            WebSocketRoute(STREAM_PATH, dependencies.stream),
            WebSocketRoute("/{path:path}", UnknownStream(STREAM_PATH)),
        ],
        dependencies.keys,
        dependencies.metrics,
        clock=dependencies.clock,
        limits=dependencies.limits,
        access_log=settings.access_log,
        cors_origins=settings.cors_origins,
        is_public_contract=settings.public_contract,
        is_stopping=lambda: dependencies.health.is_stopping,
    )


def all_routes(dependencies: Dependencies) -> list[Operation]:
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
