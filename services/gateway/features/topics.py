"""`/v1/topics`: creating, showing, changing and deleting topics."""

import msgspec

from gantry.model.topic import TopicConfig
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import changed_answer, expectation_of, shown_answer
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import flag_of, limit_of
from services.gateway.core import Core, Feature
from services.gateway.db.repositories import Actor
from services.gateway.schemas.configs import TopicChange
from services.gateway.usecases.configs.configs import Configs
from services.gateway.views.configs import topic_view
from services.gateway.views.metadata import metadata_page_view

_change = msgspec.json.Decoder(TopicChange)


def topic_feature(core: Core) -> Feature:
    """Return the routes of topics."""
    return Feature(topic_routes(core.topics))


def topic_routes(topics: Configs[TopicConfig]) -> list[Operation]:
    """Return the routes of topics."""

    async def page(call: Call) -> Answer:
        principal = call.principal
        principal.require(principal.may_see_anything(), "admin")
        found = await topics.page(
            cursor=call.query.get("cursor"),
            limit=limit_of(call.query),
            system=flag_of(call.query, "system"),
            sees=principal.may_see_topic,
        )
        return json_answer(metadata_page_view(found, topic_view))

    async def show(call: Call) -> Answer:
        name = call.path_params["topic"]
        call.principal.require(call.principal.may_see_topic(name), "admin", f"topic {name}")
        topic = await topics.get(name)
        return shown_answer(call, topic_view(topic), topic.version)

    async def put(call: Call) -> Answer:
        call.principal.require_admin()
        expect = expectation_of(call)
        change = await call.read_json(_change)
        actor = Actor(call.principal.key_id, call.request_id)
        topic = await topics.put(call.path_params["topic"], change, expect, actor)
        return changed_answer(topic_view(topic), topic.version, is_new=topic.is_new)

    async def delete(call: Call) -> Answer:
        call.principal.require_admin()
        expect = expectation_of(call, allow_none_match=False)
        await topics.delete(call.path_params["topic"], expect, Actor(call.principal.key_id, call.request_id))
        return Answer(204)

    return [
        Operation("GET", "/v1/topics", page, frozenset({"cursor", "limit", "system"})),
        Operation("GET", "/v1/topics/{topic}", show),
        Operation("PUT", "/v1/topics/{topic}", put),
        Operation("DELETE", "/v1/topics/{topic}", delete),
    ]
