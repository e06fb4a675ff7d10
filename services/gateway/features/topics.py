"""`/v1/topics`: creating, showing, changing and deleting topics, and their producers."""

import msgspec
from msgspec import UNSET

from gantry.model.topic import TopicConfig
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.auth.principal import Principal
from services.gateway.core import PRODUCER_GROUP, Core, Feature
from services.gateway.features.configs import config_routes
from services.gateway.schemas.configs import TopicChange
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.operations.producers import Producers
from services.gateway.views.configs import topic_view
from services.gateway.views.producers import producers_view

_change = msgspec.json.Decoder(TopicChange)


def topic_feature(core: Core) -> Feature:
    """Return the routes of topics."""

    async def complete(change: TopicChange) -> TopicChange:
        if change.cluster is UNSET:
            return change
        return change.on_cluster(await core.brokers.in_cluster(change.cluster, field="/cluster"))

    topics = config_routes(
        "topic",
        core.topics,
        _change,
        view=topic_view,
        may_see=Principal.may_see_topic,
        visible_name=visible_topic,
        complete=complete,
    )
    producers = Producers(core.engine, core.brokers, gateway_group=PRODUCER_GROUP)
    return Feature([*topics, producers_route(core.topics, producers)])


def producers_route(topics: Configs[TopicConfig], producers: Producers) -> Operation:
    """Return the route of the producers of a topic."""

    async def list_producers(call: Call) -> Answer:
        topic = visible_topic(call)
        await topics.require(topic)
        return json_answer(producers_view(await producers.of(topic)))

    return Operation("GET", "/v1/topics/{topic}/producers", list_producers)


def visible_topic(call: Call) -> str:
    """Return the topic in the path. Raises ProblemError (403) if the caller may not see it."""
    topic: str = call.path_params["topic"]
    call.principal.require(call.principal.may_see_topic(topic), "admin", f"topic {topic}")
    return topic
