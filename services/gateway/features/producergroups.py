"""`/v1/producer-groups`: where an open transaction of a group is asked about. Right: admin."""

from typing import Any

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.db.producergroups import ProducerGroup
from services.gateway.features.actor import actor_of
from services.gateway.schemas.producergroups import ProducerGroupSettings
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.transactions.callbacks import CallbackAsker, ProducerGroups
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.views.messages import message_view

_settings = msgspec.json.Decoder(ProducerGroupSettings)


def producer_group_feature(core: Core) -> Feature:
    """Return the routes of producer groups. Their URLs are asked after the streams of the group."""
    networks = core.settings.private_networks
    groups = ProducerGroups(core.metadata, networks)
    core.askers.append(
        CallbackAsker(
            groups.get,
            core.metrics,
            clock=core.clock,
            rng=core.rng,
            networks=networks,
            timeout_ms=core.settings.webhook_timeout_ms,
            render=check_view,
        )
    )
    return Feature(producer_group_routes(groups))


def producer_group_routes(groups: ProducerGroups) -> list[Operation]:
    """Return the routes of producer groups."""

    async def put(call: Call) -> Answer:
        call.principal.require_operator()
        name = call.path_params["group"]
        wanted: ProducerGroupSettings = await call.read_json(_settings)
        group, is_new = await groups.put(name, wanted, actor_of(call))
        return json_answer(_view(name, group), 201 if is_new else 200)

    async def show(call: Call) -> Answer:
        call.principal.require_operator()
        name = call.path_params["group"]
        return json_answer(_view(name, await groups.get(name)))

    path = "/v1/producer-groups/{group}"
    return [Operation("PUT", path, put), Operation("GET", path, show)]


def check_view(check: TransactionCheck) -> dict[str, Any]:
    """Return the JSON of a question."""
    return {
        "transaction": check.transaction,
        "group": check.group,
        "checks": check.checks,
        "message": message_view(check.message),
    }


def _view(name: str, group: ProducerGroup | None) -> dict[str, Any]:
    return {
        "group": name,
        "check_url": None if group is None else group.check_url,
        "has_secret": group is not None,
        "updated_at": None if group is None else format_moment(group.updated_at),
    }
