"""`/v1/cluster`."""

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.usecases.cluster.members import Cluster
from services.gateway.views.cluster import cluster_view


def cluster_feature(core: Core) -> Feature:
    """Return the route of the cluster."""
    return Feature(cluster_routes(Cluster(core.engine, core.brokers, core.metadata)))


def cluster_routes(cluster: Cluster) -> list[Operation]:
    """Return the route of the cluster."""

    async def show(call: Call) -> Answer:
        call.principal.require_viewer()
        return json_answer(cluster_view(await cluster.state()))

    return [Operation("GET", "/v1/cluster", show)]
