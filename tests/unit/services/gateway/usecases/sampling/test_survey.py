"""Surveys of brokers for samples: which brokers are asked, which requests are repeated, and how failures are handled."""

import asyncio
from collections import defaultdict

import pytest

from gantry.client.backlog import Backlog
from gantry.model.message import MessageQueue
from gantry.model.sampleblock import Kind
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import ConsumerOffsetWrapper, TopicConfigSerializeWrapper
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedResult, FirstUnconsumedResults
from gantry.remoting.bodies.resets import MadeReset, MadeResets, MovedQueue
from gantry.remoting.bodies.stats import TopicOffset, TopicStatsTable
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.reset import AllOffsetsResponseHeader
from gantry.runtime.workers import InlineWorker
from services.gateway.errors import BROKER_UNAVAILABLE, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.configs.kinds import TopicKind
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.sampling import searches, survey
from services.gateway.usecases.sampling.blocks import STATE_EVERY_MS, BlockWriter
from services.gateway.usecases.sampling.lagseries import LagSeries
from services.gateway.usecases.sampling.retention import SampleRetention
from services.gateway.usecases.sampling.rounds import HEAD_KEPT_MS, UNSEARCHABLE, Filter
from services.gateway.usecases.sampling.sampler import Sampler
from services.gateway.usecases.sampling.survey import SampleSurvey, Subscribed
from tests.support.scriptedpeer import ok, refuse

NOBODY = Subscribed({}, frozenset())


class Broker:
    """A broker whose queues hold messages with tags codes, stored at 1,000 times their offset."""

    def __init__(self, name, transport):
        self.name = name
        self.codes = defaultdict(list)
        self.committed = {}
        self.searched = []
        self.sql_max = 100  # The limit for messages to which a request applies SQL filters.
        self.topics = {}
        transport.at(
            f"{name}:10911",
            {
                RequestCode.GET_ALL_CONSUMER_OFFSET: self.offsets,
                RequestCode.GET_ALL_TOPIC_CONFIG: self.configs,
                RequestCode.GANTRY_FIRST_UNCONSUMED: self.heads,
            },
        )

    def topic(self, name, queues, codes):
        self.topics[name] = TopicConfig(name, queues, queues)
        self.codes[name, 0] = list(codes)

    def offsets(self, request):
        return ok(request, body=ConsumerOffsetWrapper(offset_table=self.committed).encode())

    def configs(self, request):
        return ok(request, body=TopicConfigSerializeWrapper(topic_config_table=self.topics).encode())

    def heads(self, request):
        self.sql_left = self.sql_max
        heads = [self.head(query) for query in FirstUnconsumedQueries.decode(request.body_bytes).queries]
        body = FirstUnconsumedResults(applies_sql=True, broker_name=self.name, heads=heads, now_ms=1)
        return ok(request, body=body.encode())

    def head(self, query):
        codes = self.codes[query.topic, query.queue_id]
        if query.offset < 2**60:
            self.searched.append((query.topic, query.queue_id, query.offset))
        end = len(codes)
        for at in range(query.offset, end):
            if query.sql is not None:
                if self.sql_left == 0:
                    return FirstUnconsumedResult(min_offset=0, max_offset=end, scanned_to=at)
                self.sql_left -= 1
                if f"code = {codes[at]}" not in query.sql:
                    continue
            if query.tags_codes is None or codes[at] in query.tags_codes:
                return FirstUnconsumedResult(
                    min_offset=0, max_offset=end, scanned_to=at, queue_offset=at, stored_at=at * 1_000
                )
        return FirstUnconsumedResult(min_offset=0, max_offset=end, scanned_to=max(end, query.offset))


@pytest.fixture
def broker(cluster, transport):
    cluster.topic("T", "a")
    made = Broker("a", transport)
    made.topic("T", 2, [7, 7, 8])
    made.committed["T@G"] = {0: 1}
    return made


class Connected:
    """Returns for which topics a group has connected consumers; None for an unknown group."""

    def __init__(self):
        self.topics = {}
        self.asked = []
        self.consumed = set()

    def has_consumed(self, group, topic):
        return (group, topic) in self.consumed

    async def __call__(self, group):
        self.asked.append(group)
        found = self.topics.get(group, ())
        if isinstance(found, Exception):
            raise found
        if found == "hangs":
            await asyncio.sleep(60)
        return found


@pytest.fixture
def connected():
    return Connected()


@pytest.fixture
def look(engine, brokers, metrics, connected, clock):
    backlog, topics = Backlog(engine), TopicKind(engine)
    return SampleSurvey(
        *(backlog, topics, brokers, metrics), connected=connected, has_consumed=connected.has_consumed, clock=clock
    )


@pytest.fixture
def see(look, brokers):
    async def see(subscribed=NOBODY, thorough=None):
        samples, missing = await look.survey(await brokers.sets(fresh=True), subscribed, thorough=thorough)
        figures = {
            (sample.group, sample.topic, sample.broker): (
                sample.max_offsets,
                sample.committed_offsets,
                sample.first_stored_at_ms,
            )
            for sample in samples
        }
        return figures, missing

    return see


async def test_known_first_messages_are_not_searched_again(broker, see):
    seen = ({("G", "T", "a"): ((3, 0), (1, None), (1_000, None))}, [])
    assert await see() == seen
    assert await see() == seen
    broker.codes["T", 0].append(9)
    assert (await see())[0]["G", "T", "a"] == ((4, 0), (1, None), (1_000, None))
    assert broker.searched == [("T", 0, 1)]
    broker.committed["T@G"] = {0: 2}
    assert (await see())[0]["G", "T", "a"][2] == (2_000, None)
    broker.committed["T@G"] = {0: 4}
    assert (await see())[0]["G", "T", "a"][2] == (None, None)
    assert broker.searched == [("T", 0, 1), ("T", 0, 2)]


async def test_the_filter_decides_and_an_unknown_one_gives_no_result(broker, see):
    pair = ("G", "T")
    assert (await see(Subscribed({pair: Filter((8,))}, frozenset())))[0]["G", "T", "a"][2] == (2_000, None)
    assert (await see(Subscribed({pair: Filter((5,))}, frozenset())))[0]["G", "T", "a"][2] == (None, None)
    broker.codes["T", 0] += [5]
    assert (await see(Subscribed({pair: Filter((5,))}, frozenset())))[0]["G", "T", "a"][2] == (3_000, None)
    assert broker.searched == [("T", 0, 1), ("T", 0, 1), ("T", 0, 3)]
    assert (await see(Subscribed({pair: UNSEARCHABLE}, frozenset())))[0]["G", "T", "a"][2] == (None, None)


@pytest.fixture
def served(look, brokers):
    async def served(subscribed=NOBODY):
        samples, _ = await look.survey(await brokers.sets(fresh=True), subscribed)
        return {sample.topic: sample.is_served for sample in samples if sample.group == "G"}

    return served


async def test_connections_are_requested_after_a_large_jump_of_commits(broker, connected, served):
    assert await served() == {"T": None}, "at the first survey it is unknown who committed"
    broker.committed["T@G"] = {0: 1_000}
    assert await served() == {"T": None}
    assert connected.asked == []
    broker.committed["T@G"] = {0: 2_000, 1: 5_000}
    assert await served() == {"T": False}
    # A commit that does not move keeps its state, even if a client connects.
    connected.topics["G"] = {"OTHER", "T"}
    assert await served() == {"T": False}
    broker.committed["T@G"] = {0: 3_000, 1: 5_000}
    assert await served() == {"T": True}
    broker.committed["T@G"] = {0: 4_000, 1: 5_000}
    connected.topics["G"] = {"OTHER"}
    assert await served() == {"T": False}
    assert connected.asked == ["G"] * 3
    # A small step needs no explanation.
    broker.committed["T@G"] = {0: 4_999, 1: 5_000}
    assert await served() == {"T": None}
    # A rewound group has not consumed anything.
    broker.committed["T@G"] = {0: 0, 1: 5_000}
    assert await served() == {"T": None}
    assert connected.asked == ["G"] * 3


@pytest.mark.parametrize("answer", [None, ProblemError(BROKER_UNAVAILABLE, "nobody is known"), "hangs"])
async def test_connections_are_unknown_without_an_answer(broker, connected, served, answer):
    await served()
    broker.committed["T@G"] = {0: 1_001}
    connected.topics["G"] = answer
    assert await served() == {"T": None}
    assert connected.asked == ["G"]


async def test_clients_connected_recently_may_have_consumed(broker, connected, served):
    pairs = frozenset({("G", "T")})
    # Postgres may not know yet that the clients have left.
    for number, subscribed in enumerate((Subscribed({}, frozenset(), pairs), Subscribed({}, pairs, pairs))):
        await served(subscribed)
        broker.committed["T@G"] = {0: 1_001 + number * 1_000}
        assert await served(subscribed) == {"T": None}
    assert connected.asked == ["G"] * 2
    connected.topics["G"] = {"T"}
    broker.committed["T@G"] = {0: 9_000}
    assert await served(subscribed) == {"T": True}


async def test_a_group_that_consumed_through_this_gateway_and_left_was_served(broker, connected, served):
    await served()
    connected.consumed = {("G", "T")}
    broker.committed["T@G"] = {0: 5_000}
    assert await served() == {"T": True}
    assert connected.asked == []
    connected.consumed = {("G", "OTHER"), ("OTHER", "T")}
    broker.committed["T@G"] = {0: 9_000}
    assert await served() == {"T": False}


async def test_the_number_of_groups_whose_connections_are_requested_is_limited(broker, connected, served, monkeypatch):
    monkeypatch.setattr(survey, "GROUPS_ASKED_MAX", 2)
    broker.topic("U", 1, [])
    keys = [f"{topic}@{group}" for topic in "TU" for group in ("G", "H", "I")]
    broker.committed |= {key: {0: 1} for key in keys}
    await served()
    broker.committed |= {key: {0: 5_001} for key in keys}
    assert await served() == {"T": False, "U": False}
    assert sorted(connected.asked) == ["G", "H"]
    # Groups without a known connection come first.
    broker.committed |= {key: {0: 9_001} for key in keys}
    assert await served(Subscribed({}, frozenset({("G", "T")}))) == {"T": None, "U": None}
    assert sorted(connected.asked) == ["G", "H", "H", "I"]


async def test_system_and_deleted_topics_are_left_out(broker, see):
    broker.topic("TBW102", 1, [])
    broker.topic("a", 1, [])
    broker.topic("%RETRY%G", 1, [7])
    offsets = ("T@TOOLS_CONSUMER", "TBW102@G", "a@G", "%RETRY%G@G", "DELETED@G")
    broker.committed |= {key: {0: 0} for key in offsets}
    active = frozenset({("H", "T"), ("H", "ELSEWHERE")})
    figures, _ = await see(Subscribed({}, active))
    assert sorted(figures) == [("G", "%RETRY%G", "a"), ("G", "T", "a"), ("H", "T", "a")]
    assert figures["H", "T", "a"] == ((3, 0), (None, None), (None, None))


async def test_a_topic_without_a_group_is_sampled_by_itself(broker, look, brokers, see):
    broker.topic("ALONE", 2, [7, 7])
    figures, _ = await see()
    assert figures == {
        ("G", "T", "a"): ((3, 0), (1, None), (1_000, None)),
        (None, "ALONE", "a"): ((2, 0), (None, None), (None, None)),
    }
    assert broker.searched == [("T", 0, 1)]
    # Once a group consumes the topic, the group's samples contain the end of its queues.
    broker.committed["ALONE@G"] = {0: 2}
    assert sorted((await see())[0]) == [("G", "ALONE", "a"), ("G", "T", "a")]
    assert (None, "ALONE", "a") not in look.states


async def test_a_topic_without_a_group_is_written_after_a_change_and_every_few_minutes(broker, look, brokers):
    broker.topic("ALONE", 1, [7])
    del broker.committed["T@G"]
    writer = BlockWriter()

    async def due(now_ms):
        samples, _ = await look.survey(await brokers.sets(fresh=True), NOBODY)
        plan = writer.plan(samples, at_ms=now_ms, now_ms=now_ms)
        if plan is None:
            return []
        writer.keep(plan, now_ms=now_ms)
        return [plan.kind, plan.queues]

    assert await due(0) == [Kind.FULL, 3]
    assert await due(15_000) == []
    broker.codes["ALONE", 0].append(8)
    assert await due(30_000) == [Kind.CHANGES, 1]
    assert await due(STATE_EVERY_MS) == [Kind.STATE, 3]


async def test_a_pair_is_sampled_on_all_brokers_of_its_topic(broker, cluster, transport, see):
    cluster.topic("T", "a", "b")
    other = Broker("b", transport)
    other.topic("T", 1, [])
    seen = {("G", "T", "a"): ((3, 0), (1, None), (1_000, None)), ("G", "T", "b"): ((0,), (None,), (None,))}
    await see()
    assert await see() == (seen, []), "from the second look on, whichever broker answers first"
    # Another group, which commits on the other broker only.
    other.committed["T@H"] = {0: 0}
    await see()
    assert sorted((await see())[0]) == [("G", "T", "a"), ("G", "T", "b"), ("H", "T", "a"), ("H", "T", "b")]


async def test_commits_of_an_unreachable_broker_are_remembered(broker, cluster, transport, look, see):
    cluster.topic("T", "a", "b")
    other = Broker("b", transport)
    other.topic("T", 1, [])
    await see()
    transport.down("a:10911")
    assert await see() == ({("G", "T", "b"): ((0,), (None,), (None,))}, ["a"])
    # A new leader has no commits of earlier surveys.
    look.forget()
    assert await see() == ({(None, "T", "b"): ((0,), (None,), (None,))}, ["a"])


async def test_an_unreachable_broker_is_called_once_per_survey(broker, cluster, transport, see, metrics):
    cluster.topic("T", "a", "b")
    other = Broker("b", transport)
    other.topic("T", 1, [])
    transport.down("b:10911")
    assert (await see())[1] == ["b"]
    assert metrics.counters["sample_broker_failures"] == 1


async def test_a_silent_broker_is_missing_and_the_other_is_not(broker, cluster, transport, see, metrics):
    cluster.topic("T", "a", "b")
    transport.at("b:10911", {RequestCode.GET_ALL_CONSUMER_OFFSET: lambda request: None})
    figures, missing = await see()
    assert (list(figures), missing) == ([("G", "T", "a")], ["b"])
    assert metrics.counters["sample_broker_failures"] == 1
    transport.down("a:10911")
    assert await see() == ({}, ["a", "b"])


async def test_a_foreign_broker_is_sampled_without_times(broker, transport, see):
    table = TopicStatsTable({MessageQueue("T", "a", 1): TopicOffset(min_offset=2, max_offset=9)})
    transport.at(
        "a:10911",
        {
            RequestCode.GANTRY_FIRST_UNCONSUMED: refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            RequestCode.GET_TOPIC_STATS_INFO: lambda request: ok(request, body=table.encode()),
        },
    )
    broker.committed["T@G"] = {1: 4}
    assert await see() == ({("G", "T", "a"): ((9,), (4,), (None,))}, [])


async def test_a_search_that_takes_too_long_is_suspended_for_a_while(broker, transport, see, metrics, monkeypatch):
    monkeypatch.setattr(searches, "SEARCH_TIMEOUT_S", 0.5)

    def slow(request):
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        return None if any(query.offset < 2**60 for query in queries) else broker.heads(request)

    transport.at("a:10911", {RequestCode.GANTRY_FIRST_UNCONSUMED: slow})
    for _ in range(2):
        assert await see() == ({("G", "T", "a"): ((3, 0), (1, None), (None, None))}, [])
    assert metrics.counters["sample_searches_given_up"] == 1


async def test_first_messages_of_many_moving_groups_are_searched_in_turn(broker, see, metrics, monkeypatch):
    broker.topic("T", 2, [7] * 9)
    broker.codes["T", 1] = [7] * 9
    broker.committed |= {"T@G": {0: 1, 1: 2}, "T@H": {0: 3, 1: 3}}
    first, other = ("G", "T", "a"), ("H", "T", "a")
    await see()
    monkeypatch.setattr(survey, "SEARCHES_MAX", 1)
    broker.searched.clear()
    # The limit allows one queue.
    broker.committed["T@G"] = {0: 1, 1: 3}
    assert (await see(thorough=()))[0][first][2] == (1_000, 3_000)
    broker.committed["T@G"] = {0: 1, 1: 4}
    broker.committed["T@H"] = {0: 3, 1: 5}
    figures, _ = await see(thorough=())
    # The oldest one is unknown as long as one of them is unknown.
    assert (figures[first][2], figures[other][2]) == ((None, None), (None, None))
    assert broker.searched == [("T", 1, 3)]
    assert metrics.counters["sample_searches_put_off"] == 2
    figures, _ = await see(thorough={"a"})
    assert (figures[first][2], figures[other][2]) == ((1_000, 4_000), (3_000, 5_000))


async def test_groups_without_change_keep_their_first_message_beyond_the_limit(broker, see, monkeypatch, clock):
    monkeypatch.setattr(survey, "SEARCHES_MAX", 0)
    await see()
    await asyncio.sleep(HEAD_KEPT_MS / 1_000)
    assert (await see(thorough=()))[0]["G", "T", "a"][2] == (1_000, None)
    assert broker.searched == [("T", 0, 1)], "a new search would be due by now"


async def test_the_number_of_pairs_is_bounded(broker, see, metrics, monkeypatch):
    monkeypatch.setattr(survey, "PAIRS_MAX", 2)
    broker.committed |= {f"T@G{number}": {0: 0} for number in range(3)}
    assert len((await see())[0]) == 2
    assert metrics.counters["sample_pairs_left_out"] == 2


async def test_topics_without_a_group_are_left_out_first(broker, see, metrics, monkeypatch):
    monkeypatch.setattr(survey, "PAIRS_MAX", 1)
    broker.topic("ALONE", 1, [7])
    assert list((await see())[0]) == [("G", "T", "a")]
    assert metrics.counters["sample_pairs_left_out"] == 1


async def test_without_a_database_nothing_is_sampled(look, brokers, clock):
    metadata, metrics, worker = Metadata(None), GatewayMetrics(), InlineWorker()
    retention = SampleRetention(metadata, metrics, worker=worker, clock=clock, raw_hours=24, keep_days=90)
    series = LagSeries(series_max=9)
    sampler = Sampler(
        look,
        brokers,
        metadata,
        metrics,
        retention=retention,
        worker=worker,
        series=series,
        clock=clock,
        interval_ms=15_000,
    )
    await sampler.run()


async def test_numbers_have_the_time_at_which_their_broker_answered(broker, look, see, cluster, transport, clock):
    cluster.topic("T", "a", "slow")
    other = Broker("slow", transport)
    other.topic("T", 1, [7])
    transport.latency_s.update({"a:10911": 0.1, "slow:10911": 2.0})
    began_ms = clock.now_ms()
    _, missing = await see()
    assert missing == []
    # The order is topics, committed offsets, ends of the queues. Later searches add no numbers.
    assert look.read_at_ms["a"] - began_ms < 1_000
    assert 6_000 <= look.read_at_ms["slow"] - began_ms < 7_000


SQL = Subscribed({("G", "T"): Filter(sql="code = 8"), ("H", "T"): Filter(sql="code = 7")}, frozenset())


async def test_sql_filters_have_first_messages(broker, see):
    broker.committed["T@H"] = {0: 1}
    figures, _ = await see(SQL)
    assert figures["G", "T", "a"][2] == (2_000, None)
    assert figures["H", "T", "a"][2] == (1_000, None)
    broker.searched.clear()
    await see(SQL)
    assert broker.searched == [], "the messages are known"


async def test_a_search_for_an_sql_filter_continues_in_later_rounds(broker, look, brokers):
    broker.codes["T", 0] = [7] * 50
    broker.sql_max = 2
    filters = Subscribed({("G", "T"): Filter(sql="code = 8")}, frozenset())
    known, places = [], []
    for _ in range(5):
        broker.searched.clear()
        (sample,), _ = await look.survey(await brokers.sets(fresh=True), filters)
        known.append(sample.is_age_known)
        places.append([offset for _, _, offset in broker.searched])
    # Each round sends eight requests; each request examines two messages.
    assert places == [[*range(1, 17, 2)], [*range(17, 33, 2)], [*range(33, 49, 2)], [49], []]
    assert known == [False, False, False, True, True]


async def test_searches_for_sql_filters_take_turns(broker, see):
    broker.codes["T", 0] = [7] * 50
    broker.committed["T@H"] = {0: 1}
    broker.sql_max = 2
    await see(Subscribed({("G", "T"): Filter(sql="code = 8"), ("H", "T"): Filter(sql="code = 9")}, frozenset()))
    firsts = broker.searched[::2]
    assert firsts == [("T", 0, offset) for offset in (1, 1, 3, 3, 5, 5, 7, 7)]


class Resets:
    """The resets that a broker lists, one in each answer, and the epochs of its table of offsets."""

    def __init__(self, broker, transport):
        self._broker = broker
        self._resets = []
        self.begin = self.end = 0
        self.asked = []
        transport.at(
            "a:10911", {RequestCode.GET_ALL_CONSUMER_OFFSET: self.offsets, RequestCode.GANTRY_RESETS: self.listed}
        )

    def add(self, *epochs):
        queues = [MovedQueue(queue_id=0, from_offset=1, offset=3)]
        self._resets += [MadeReset(epoch=epoch, topic="T", group="G", queues=queues) for epoch in epochs]

    def offsets(self, request):
        header = AllOffsetsResponseHeader(gantry_reset_epoch=self.begin, gantry_reset_epoch_end=self.end)
        body = ConsumerOffsetWrapper(offset_table=self._broker.committed).encode()
        return ok(request, ext=header.to_ext(), body=body)

    def listed(self, request):
        self.asked.append(int(request.ext_fields["afterEpoch"]))
        later = [one for one in self._resets if one.epoch > self.asked[-1]]
        return ok(request, body=MadeResets(resets=later[:1], more=len(later) > 1).encode())


async def test_resets_since_the_survey_before_are_noted_and_unsettled_ones_twice(broker, look, see, transport):
    resets = Resets(broker, transport)
    await see()
    assert (resets.asked, look.resets, look.reset_epochs) == ([], {}, {"a": 0})
    resets.add(10, 20, 30, 40)
    # 30 came while the offsets were encoded, 40 after that.
    resets.begin, resets.end = 20, 30
    await see()
    assert [one.epoch for one in look.resets["a"]] == [10, 20, 30]
    resets.begin = resets.end = 40
    await see()
    assert [one.epoch for one in look.resets["a"]] == [30, 40]
    await see()
    assert look.resets == {}


async def test_a_gateway_that_begins_to_sample_notes_recent_resets(broker, look, see, transport, clock):
    resets = Resets(broker, transport)
    recent = clock.now_ms() - 60_000
    resets.add(clock.now_ms() - 3_600_000, recent)
    resets.begin = resets.end = recent
    await see()
    assert [one.epoch for one in look.resets["a"]] == [recent]
