"""`/v1/messages/{id}/trace`: the life of one message.

Rights: a key that may read the topic of the message sees its life, with those groups that the key may see.
"""

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.errors import UNKNOWN_MESSAGE, ProblemError
from services.gateway.usecases.lives.gathering import Lives
from services.gateway.usecases.lives.groupfacts import GroupReader
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.views.lives import life_view


def life_feature(core: Core) -> Feature:
    """Return the routes of lives."""
    lookup = Lookup(core.engine, core.brokers, core.reader, core.metrics, topics=core.known_topics)
    groups = GroupReader(core.brokers, lookup, core.reader, core.consumers, core.metadata, engine=core.engine)
    return Feature(life_routes(Lives(core.engine, core.brokers, lookup, groups)))


def life_routes(lives: Lives) -> list[Operation]:
    """Return the routes of lives."""

    async def trace(call: Call) -> Answer:
        principal, message_id, topic = call.principal, call.path_params["id"], call.query.get("topic")
        if topic is None:
            principal.require(bool(principal.rights.consume.topics), "consume")
        else:
            principal.require_read(topic)
        facts, missing = await lives.find(message_id, topic, call)
        if not principal.may_read(facts.topic):
            # The answer must not reveal that such a message exists.
            raise ProblemError(UNKNOWN_MESSAGE, f"id: there is no message {message_id!r}", field="id")
        return json_answer(life_view(await lives.tell(facts, missing, call, may_see=principal.may_see_group)))

    return [Operation("GET", "/v1/messages/{id}/trace", trace, frozenset({"topic"}))]
