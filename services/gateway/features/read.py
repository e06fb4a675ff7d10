"""Reading: queues, messages by id and by key."""

from collections.abc import Mapping

from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import LIMIT_DEFAULT, duration_of, flag_of, integer, limit_of, required, time_of
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.core import Core, Feature
from services.gateway.errors import UNKNOWN_MESSAGE, ProblemError, invalid, not_implemented
from services.gateway.schemas.filters import TAGS_LENGTH_MAX, Filter, SqlFilter, check_sql
from services.gateway.schemas.outgoing import KEY_EXPRESSION
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.views.messages import message_view
from services.gateway.views.page import page_view
from services.gateway.views.reads import found_view, queue_read_view, queue_view

BOUNDARIES = ("lower", "upper")
PULL_DEFAULT = 32
KEY_LENGTH_MAX = 1_024
_LATER = ("from", "to", "tag", "filter", "not_consumed_by", "cursor")


def read_feature(core: Core) -> Feature:
    """Return the routes of reading."""
    lookup = Lookup(core.engine, core.brokers, core.reader, core.metrics, topics=core.known_topics)
    return Feature(read_routes(core.reader, lookup, wait_ms_max=core.settings.wait_ms_max))


def read_routes(reader: QueueReader, lookup: Lookup, *, wait_ms_max: int) -> list[Operation]:
    """Return the routes of reading."""
    writer = AnswerWriter()
    return [*_queue_routes(reader, writer, wait_ms_max=wait_ms_max), *_message_routes(lookup, writer)]


def _queue_routes(reader: QueueReader, writer: AnswerWriter, *, wait_ms_max: int) -> list[Operation]:
    async def queues(call: Call) -> Answer:
        topic = call.path_params["topic"]
        call.principal.require(call.principal.may_see_topic(topic), "consume", f"topic {topic}")
        return json_answer(page_view(await reader.queues(topic), queue_view))

    async def messages(call: Call) -> Answer:
        queue = _queue_of(call)
        call.principal.require_read(queue.topic)
        query = call.query
        binary = call.wants_msgpack
        offset, limit = integer(query.get("offset", "0"), "offset"), limit_of(query, default=PULL_DEFAULT)
        wait_ms = duration_of(query, "wait", default_ms=0, max_ms=wait_ms_max)
        wanted, system = _filter_of(query), flag_of(query, "system")
        async with reader.read(queue, offset, limit=limit, wait_ms=wait_ms, wanted=wanted, caller=call) as read:
            view = queue_read_view(read, binary=binary, system=system)
            del read  # The compressed bodies need not stay in memory while the answer is written.
            return await writer.queue(view, call.key_id, binary=binary)

    async def find_offset(call: Call) -> Answer:
        queue = _queue_of(call)
        call.principal.require(call.principal.may_see_topic(queue.topic), "consume", f"topic {queue.topic}")
        boundary = call.query.get("boundary", "lower")
        if boundary not in BOUNDARIES:
            raise invalid("boundary", boundary, f"is not one of {', '.join(BOUNDARIES)}")
        return json_answer({"offset": str(await reader.find_offset(queue, time_of(call.query, "at"), boundary))})

    queue = "/v1/topics/{topic}/queues/{broker}/{queue_id}"
    return [
        Operation("GET", "/v1/topics/{topic}/queues", queues),
        Operation(
            "GET", f"{queue}/messages", messages, frozenset({"offset", "limit", "wait", "filter", "sql", "system"})
        ),
        Operation("GET", f"{queue}/offsets", find_offset, frozenset({"at", "boundary"})),
    ]


def _message_routes(lookup: Lookup, writer: AnswerWriter) -> list[Operation]:
    async def get_message(call: Call) -> Answer:
        principal, message_id, topic = call.principal, call.path_params["id"], call.query.get("topic")
        if topic is None:
            principal.require(bool(principal.rights.consume.topics), "consume")
        else:
            principal.require_read(topic)
        binary, system = call.wants_msgpack, flag_of(call.query, "system")
        # A broker may find many messages by one id: retries of the message, and others with the same hash.
        async with lookup.turn(call, 1 if topic is None else LIMIT_DEFAULT):
            record, broker = await lookup.by_id(message_id, topic)
            if not principal.may_read(record.topic):
                # The answer must not reveal that such a message exists.
                raise ProblemError(UNKNOWN_MESSAGE, f"id: there is no message {message_id!r}", field="id")
            view = message_view(lookup.require_valid(record, broker), binary=binary, system=system, leaves_large=True)
            return await writer.message(view, call.key_id, binary=binary)

    async def find_messages(call: Call) -> Answer:
        topic = call.path_params["topic"]
        call.principal.require_read(topic)
        for name in _LATER:
            if name in call.query:
                raise not_implemented(name, "searching by it comes later; `key` works")
        key = _key_of(call)
        binary = call.wants_msgpack
        limit, system = limit_of(call.query, default=LIMIT_DEFAULT), flag_of(call.query, "system")
        async with lookup.turn(call, limit):
            found = await lookup.by_key(topic, key, limit=limit)
            views = (
                message_view(message, binary=binary, system=system, leaves_large=True) for message in found.messages
            )
            return await writer.page(found_view(found, binary=binary), views, call.key_id, binary=binary)

    return [
        Operation("GET", "/v1/messages/{id}", get_message, frozenset({"topic", "system"})),
        Operation("GET", "/v1/topics/{topic}/messages", find_messages, frozenset({"key", "limit", "system", *_LATER})),
    ]


def _queue_of(call: Call) -> MessageQueue:
    parameters = call.path_params
    queue_id = integer(parameters["queue_id"], "queue_id", highest=2**31 - 1)
    return MessageQueue(parameters["topic"], parameters["broker"], queue_id)


def _key_of(call: Call) -> str:
    key = required(call.query, "key")
    if len(key) > KEY_LENGTH_MAX or KEY_EXPRESSION.fullmatch(key) is None:
        raise InvalidValueError("key", key, f"is not 1 to {KEY_LENGTH_MAX} characters without white space")
    return key


def _filter_of(query: Mapping[str, str]) -> Filter:
    """Return the filter, which is a parameter for tags or one for SQL."""
    sql = query.get("sql")
    if sql is not None:
        if "filter" in query:
            raise invalid("sql", sql, "is given beside `filter`; give only one of them")
        check_sql(sql, field="sql")
        return SqlFilter(sql)
    tags = query.get("filter", "*")
    if not 0 < len(tags) <= TAGS_LENGTH_MAX:
        raise invalid("filter", tags, f"is not 1 to {TAGS_LENGTH_MAX} characters long")
    return tags
