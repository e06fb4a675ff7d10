"""`/livez`, `/readyz`, `/metrics`, `/openapi.json`, and the plain HTTP side of `/v1/stream`."""

from services.gateway.asgi.answer import JSON_TYPE, Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.errors import WEBSOCKET_ONLY, ProblemError
from services.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from services.gateway.usecases.cluster.health import Health

STREAM_PATH = "/v1/stream"


def service_routes(
    health: Health, metrics: GatewayMetrics, contract: bytes, *, is_public_contract: bool
) -> list[Operation]:
    """Return the routes of the gateway itself.

    Args:
        health: What readiness depends on.
        metrics: What is counted.
        contract: openapi.json, as it is served.
        is_public_contract: Whether it is served without a key.
    """

    async def livez(call: Call) -> Answer:
        return json_answer({"status": "alive"})

    async def readyz(call: Call) -> Answer:
        readiness = await health.readiness()
        answer = json_answer(readiness, 503 if readiness["status"] == "unready" else 200)
        if answer.status_code == 503:
            answer.raw_headers.append((b"retry-after", b"1"))
        return answer

    async def show_metrics(call: Call) -> Answer:
        call.principal.require(call.principal.rights.metrics, "metrics")
        return Answer(200, metrics.render(), [(b"content-type", CONTENT_TYPE)])

    async def openapi(call: Call) -> Answer:
        return Answer(200, contract, [JSON_TYPE])

    async def stream(call: Call) -> Answer:
        raise ProblemError(
            WEBSOCKET_ONLY, f"Upgrade: {STREAM_PATH} is a WebSocket", field="Upgrade", headers={"Upgrade": "websocket"}
        )

    return [
        Operation("GET", "/livez", livez, is_public=True, is_probe=True),
        Operation("GET", "/readyz", readyz, is_public=True, is_probe=True),
        Operation("GET", "/metrics", show_metrics, is_probe=True),
        Operation("GET", "/openapi.json", openapi, is_public=is_public_contract),
        Operation("GET", STREAM_PATH, stream, frozenset({"ticket"})),
    ]
