"""Backlog calls: which brokers they call, how often, and which answers they accept."""

import pytest

from gantry.client.backlog import UNIT_ROW, Backlog, FirstUnconsumed, FirstUnconsumedQuery, Units, query_parts
from gantry.client.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConnectionFailedError,
    InvalidArgumentError,
    NoRouteError,
    NotServedError,
)
from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData
from gantry.remoting import bodies
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedResult, FirstUnconsumedResults
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.backlog import UnitsHeader
from gantry.remoting.headers.queuestates import QueueStatesHeader
from tests.support.scriptedpeer import ok, refuse

QUEUE = MessageQueue("T", "a", 1)
ROWS = UNIT_ROW.pack(100, 50, 7, 1_000) + UNIT_ROW.pack(150, 50, 8, -1)
LIMITS = {"minOffset": "3", "maxOffset": "9", "firstOffset": "3", "nextOffset": "5"}


@pytest.fixture
def backlog(engine, cluster) -> Backlog:
    cluster.topic("T", "a")
    return Backlog(engine)


@pytest.fixture
def broker(transport):
    """Sets the script of broker a."""
    return lambda code, outcome: transport.at("a:10911", {code: outcome})


def answered(request, heads):
    return ok(request, body=FirstUnconsumedResults(broker_name="a", heads=heads, now_ms=99).encode())


async def test_units_come_with_the_queues_limits(backlog, broker, transport):
    broker(RequestCode.GANTRY_UNITS, lambda request: ok(request, ext=LIMITS, body=ROWS))
    assert await backlog.units(QUEUE, 1, count=20) == Units(3, 9, 3, 5, ROWS)
    header = UnitsHeader.from_ext(transport.sent(RequestCode.GANTRY_UNITS)[0].ext_fields)
    assert (header.topic, header.queue_id, header.offset, header.max_units) == ("T", 1, 1, 20)


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        (LIMITS, ROWS[:-1]),
        (LIMITS, b""),
        (LIMITS | {"firstOffset": "4"}, ROWS),
        (LIMITS | {"firstOffset": "0", "nextOffset": "2"}, ROWS),
        (LIMITS | {"maxOffset": "many"}, ROWS),
        ({}, ROWS),
    ],
)
async def test_invalid_units_are_refused(backlog, broker, ext, body):
    broker(RequestCode.GANTRY_UNITS, lambda request: ok(request, ext=ext, body=body))
    with pytest.raises(BrokerError, match="its answer can't be read"):
        await backlog.units(QUEUE, 1)


async def test_a_slave_gives_units_while_there_is_no_master(backlog, cluster, transport):
    cluster.registered["s"] = BrokerData("C", "s", {1: "s:1"})
    cluster.topic("S", "a")
    route = cluster.routes["S"]
    cluster.routes["S"] = type(route)(
        tuple(type(data)("s", 2, 2, 6) for data in route.queue_datas), (cluster.registered["s"],)
    )
    transport.at("s:1", {RequestCode.GANTRY_UNITS: lambda request: ok(request, ext=LIMITS, body=ROWS)})
    assert (await backlog.units(MessageQueue("S", "s", 0), 3)).next_offset == 5


async def test_arguments_that_can_not_be(backlog):
    for call in (
        backlog.units(QUEUE, -1),
        backlog.units(QUEUE, 0, count=0),
        backlog.units(QUEUE, 0, count=4_097),
        backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, -1)]),
        backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", -1, 0)]),
        backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 0, tuple(range(16_385)))]),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_a_head_is_the_message_that_the_broker_found(backlog, broker):
    found = FirstUnconsumedResult(
        min_offset=1, max_offset=9, scanned_to=4, queue_offset=4, physical_offset=400, size=50, tags_code=7,
        stored_at=1_000, expires_at=5_000, expires_at_is_earliest=True,
    )  # fmt: skip
    broker(
        RequestCode.GANTRY_FIRST_UNCONSUMED,
        lambda request: answered(request, [found, FirstUnconsumedResult(error="no such topic")]),
    )
    head, failed = await backlog.first_unconsumed(
        "a", [FirstUnconsumedQuery("T", 0, 2), FirstUnconsumedQuery("U", 0, 0, (5,))]
    )
    assert head == FirstUnconsumed(
        min_offset=1, max_offset=9, queue_offset=4, physical_offset=400, size=50, tags_code=7, stored_at_ms=1_000,
        expires_at_ms=5_000, expires_at_is_earliest=True, error=None, now_ms=99, scanned_to=4,
    )  # fmt: skip
    assert (failed.error, failed.max_offset, failed.queue_offset) == ("no such topic", None, None)


async def test_any_number_of_queries_in_requests_of_a_limited_size(backlog, broker, transport):
    def answer(request):
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        return answered(request, [FirstUnconsumedResult(queue_offset=query.offset) for query in queries])

    broker(RequestCode.GANTRY_FIRST_UNCONSUMED, answer)
    assert await backlog.first_unconsumed("a", []) == []
    heads = await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, number) for number in range(600)])
    assert [head.queue_offset for head in heads] == list(range(600))
    many = tuple(range(10_000))
    heads = await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, number, many) for number in range(3)])
    assert [head.queue_offset for head in heads] == [0, 1, 2]
    sent = [
        FirstUnconsumedQueries.decode(request.body_bytes).queries
        for request in transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)
    ]
    assert [len(queries) for queries in sent] == [256, 256, 88, 1, 1, 1]


async def test_a_search_continues_where_the_broker_stopped(backlog, broker, transport):
    def answer(request):
        heads = []
        for query in FirstUnconsumedQueries.decode(request.body_bytes).queries:
            to = min(query.offset + 40, 100)
            found = to if query.queue_id == 0 and to == 80 else None
            heads.append(FirstUnconsumedResult(min_offset=0, max_offset=100, scanned_to=to, queue_offset=found))
        return answered(request, heads)

    broker(RequestCode.GANTRY_FIRST_UNCONSUMED, answer)
    heads = await backlog.first_unconsumed(
        "a", [FirstUnconsumedQuery("T", 0, 0), FirstUnconsumedQuery("T", 1, 0), FirstUnconsumedQuery("T", 2, 90)]
    )
    assert [(head.queue_offset, head.error) for head in heads] == [(80, None), (None, None), (None, None)]
    sent = [
        FirstUnconsumedQueries.decode(request.body_bytes).queries
        for request in transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)
    ]
    assert [[query.offset for query in queries] for queries in sent] == [[0, 0, 90], [40, 40], [80]]


async def test_a_search_whose_filter_matches_nothing_ends(backlog, broker, transport, monkeypatch):
    monkeypatch.setattr("gantry.client.backlog.HEAD_ROUNDS_MAX", 3)

    def answer(request):
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        return answered(
            request, [FirstUnconsumedResult(max_offset=10**9, scanned_to=query.offset + 5) for query in queries]
        )

    broker(RequestCode.GANTRY_FIRST_UNCONSUMED, answer)
    (head,) = await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 7, (5,))])
    assert head.error == "no message that the filter lets through from offset 7 up to 22; given up"
    assert (head.queue_offset, head.max_offset) == (None, 10**9)
    assert len(transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)) == 3


async def test_a_broker_that_ignores_sql_gives_a_reason_and_no_message(backlog, broker):
    first = FirstUnconsumedResult(min_offset=0, max_offset=9, scanned_to=0, queue_offset=0, stored_at=7)

    def answer(request):
        assert [query.sql for query in FirstUnconsumedQueries.decode(request.body_bytes).queries] == ["a > 5", None]
        return answered(request, [first, first])

    broker(RequestCode.GANTRY_FIRST_UNCONSUMED, answer)
    filtered, all_messages = await backlog.first_unconsumed(
        "a", [FirstUnconsumedQuery("T", 0, 0, sql="a > 5"), FirstUnconsumedQuery("T", 0, 0)]
    )
    assert filtered.error == "the broker at a:10911 does not apply SQL filters to request 900002"
    assert (filtered.queue_offset, filtered.stored_at_ms) == (None, None)
    assert (all_messages.error, all_messages.queue_offset) == (None, 0)


async def test_queries_without_progress_come_first_in_the_next_request(backlog, broker, transport):
    def answer(request):
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        heads = [
            FirstUnconsumedResult(min_offset=0, max_offset=4, scanned_to=query.offset + 2 * (index == 0))
            for index, query in enumerate(queries)
        ]
        return ok(
            request, body=FirstUnconsumedResults(applies_sql=True, broker_name="a", heads=heads, now_ms=9).encode()
        )

    broker(RequestCode.GANTRY_FIRST_UNCONSUMED, answer)
    await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", queue_id, 0, sql="a > 5") for queue_id in (0, 1)])
    sent = [
        FirstUnconsumedQueries.decode(request.body_bytes).queries
        for request in transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)
    ]
    assert [[query.queue_id for query in queries] for queries in sent] == [[0, 1], [1, 0], [0, 1], [1]]


async def test_after_the_time_limit_unfinished_searches_are_given_up(backlog, broker, transport):
    broker(
        RequestCode.GANTRY_FIRST_UNCONSUMED,
        lambda request: answered(request, [FirstUnconsumedResult(min_offset=0, max_offset=9, scanned_to=4)]),
    )
    (head,) = await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 0, (5,))], within_ms=0)
    assert head.error == "no message that the filter lets through from offset 0 up to 4; given up"
    assert len(transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)) == 1


async def test_a_part_of_a_search_is_one_request(backlog, broker, transport):
    broker(
        RequestCode.GANTRY_FIRST_UNCONSUMED,
        lambda request: answered(request, [FirstUnconsumedResult(min_offset=0, max_offset=9, scanned_to=4)]),
    )
    (head,) = await backlog.search_part("a", [FirstUnconsumedQuery("T", 0, 0, (5,))])
    assert (head.scanned_to, head.queue_offset, head.error) == (4, None, None)
    assert len(transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)) == 1


def test_expressions_are_divided_among_requests():
    queries = [FirstUnconsumedQuery("T", number, 0, sql="x" * 16_000) for number in range(20)]
    assert [len(part) for part in query_parts(queries)] == [8, 8, 4]


async def test_invalid_heads_are_refused(backlog, broker):
    for body in (b"", b"{}", FirstUnconsumedResults(broker_name="a", heads=[], now_ms=1).encode()):
        broker(RequestCode.GANTRY_FIRST_UNCONSUMED, lambda request, body=body: ok(request, body=body))
        with pytest.raises(BrokerError, match="its answer can't be read"):
            await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 0)])


async def test_a_broker_that_does_not_support_a_request(backlog):
    with pytest.raises(NotServedError, match="does not serve request 900001") as raised:
        await backlog.units(QUEUE, 0)
    assert (raised.value.code, raised.value.request_code, raised.value.address) == (3, 900_001, "a:10911")
    with pytest.raises(NotServedError, match="900002"):
        await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 0)])


async def test_missing_brokers_and_topics(backlog, transport, cluster):
    with pytest.raises(BrokerUnavailableError, match="broker zzz"):
        await backlog.first_unconsumed("zzz", [])
    cluster.registered["slaves"] = BrokerData("C", "slaves", {1: "s:1"})
    with pytest.raises(BrokerUnavailableError, match="broker slaves"):
        await backlog.committed_offsets("slaves")
    with pytest.raises(NoRouteError):
        await backlog.units(MessageQueue("Nobody", "a", 0), 0)
    transport.down("a:10911")
    with pytest.raises(ConnectionFailedError):
        await backlog.first_unconsumed("a", [FirstUnconsumedQuery("T", 0, 0)])


async def test_committed_offsets_by_group(backlog, broker):
    table = {"T@g": {0: 5, 1: 6}, "U@g": {0: 1}, "T@h": {}, "nonsense": {0: 1}}
    body = bodies.ConsumerOffsetWrapper(table).encode()
    broker(RequestCode.GET_ALL_CONSUMER_OFFSET, lambda request: ok(request, body=body))
    assert await backlog.committed_offsets("a") == {"g": {"T": {0: 5, 1: 6}, "U": {0: 1}}, "h": {"T": {}}}


async def test_queue_states_of_our_brokers_in_one_request(backlog, broker, transport):
    states = [QueueState(queue_id=0, max_offset=4, committed_offset=2)]
    body = QueueStates(broker_name="a", queues=states).encode()
    broker(RequestCode.GANTRY_QUEUE_STATES, lambda request: ok(request, body=body))
    assert await backlog.queue_states("T", "a") == states
    assert await backlog.queue_states_at("a:10911", "T", "g") == states
    headers = [
        QueueStatesHeader.from_ext(request.ext_fields) for request in transport.sent(RequestCode.GANTRY_QUEUE_STATES)
    ]
    assert [header.consumer_group for header in headers] == [None, "g"]
    broker(RequestCode.GANTRY_QUEUE_STATES, refuse(17))
    with pytest.raises(BrokerError, match="TOPIC_NOT_EXIST"):
        await backlog.queue_states("T", "a")


async def test_queue_states_of_other_brokers_have_the_known_fields(backlog, broker):
    offsets = {
        MessageQueue("T", "a", 1): bodies.TopicOffset(),
        MessageQueue("T", "a", 0): bodies.TopicOffset(min_offset=1, max_offset=4, last_update_timestamp=77),
    }
    body = bodies.TopicStatsTable(offsets).encode()
    broker(RequestCode.GET_TOPIC_STATS_INFO, lambda request: ok(request, body=body))
    broker(RequestCode.QUERY_CONSUMER_OFFSET, lambda request: ok(request, ext={"offset": "3"}))
    first, second = await backlog.queue_states("T", "a")
    assert first == QueueState(queue_id=0, min_offset=1, max_offset=4, last_stored_at=77)
    assert second == QueueState(queue_id=1)
    assert [state.committed_offset for state in await backlog.queue_states_at("a:10911", "T", "g")] == [3, 3]
