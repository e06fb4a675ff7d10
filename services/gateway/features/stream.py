"""`/v1/stream`: the WebSocket.

The endpoint is an ASGI application behind a Starlette route, and not a function of Starlette's `WebSocket`, which rejects
events that ASGI does not have (docs/adr/0025-starlette.md).
"""

from typing import Final

from starlette.routing import WebSocketRoute

from services.gateway.asgi.answer import Answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.errors import WEBSOCKET_ONLY, ProblemError
from services.gateway.ws.consumers import GroupConsumers
from services.gateway.ws.endpoint import StreamEndpoint
from services.gateway.ws.producers import StreamProducers
from services.gateway.ws.tailsource import TopicTails

STREAM_PATH: Final = "/v1/stream"


def stream_feature(core: Core) -> Feature:
    """Return the routes of streams; all streams are closed before the server stops."""
    producers = StreamProducers()
    core.askers.append(producers)
    endpoint = StreamEndpoint(
        callers=core.callers,
        tickets=core.tickets,
        consumers=GroupConsumers(
            core.engine,
            core.groups.consume_timeout_ms,
            explained=core.reader.explained,
            on_consume=core.recent_consumers.note,
            tracer=core.tracer,
        ),
        tails=TopicTails(core.engine, core.reader),
        publisher=core.sending,
        producers=producers,
        quotas=core.limits,
        metrics=core.metrics,
        clock=core.clock,
        rng=core.rng,
        client_ip=core.settings.client_ip,
    )

    async def stop(timeout_ms: int) -> None:
        await endpoint.stop(timeout_ms=timeout_ms)

    routes = [
        Operation("GET", STREAM_PATH, _require_upgrade, frozenset({"ticket"})),
        WebSocketRoute(STREAM_PATH, endpoint),
    ]
    return Feature(routes, at_stop=stop)


async def _require_upgrade(call: Call) -> Answer:
    detail = f"Upgrade: {STREAM_PATH} is a WebSocket"
    raise ProblemError(WEBSOCKET_ONLY, detail, field="Upgrade", headers={"Upgrade": "websocket"})
