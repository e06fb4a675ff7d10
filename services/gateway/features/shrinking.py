"""`/v1/topics/{topic}/queues:shrink`: fewer queues without loss, and the job that waits for the groups."""

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.features.actor import actor_of
from services.gateway.schemas.shrinking import ShrinkRequest
from services.gateway.usecases.operations.shrinking import ShrinkJob, Shrinks, TopicShrinker
from services.gateway.views.jobs import job_view
from services.gateway.views.shrinking import shrink_view

_shrink = msgspec.json.Decoder(ShrinkRequest)


def shrink_feature(core: Core) -> Feature:
    """Return the route of shrinks, and add their job."""
    shrinker = TopicShrinker(core.engine, core.brokers, core.known_topics)
    job = ShrinkJob(shrinker, core.topics)
    core.job_kinds[job.name] = job
    return Feature(shrink_routes(Shrinks(shrinker, core.topics, core.jobs)))


def shrink_routes(shrinks: Shrinks) -> list[Operation]:
    """Return the route of shrinks."""

    async def shrink(call: Call) -> Answer:
        call.principal.require_operator()
        topic = call.path_params["topic"]
        wanted: ShrinkRequest = await call.read_json(_shrink)
        if wanted.dry_run:
            return json_answer(shrink_view(await shrinks.state(topic, wanted.queues)))
        return json_answer(job_view(await shrinks.start(topic, wanted.queues, actor_of(call))), 202)

    return [Operation("POST", "/v1/topics/{topic}/queues:shrink", shrink)]
