"""`/v1/cluster`."""

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.router import Route
from services.gateway.usecases.cluster.views import Cluster


def cluster_routes(cluster: Cluster) -> list[Route]:
    """Return the route of the cluster."""

    async def show(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(await cluster.show())

    return [Route("GET", "/v1/cluster", show)]
