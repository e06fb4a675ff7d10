"""The JSON form of the gateway's readiness."""

from typing import Any

from services.gateway.usecases.cluster.health import Readiness


def readiness_view(readiness: Readiness) -> dict[str, Any]:
    """Return the readiness in the contract's form."""
    reasons = [{"part": failed.part, "detail": failed.detail} for failed in readiness.failed_parts]
    return {"status": readiness.status.value, "reasons": reasons}
