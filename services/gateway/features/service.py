"""`/livez`, `/readyz`, `/metrics` and `/openapi.json`."""

from pathlib import Path
from typing import Final

from gantry.runtime.errors import StartupError
from services.gateway.asgi.answer import JSON_TYPE, Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.fixedbody import FixedBody
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from services.gateway.usecases.cluster.health import Health, ReadyStatus
from services.gateway.views.health import readiness_view

_GATEWAY: Final = Path(__file__).resolve().parents[1]


def service_feature(core: Core) -> Feature:
    """Return the routes of the gateway itself. Raises StartupError if openapi.json is missing."""
    is_public = core.settings.public_contract
    return Feature(service_routes(core.health, core.metrics, find_contract(), is_public_contract=is_public))


def find_contract() -> bytes:
    """Return openapi.json, from the gateway's package in a wheel or from `openapi/` in the repository.

    Raises:
        StartupError: It is in neither place.
    """
    for path in (_GATEWAY / "openapi" / "openapi.json", _GATEWAY.parents[1] / "openapi" / "openapi.json"):
        if path.exists():
            return path.read_bytes()
    raise StartupError("openapi.json is missing from the installation: run `make contract`, or install Gantry again")


def service_routes(
    health: Health, metrics: GatewayMetrics, contract: bytes, *, is_public_contract: bool
) -> list[Operation]:
    """Return the routes of the gateway itself.

    Args:
        health: Health of the gateway, for readiness.
        metrics: Counters of the gateway.
        contract: Bytes of openapi.json.
        is_public_contract: Whether openapi.json needs no key.
    """

    async def livez(call: Call) -> Answer:
        return json_answer({"status": "alive"})

    async def readyz(call: Call) -> Answer:
        readiness = await health.readiness()
        answer = json_answer(readiness_view(readiness), 503 if readiness.status is ReadyStatus.UNREADY else 200)
        if answer.status_code == 503:
            answer.raw_headers.append((b"retry-after", b"1"))
        return answer

    async def show_metrics(call: Call) -> Answer:
        call.principal.require(call.principal.rights.metrics, "metrics")
        return Answer(200, metrics.render(), [(b"content-type", CONTENT_TYPE)])

    # The console reads the contract at each start, and it is five times smaller in gzip.
    shown = FixedBody.of(contract, [JSON_TYPE, (b"cache-control", b"no-cache")]).compressed()

    async def openapi(call: Call) -> Answer:
        return shown.answer(call)

    return [
        Operation("GET", "/livez", livez, is_public=True, is_probe=True),
        Operation("GET", "/readyz", readyz, is_public=True, is_probe=True),
        Operation("GET", "/metrics", show_metrics, is_probe=True),
        Operation("GET", "/openapi.json", openapi, is_public=is_public_contract),
    ]
