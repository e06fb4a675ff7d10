"""`/v1/objectives` and `/v1/groups/{group}/objective`: how far behind groups may be."""

import msgspec

from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import changed_answer, expectation_of, shown_answer
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.core import Core, Feature
from services.gateway.features.actor import actor_of
from services.gateway.schemas.objectives import ObjectiveChange
from services.gateway.usecases.reports.objectives import Objectives
from services.gateway.views.objectives import objective_view
from services.gateway.views.page import page_view

_TOPIC = frozenset({"topic"})

_change = msgspec.json.Decoder(ObjectiveChange)


def objective_feature(core: Core) -> Feature:
    """Return the routes of objectives."""
    return Feature(objective_routes(Objectives(core.metadata, core.groups, core.topics, clock=core.clock)))


def objective_routes(objectives: Objectives) -> list[Operation]:
    """Return the routes of objectives."""

    async def page(call: Call) -> Answer:
        rights = call.principal.rights
        call.principal.require(rights.metrics or rights.admin, "metrics")
        group = call.query.get("group")
        if group is not None:
            check_group(group)
        found = await objectives.page(group=group, cursor=call.query.get("cursor"), limit=limit_of(call.query))
        return json_answer(page_view(found, objective_view))

    async def show(call: Call) -> Answer:
        group, topic = _named(call)
        call.principal.require(call.principal.may_see_group(group), "consume", f"group {group}")
        objective = await objectives.get(group, topic)
        return shown_answer(call, objective_view(objective), objective.version)

    async def put(call: Call) -> Answer:
        call.principal.require_operator()
        group, topic = _named(call)
        expect = expectation_of(call)
        change = await call.read_json(_change)
        done = await objectives.put(group, topic, change, expect, actor_of(call))
        return changed_answer(objective_view(done.objective), done.objective.version, is_new=done.is_new)

    async def delete(call: Call) -> Answer:
        call.principal.require_operator()
        group, topic = _named(call)
        expect = expectation_of(call, allow_none_match=False)
        await objectives.delete(group, topic, expect, actor_of(call))
        return Answer(204)

    return [
        Operation("GET", "/v1/objectives", page, frozenset({"cursor", "group", "limit"})),
        Operation("GET", "/v1/groups/{group}/objective", show, _TOPIC),
        Operation("PUT", "/v1/groups/{group}/objective", put, _TOPIC),
        Operation("DELETE", "/v1/groups/{group}/objective", delete, _TOPIC),
    ]


def _named(call: Call) -> tuple[str, str | None]:
    """Return the group, and the topic if the query names one. Raises InvalidValueError."""
    group, topic = call.path_params["group"], call.query.get("topic")
    check_group(group)
    if topic is not None:
        check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX)
    return group, topic
