"""`/v1/topics/{topic}/scheduled`: messages that wait for their time.

Rights: a key that may read the topic lists them; a key that may publish to it recalls and reschedules them.
"""

from typing import Final

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.core import Core, Feature
from services.gateway.errors import invalid
from services.gateway.schemas.scheduled import NewTime
from services.gateway.schemas.times import parse_time_ms
from services.gateway.usecases.scheduled.scheduled import ScheduledMessages
from services.gateway.usecases.sending.preparing import DELAY_MS_MAX
from services.gateway.views.scheduled import rescheduled_view, scheduled_view

LIMIT_DEFAULT: Final = 32

_time = msgspec.json.Decoder(NewTime)


def scheduled_feature(core: Core) -> Feature:
    """Return the routes of scheduled messages."""
    messages = ScheduledMessages(core.engine, core.brokers, core.reader, clock=core.clock)
    return Feature(scheduled_routes(messages))


def scheduled_routes(messages: ScheduledMessages) -> list[Operation]:
    """Return the routes of scheduled messages."""
    writer = AnswerWriter()

    async def page(call: Call) -> Answer:
        topic, query = call.path_params["topic"], call.query
        call.principal.require_read(topic)
        from_ms, to_ms = (parse_time_ms(query[name], name) if name in query else None for name in ("from", "to"))
        if from_ms is not None and to_ms is not None and from_ms >= to_ms:
            raise invalid("to", query["to"], f"is not after from, {query['from']}")
        binary, limit = call.wants_msgpack, limit_of(query, default=LIMIT_DEFAULT)
        found = await messages.page(topic, from_ms=from_ms, to_ms=to_ms, cursor=query.get("cursor"), limit=limit)
        views = (scheduled_view(one, binary=binary, leaves_large=True) for one in found.items)
        return await writer.items({"next_cursor": found.next_cursor}, views, call.key_id, binary=binary)

    async def recall(call: Call) -> Answer:
        topic = call.path_params["topic"]
        call.principal.require_publish(topic)
        return json_answer({"outcome": await messages.recall(topic, call.path_params["handle"])})

    async def reschedule(call: Call) -> Answer:
        topic = call.path_params["topic"]
        call.principal.require_publish(topic)
        wanted = await call.read_json(_time)
        delay_ms, deliver_at_ms = wanted.times_ms(delay_max_ms=DELAY_MS_MAX)
        handle = call.path_params["handle"]
        done = await messages.reschedule(topic, handle, delay_ms=delay_ms, deliver_at_ms=deliver_at_ms)
        return json_answer(rescheduled_view(done))

    path = "/v1/topics/{topic}/scheduled"
    return [
        Operation("GET", path, page, frozenset({"cursor", "from", "limit", "to"})),
        Operation("POST", f"{path}/{{handle}}:recall", recall, is_empty=True),
        Operation("POST", f"{path}/{{handle}}:reschedule", reschedule),
    ]
