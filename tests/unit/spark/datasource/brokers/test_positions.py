"""The results of one look at the brokers, and the reasons for missing results."""

import dataclasses

import pytest
from pyspark.sql.datasource import EqualTo

from gantry.model.group import SubscriptionGroup, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ClientConnection, ConsumerConnection, TopicOffset, TopicStatsTable
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedResult, FirstUnconsumedResults
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.resets import MadeReset, MadeResets, MovedQueue
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.reset import AllOffsetsResponseHeader
from spark.datasource.brokers import survey as surveys
from spark.datasource.brokers.metadata import Metadata
from spark.datasource.brokers.positions import GroupPosition, find_positions
from spark.datasource.brokers.survey import SurveyError, skew_of, survey_brokers
from spark.datasource.filters import GroupFilter
from spark.datasource.kinds.offsets import EXACT, offsets_row
from spark.datasource.kinds.survey import facts_of
from spark.datasource.options import Options
from spark.datasource.pushdown import Pushed, push_down
from tests.support.scriptedpeer import in_turn, ok, refuse
from tests.support.surveyed import SurveyedBroker

OPTIONS = Options("offsets", namesrv=("ns:1",))


@pytest.fixture
def a(cluster) -> SurveyedBroker:
    """Holds T with two queues; g has consumed half of one."""
    broker = SurveyedBroker(cluster, "a", {"T": 2})
    broker.ends = {("T", 0): (2, 10), ("T", 1): (0, 3)}
    broker.commit("g", "T", 0, 6)
    return broker


@pytest.fixture
def b(cluster, a) -> SurveyedBroker:
    """Holds T with one queue, which g has consumed completely."""
    broker = SurveyedBroker(cluster, "b", {"T": 1})
    broker.ends = {("T", 0): (0, 4)}
    broker.commit("g", "T", 0, 4)
    return broker


async def offsets(engine, *filters, options: Options = OPTIONS) -> list[tuple]:
    pushed, left = push_down(list(filters), exact=EXACT)
    assert left == []
    return [offsets_row(position) for position in (await find_positions(engine, options, pushed)).positions]


async def test_a_survey_has_the_latest_reset_of_each_queue_within_the_last_hour(engine, a, b):
    now = engine.clock.now_ms()
    queues = [MovedQueue(queue_id=0, from_offset=9, offset=6), MovedQueue(queue_id=1, from_offset=None, offset=0)]
    made = [MadeReset(epoch=now - 5, topic="T", group="g", queues=queues)]
    # It came while the numbers were read, so they may not show it.
    made.append(MadeReset(epoch=now + 9, topic="T", group="g", queues=queues))
    asked = []

    def listed(request):
        asked.append(int(request.ext_fields["afterEpoch"]))
        return ok(request, body=MadeResets(resets=made).encode())

    def table(request):
        header = AllOffsetsResponseHeader(gantry_reset_epoch=now - 9, gantry_reset_epoch_end=now - 5)
        return ok(request, ext=header.to_ext(), body=ConsumerOffsetWrapper(offset_table=a.committed).encode())

    a.does({RequestCode.GET_ALL_CONSUMER_OFFSET: table, RequestCode.GANTRY_RESETS: listed})
    facts = facts_of(await find_positions(engine, OPTIONS, push_down([], exact=EXACT)[0]))
    found = {key[2:]: (row["reset_epoch"], row["reset_messages"]) for key, row in facts.items()}
    assert found == {("a", 0): (now - 5, -3), ("a", 1): (now - 5, None), ("b", 0): (None, None)}
    (after,) = asked
    assert now <= after + surveys.RESETS_MS <= engine.clock.now_ms()


async def test_all_queues_of_a_consumed_topic_have_a_row(engine, a, b):
    assert await offsets(engine) == [
        ("g", "T", "a", 0, 2, 10, 6, 4, None),
        ("g", "T", "a", 1, 0, 3, None, None, None),
        ("g", "T", "b", 0, 0, 4, 4, 0, None),
    ]
    assert await offsets(engine, EqualTo(("broker",), "b")) == [("g", "T", "b", 0, 0, 4, 4, 0, None)]
    assert await offsets(engine, options=dataclasses.replace(OPTIONS, groups=("h",))) == []


@pytest.mark.parametrize(
    ("committed", "lag", "reason"),
    [
        (1, 8, "is before the first one that can be read, 2: 1 messages were deleted before the group consumed them"),
        (11, None, "the committed offset 11 is beyond the end of the queue, 10"),
        (2, 8, None),
        (10, 0, None),
    ],
)
def test_a_commit_outside_of_the_queue_is_reported(committed, lag, reason):
    position = GroupPosition("g", "T", "a", 0, 2, 10, committed)
    assert position.lag == lag
    assert position.remark == reason or (reason and position.remark.endswith(reason))


async def test_numbers_are_of_one_moment_however_long_the_names_took(engine, a, b, transport):
    """g commits while its connections are requested: the commit at the time of the queues' ends is used."""
    transport.latency_s.update({a.address: 0.5, b.address: 4.0})

    def connected(request):
        a.commit("g", "T", 0, 9)
        return refuse(ResponseCode.CONSUMER_NOT_ONLINE)(request)

    a.does({RequestCode.GET_CONSUMER_CONNECTION_LIST: connected})
    began_ms = engine.clock.now_ms()
    found = await find_positions(engine, OPTIONS, Pushed())
    assert offsets_row(found.positions[0])[6:8] == (9, 1)
    views = found.survey.views
    # The names took four requests to the slow broker; then each broker gave its numbers in two requests.
    asked_ms = views["a"].read_at_ms - 2 * 500
    assert 16_000 <= asked_ms - began_ms < 16_100
    assert views["b"].read_at_ms == asked_ms + 2 * 4_000


async def test_a_slow_answer_is_no_skew(engine, a, b, transport):
    for broker, ahead_ms in ((a, 0), (b, 7_000)):
        broker.does(
            {RequestCode.GANTRY_FIRST_UNCONSUMED: heads_at(lambda ahead_ms=ahead_ms: engine.clock.now_ms() + ahead_ms)}
        )
    transport.latency_s.update({a.address: 4.0, b.address: 4.0})
    views = (await find_positions(engine, OPTIONS, Pushed())).survey.views
    assert (views["a"].clock_skew_ms, views["b"].clock_skew_ms) == (0, 7_000)
    assert skew_of(500, asked_ms=1_000, answered_ms=5_000) == -500


async def test_a_broker_that_gives_no_numbers_has_no_moment(engine, a, b):
    a.does({RequestCode.GANTRY_QUEUE_STATES: lambda request: None})
    views = (await find_positions(engine, OPTIONS, Pushed())).survey.views
    assert views["a"].read_at_ms is None
    assert views["b"].read_at_ms is not None
    assert views["b"].clock_skew_ms is None, "the broker does not support the request"


def heads_at(now):
    """Answer only with the time."""

    def answer(request):
        heads = [
            FirstUnconsumedResult(min_offset=0, max_offset=0, scanned_to=0)
            for _ in FirstUnconsumedQueries.decode(request.body_bytes).queries
        ]
        return ok(request, body=FirstUnconsumedResults(broker_name="", heads=heads, now_ms=now()).encode())

    return answer


async def test_a_broker_that_is_away_costs_only_its_own_numbers(engine, a, b, transport):
    transport.down(b.address)
    *of_a, of_b = await offsets(engine)
    assert [row[7:] for row in of_a] == [(4, None), (None, None)]
    assert of_b[:8] == ("g", "T", "b", 0, None, None, None, None)
    assert of_b[8] == "broker b: b:10911: connection refused"
    transport.down(a.address)
    with pytest.raises(SurveyError, match="broker a: a:10911: connection refused; broker b"):
        await offsets(engine)


async def test_a_broker_that_is_lost_half_way_costs_only_its_own_numbers(engine, a, b):
    a.does({RequestCode.GANTRY_QUEUE_STATES: lambda request: None})
    first, second, of_b = await offsets(engine)
    assert first[:8] == ("g", "T", "a", 0, None, None, 6, None)
    assert (second[3], of_b[7]) == (1, 0)
    assert "no answer in time" in first[8]


async def test_a_topic_deleted_meanwhile_is_reported_for_each_of_its_queues(engine, a):
    gone = refuse(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")
    a.does({RequestCode.GANTRY_QUEUE_STATES: gone})
    found = await offsets(engine)
    assert [row[:8] for row in found] == [
        ("g", "T", "a", 0, None, None, 6, None),
        ("g", "T", "a", 1, None, None, None, None),
    ]
    assert all("topic[T] not exist" in row[8] for row in found)
    del a.topics["T"]  # A topic that was deleted before the look has nothing to consume.
    assert await offsets(engine) == []


async def test_an_unauthorised_key_is_reported(engine, a, b):
    a.does({RequestCode.GET_ALL_CONSUMER_OFFSET: refuse(ResponseCode.NO_PERMISSION, "no right")})
    found = await offsets(engine)
    assert {row[2]: row[8] for row in found} == {
        "a": "broker a: a:10911 answered 16 (NO_PERMISSION): no right",
        "b": None,
    }


async def test_a_broker_of_rocketmq_is_asked_only_requests_it_supports(engine, a):
    table = {MessageQueue("T", "a", number): TopicOffset(min_offset=1, max_offset=7) for number in range(3)}
    body = TopicStatsTable(table, 0.0).encode()
    a.does(
        {
            RequestCode.GANTRY_QUEUE_STATES: refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            RequestCode.GET_TOPIC_STATS_INFO: lambda request: ok(request, body=body),
        }
    )
    # The third queue is write-only.
    assert [row[3:8] for row in await offsets(engine)] == [(0, 1, 7, 6, 1), (1, 1, 7, None, None)]


async def test_a_group_that_subscribes_without_a_commit_is_found(engine, a, b):
    subscription = parse_tag_expression("T", "A", 5)
    connection = ConsumerConnection(
        (ClientConnection(client_addr="1:1", client_id="1@1"),), {"T": subscription, "Missing": subscription}
    )
    b.groups["new"] = SubscriptionGroup("new")
    b.connections["new"] = connection
    found = await find_positions(engine, OPTIONS, Pushed())
    assert {(one.broker, one.queue_id) for one in found.positions if one.group == "new"} == {
        ("a", 0),
        ("a", 1),
        ("b", 0),
    }
    assert found.survey.filter("new", "T") == GroupFilter.of_subscription(subscription)
    assert found.survey.filter("g", "T") is None


async def test_an_unknown_filter_is_not_taken_for_everything(engine, a, b):
    a.does({RequestCode.GET_CONSUMER_CONNECTION_LIST: refuse(ResponseCode.NO_PERMISSION, "no right")})
    survey = await survey_brokers(engine, OPTIONS, Pushed())
    known = survey.filter("g", "T")
    assert known is not None
    assert known.error == "the group's filter is unknown: broker a: a:10911 answered 16 (NO_PERMISSION): no right"
    survey.metadata = Metadata(has_database=True, filters={"g": {"T": GroupFilter.of_expression("TAG", "B")}})
    assert survey.filter("g", "T").expression == "B"


async def test_system_topics_and_groups_are_left_out_unless_asked_for(engine, cluster):
    broker = SurveyedBroker(cluster, "a", {"T": 1, "SCHEDULE_TOPIC_XXXX": 1, "a": 1})
    for group in ("g", "TOOLS_CONSUMER"):
        for topic in broker.topics:
            broker.commit(group, topic, 0, 0)
    assert [row[:2] for row in await offsets(engine)] == [("g", "T")]
    every = await offsets(engine, options=dataclasses.replace(OPTIONS, include_system=True))
    assert len(every) == 6


async def test_requests_to_a_broker_are_limited_and_end_with_the_survey(engine, a):
    for number in range(200):
        a.groups[f"g{number}"] = SubscriptionGroup(f"g{number}")
    a.does({RequestCode.GET_CONSUMER_CONNECTION_LIST: in_turn(*[lambda request: None] * 500)})
    survey = await survey_brokers(engine, OPTIONS, Pushed())
    asked = engine.transport.sent(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    assert len(asked) <= surveys.REQUESTS_MAX
    assert all(isinstance(answer, str) for answer in survey.views["a"].instances.values())
    assert len(survey.views["a"].instances) == 201
