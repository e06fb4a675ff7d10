"""`/v1/groups/{group}/messages:pull`, `:ack`, `:nack`, `:extend`: consuming for a group by receipt.

Rights: `consume` on the group, and on the topic: that of the request, or that of each receipt.
"""

import msgspec

from gantry.model.group import SubscriptionData
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX, check_group, check_topic
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.core import Core, Feature
from services.gateway.schemas.filters import subscription_of
from services.gateway.schemas.receiving import AckRequest, ExtendRequest, NackRequest, PullRequest
from services.gateway.usecases.receiving.pulling import Pull, Pulling
from services.gateway.usecases.receiving.pullregister import PullRegister
from services.gateway.usecases.receiving.settling import Settling
from services.gateway.views.receiving import PulledMessages, damaged_view, extended_view, settled_view

_pull = msgspec.json.Decoder(PullRequest)
_ack = msgspec.json.Decoder(AckRequest)
_nack = msgspec.json.Decoder(NackRequest)
_extend = msgspec.json.Decoder(ExtendRequest)


def receiving_feature(core: Core) -> Feature:
    """Return the routes of consuming by receipt."""
    register = PullRegister(core.metadata, interval_ms=core.settings.mirror_interval_ms)

    def on_pull(group: str, subscription: SubscriptionData) -> None:
        register.note(group, subscription)
        core.recent_consumers.note(group, subscription.topic)

    pulling = Pulling(
        core.engine,
        core.reader,
        core.metrics,
        core.receipt_key,
        clock=core.clock,
        is_stopping=lambda: core.health.is_stopping,
        on_pull=on_pull,
    )
    settling = Settling(core.engine, core.brokers, core.group_kind, core.receipt_key)

    async def at_stop(timeout_ms: int) -> None:
        del timeout_ms
        await pulling.close()

    return Feature(receiving_routes(pulling, settling), background={"pulls": register.run}, at_stop=at_stop)


def receiving_routes(pulling: Pulling, settling: Settling) -> list[Operation]:
    """Return the routes of consuming by receipt."""
    writer, shown = AnswerWriter(), PulledMessages()

    async def pull(call: Call) -> Answer:
        group = _group_of(call)
        request = await call.read_json(_pull)
        topic = request.topic
        check_topic(
            topic, length_max=RETRY_TOPIC_LENGTH_MAX if topic.startswith("%") else TOPIC_LENGTH_MAX, field="/topic"
        )
        call.principal.require_consume(topic, group)
        wanted = Pull(
            group=group,
            subscription=subscription_of(request.filter, topic, 0),
            messages_max=request.max,
            wait_ms=request.wait_ms,
            invisible_ms=request.invisible_ms,
            is_orderly=request.order == "orderly",
            attempt_id=request.attempt_id,
        )
        binary = call.wants_msgpack
        async with pulling.pull(wanted, call) as pulled:
            fields = damaged_view(pulled, binary=binary)
            if pulled.is_large:
                count = len(pulled.messages)
                return writer.streamed(fields, count, shown.show_each(pulled, binary=binary), binary=binary)
            return await writer.pulled(fields, shown.show(pulled, binary=binary), call.key_id, binary=binary)

    async def ack(call: Call) -> Answer:
        group = _group_of(call)
        request = await call.read_json(_ack)
        settled = await settling.ack(group, request.receipts, call.principal.may_read)
        return json_answer(settled_view(settled, call.request_id))

    async def nack(call: Call) -> Answer:
        group = _group_of(call)
        request = await call.read_json(_nack)
        settled = await settling.nack(group, request.receipts, call.principal.may_read, delay_ms=request.delay_ms)
        return json_answer(settled_view(settled, call.request_id))

    async def extend(call: Call) -> Answer:
        group = _group_of(call)
        request = await call.read_json(_extend)
        settled = await settling.extend(
            group, request.receipts, call.principal.may_read, invisible_ms=request.invisible_ms
        )
        return json_answer(extended_view(settled, call.request_id))

    path = "/v1/groups/{group}/messages"
    return [
        Operation("POST", f"{path}:pull", pull, is_bare=True),
        Operation("POST", f"{path}:ack", ack, is_bare=True),
        Operation("POST", f"{path}:nack", nack),
        Operation("POST", f"{path}:extend", extend),
    ]


def _group_of(call: Call) -> str:
    """Return the group of the path. Raises ProblemError (403) unless the key may consume with it."""
    group: str = call.path_params["group"]
    check_group(group)
    call.principal.require_group(group)
    return group
