"""`/v1/topics`: creating, showing, changing and deleting topics."""

import msgspec
from msgspec import UNSET

from services.gateway.asgi.call import Call
from services.gateway.auth.principal import Principal
from services.gateway.core import Core, Feature
from services.gateway.features.configs import config_routes
from services.gateway.schemas.configs import TopicChange
from services.gateway.views.configs import topic_view

_change = msgspec.json.Decoder(TopicChange)


def topic_feature(core: Core) -> Feature:
    """Return the routes of topics."""

    async def complete(change: TopicChange) -> TopicChange:
        if change.cluster is UNSET:
            return change
        return change.on_cluster(await core.brokers.in_cluster(change.cluster, field="/cluster"))

    return Feature(
        config_routes(
            "topic",
            core.topics,
            _change,
            view=topic_view,
            may_see=Principal.may_see_topic,
            visible_name=visible_topic,
            complete=complete,
        )
    )


def visible_topic(call: Call) -> str:
    """Return the topic in the path. Raises ProblemError (403) if the caller may not see it."""
    topic: str = call.path_params["topic"]
    call.principal.require(call.principal.may_see_topic(topic), "admin", f"topic {topic}")
    return topic
