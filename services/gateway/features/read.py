"""Reading: queues, messages by id and by key."""

from collections.abc import Mapping

from gantry.model.errors import NO_VALUE, InvalidValueError
from gantry.model.group import SUB_ALL, SubscriptionGroup
from gantry.model.message import MessageQueue
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import LIMIT_DEFAULT, duration_of, flag_of, integer, limit_of, required, time_of
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.core import Core, Feature
from services.gateway.errors import UNKNOWN_MESSAGE, ProblemError, invalid
from services.gateway.schemas.filters import TAGS_LENGTH_MAX, Filter, SqlFilter, check_sql
from services.gateway.schemas.outgoing import KEY_EXPRESSION
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.reading.search import Search, TopicSearch
from services.gateway.views.messages import message_view
from services.gateway.views.page import page_view
from services.gateway.views.reads import found_view, queue_read_view, queue_view, search_view

BOUNDARIES = ("lower", "upper")
PULL_DEFAULT = 32
KEY_LENGTH_MAX = 1_024
_SEARCH = frozenset({"from", "to", "tag", "filter", "sql", "not_consumed_by"})
_PAGE = frozenset({"limit", "cursor", "system"})


def read_feature(core: Core) -> Feature:
    """Return the routes of reading."""
    lookup = Lookup(core.engine, core.brokers, core.reader, core.metrics, topics=core.known_topics)
    search = TopicSearch(core.reader, clock=core.clock)
    writer = AnswerWriter()
    return Feature(
        [
            *_queue_routes(core.reader, writer, wait_ms_max=core.settings.wait_ms_max),
            *_message_routes(lookup, search, core.groups, writer),
        ]
    )


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


def _message_routes(
    lookup: Lookup, search: TopicSearch, groups: Configs[SubscriptionGroup], writer: AnswerWriter
) -> list[Operation]:
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
        call.principal.require_read(call.path_params["topic"])
        if "key" in call.query:
            return await find_by_key(call)
        if not _SEARCH & call.query.keys():
            raise InvalidValueError(
                "key", NO_VALUE, f"is missing; without it, give one of {', '.join(sorted(_SEARCH))}"
            )
        return await search_topic(call)

    async def find_by_key(call: Call) -> Answer:
        for name in sorted(_SEARCH | {"cursor"}):
            if name in call.query:
                raise invalid(name, call.query[name], "is given beside `key`; a search by key takes only `limit`")
        key, binary = _key_of(call), call.wants_msgpack
        limit, system = limit_of(call.query, default=LIMIT_DEFAULT), flag_of(call.query, "system")
        async with lookup.turn(call, limit):
            found = await lookup.by_key(call.path_params["topic"], key, limit=limit)
            views = (
                message_view(message, binary=binary, system=system, leaves_large=True) for message in found.messages
            )
            return await writer.page(found_view(found, binary=binary), views, call.key_id, binary=binary)

    async def search_topic(call: Call) -> Answer:
        wanted, binary, system = _search_of(call), call.wants_msgpack, flag_of(call.query, "system")
        if wanted.group is not None:
            if not call.principal.sees_all:
                call.principal.require_consume(wanted.topic, wanted.group)
            await groups.require(wanted.group)
        limit = limit_of(call.query, default=LIMIT_DEFAULT)
        async with search.page(wanted, call.query.get("cursor"), limit=limit, caller=call) as page:
            views = (
                message_view(message, binary=binary, system=system, leaves_large=True) for message in page.messages
            )
            return await writer.items(search_view(page, binary=binary), views, call.key_id, binary=binary)

    return [
        Operation("GET", "/v1/messages/{id}", get_message, frozenset({"topic", "system"})),
        Operation("GET", "/v1/topics/{topic}/messages", find_messages, frozenset({"key"}) | _SEARCH | _PAGE),
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


def _search_of(call: Call) -> Search:
    query = call.query
    from_ms = time_of(query, "from") if "from" in query else None
    to_ms = time_of(query, "to") if "to" in query else None
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise invalid("to", query["to"], f"is not after `from`, {query['from']}")
    wanted = _filter_of(query)
    if "tag" in query:
        wanted = _tag_of(query)
    return Search(call.path_params["topic"], wanted, from_ms, to_ms, query.get("not_consumed_by"))


def _tag_of(query: Mapping[str, str]) -> str:
    """Return the parameter `tag` as a filter for this one tag."""
    tag = query["tag"]
    for name in ("filter", "sql"):
        if name in query:
            raise invalid("tag", tag, f"is given beside `{name}`; give only one of them")
    if not 0 < len(tag) <= TAGS_LENGTH_MAX or "||" in tag or tag == SUB_ALL or tag != tag.strip():
        raise invalid("tag", tag, "is not one tag; `filter` takes several tags separated by `||`")
    return tag
