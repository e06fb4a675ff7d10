"""`/v1/limits`: the limits of the caller's key and address, and how much of them they use."""

from collections.abc import Mapping
from typing import Any

from gantry.model.names import BODY_BYTES_MAX
from gantry.runtime.clock import Clock
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.limits import Limits
from services.gateway.quotas import ADDRESS, KEY
from services.gateway.schemas.outgoing import BATCH_MESSAGES_MAX
from services.gateway.settings import REQUEST_BYTES_MAX, GatewaySettings
from services.gateway.views.limits import usage_view
from services.gateway.ws.limits import StreamLimits


def limit_feature(core: Core) -> Feature:
    """Return the route of limits."""
    stream = StreamLimits().as_frame()
    return Feature(limit_routes(core.limits, core.settings, stream=stream, clock=core.clock))


def limit_routes(
    limits: Limits, settings: GatewaySettings, *, stream: Mapping[str, int], clock: Clock
) -> list[Operation]:
    """Return the route of limits; `stream` holds the limits that the frame `welcome` shows."""
    fixed: dict[str, Any] = {
        "request": {
            "bytes_max": REQUEST_BYTES_MAX,
            "message_bytes_max": BODY_BYTES_MAX,
            "batch_messages_max": BATCH_MESSAGES_MAX,
            "wait_ms_max": settings.wait_ms_max,
        },
        "stream": stream,
    }

    async def show(call: Call) -> Answer:
        holders = {KEY: call.key_id, ADDRESS: call.address}
        return json_answer({**usage_view(limits.usage(holders, clock.monotonic_ms())), **fixed})

    return [Operation("GET", "/v1/limits", show)]
