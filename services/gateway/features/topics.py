"""`/v1/topics`: creating, showing, changing and deleting topics."""

import msgspec

from gantry.model.topic import TopicConfig
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import expectation_of, shown_answer
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import flag_of, limit_of
from services.gateway.core import Core, Feature
from services.gateway.db.repositories import Actor
from services.gateway.schemas.configs import TopicChange
from services.gateway.usecases.configs.configs import Configs

_change = msgspec.json.Decoder(TopicChange)


def topic_feature(core: Core) -> Feature:
    """Return the routes of topics."""
    return Feature(topic_routes(core.topics))


def topic_routes(topics: Configs[TopicConfig]) -> list[Operation]:
    """Return the routes of topics."""

    async def page(call: Call) -> Answer:
        principal = call.principal
        principal.require(principal.may_see_anything(), "admin")
        return json_answer(
            await topics.page(
                cursor=call.query.get("cursor"),
                limit=limit_of(call.query),
                system=flag_of(call.query, "system"),
                sees=principal.may_see_topic,
            )
        )

    async def show(call: Call) -> Answer:
        topic = call.path_params["topic"]
        call.principal.require(call.principal.may_see_topic(topic), "admin", f"topic {topic}")
        shown = await topics.get(topic)
        return shown_answer(call, shown)

    async def put(call: Call) -> Answer:
        call.principal.require_admin()
        expect = expectation_of(call)
        change = await call.read_json(_change)
        actor = Actor(call.principal.key_id, call.request_id)
        shown = await topics.put(call.path_params["topic"], change, expect, actor)
        return json_answer(shown.view, 201 if shown.created else 200, etag=shown.etag)

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
