"""Gathering facts: every search is bounded, and a broker that does not answer is asked once and named."""

from contextlib import contextmanager

import pytest

from gantry.model.names import TRACE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantry.model.record import encode_message
from gantry.remoting.bodies import ConsumerConnection, GroupList
from gantry.remoting.bodies.pop import TakenMessage, TakenMessages, TakenQuery
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import ProblemError
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.lives import gathering
from services.gateway.usecases.lives.gathering import GROUPS_MAX, Lives
from services.gateway.usecases.lives.groupfacts import GroupReader
from services.gateway.usecases.lives.missing import SAME_ID_MAX
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.lookup import Lookup
from tests.support.scriptedpeer import ok, refuse
from tests.unit.services.gateway.usecases.lives.test_life import copy

QUERY, WHO = RequestCode.QUERY_MESSAGE, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
SUB = "SubBefore\x012000\x01R\x01traced\x01R1\x01M\x010\x01null\x02"


class Caller:
    key_id = "k"

    def require_presence(self):
        pass

    def require_room(self):
        pass

    @contextmanager
    def waiting(self):
        yield

    async def take_turn(self):
        pass


class Brokers:
    """Brokers a and b; each answers queries for the records that it has by topic, and names its groups."""

    def __init__(self, cluster, transport):
        self.cluster, self.transport = cluster, transport
        self.records = {"a": {}, "b": {}}
        self.groups = []
        for topic in ("T", TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            cluster.topic(topic, "a", "b")
        for name in ("a", "b"):
            transport.at(
                f"{name}:10911",
                {
                    QUERY: lambda request, name=name: self.query(request, name),
                    WHO: lambda request: ok(request, body=GroupList(group_list=self.groups).encode()),
                    RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda request: ok(
                        request, body=ConsumerConnection().encode()
                    ),
                    RequestCode.GANTRY_QUEUE_STATES: lambda request, name=name: ok(
                        request,
                        body=QueueStates(
                            broker_name=name, queues=[QueueState(queue_id=0, committed_offset=8, max_offset=9)]
                        ).encode(),
                    ),
                },
            )

    def put(self, broker, *copies):
        for one in copies:
            self.records[broker].setdefault(one.record.topic, []).append(
                encode_message(one.record, whole_record_crc=True)
            )

    def query(self, request, name):
        found = self.records[name].get(request.ext_fields["topic"], [])
        return ok(request, body=b"".join(found)) if found else refuse(ResponseCode.QUERY_NOT_FOUND)(request)


@pytest.fixture
def two(cluster, transport) -> Brokers:
    return Brokers(cluster, transport)


@pytest.fixture
def lives(engine, brokers, reader, metrics, topics, clock) -> Lives:
    lookup = Lookup(engine, brokers, reader, metrics, topics=topics)
    metadata = Metadata(None)
    groups = GroupReader(
        brokers, lookup, reader, Consumers(engine, brokers, metadata, clock=clock), metadata, engine=engine
    )
    return Lives(engine, brokers, lookup, groups)


async def life_of(lives, wanted="M", topic="T", may_see=lambda group: True):
    facts, missing = await lives.find(wanted, topic, Caller())
    return await lives.tell(facts, missing, Caller(), may_see=may_see)


async def test_copies_and_groups_are_found(lives, two):
    two.put("a", copy(), copy("%DLQ%dying", 3_000, 0, RETRY_TOPIC="T"))
    two.groups = ["dying", "done", "CID_RMQ_SYS_TRANS"]
    life = await life_of(lives)
    assert [event.kind for event in life.events] == ["stored", "dead"]
    assert {one.group: one.state for one in life.groups} == {"dying": "dead", "done": "consumed"}
    assert any("Postgres is unavailable" in text for text in life.missing)
    assert any(f"no trace data in {TRACE_TOPIC}" in text for text in life.missing)


async def test_what_is_taken_with_receipts_is_asked_of_the_brokers_that_have_records(lives, two, transport):
    asked = []

    def taken(request):
        query = TakenQuery.decode(request.body_bytes)
        asked.append((query.consumer_group, query.topic, [(place.queue_id, place.offset) for place in query.places]))
        one = TakenMessage(queue_id=0, offset=7, taken_at=2_000, visible_at=62_000)
        return ok(request, body=TakenMessages(messages=[one]).encode())

    transport.at("a:10911", {RequestCode.GANTRY_TAKEN_MESSAGES: taken})
    two.put("a", copy())
    two.groups = ["g"]
    life = await life_of(lives)
    assert asked == [("g", "T", [(0, 7)])]
    assert [(one.state, one.since_ms) for one in life.groups] == [("in_flight", 2_000)]
    transport.at("a:10911", {RequestCode.GANTRY_TAKEN_MESSAGES: refuse(ResponseCode.SYSTEM_BUSY)})
    life = await life_of(lives)
    assert [one.state for one in life.groups] == ["consumed"]
    assert any("broker a does not tell what group g has taken" in text for text in life.missing)


async def test_a_broker_of_rocketmq_does_not_know_what_is_taken(lives, two):
    two.put("a", copy())
    two.groups = ["g"]
    life = await life_of(lives)
    assert [one.state for one in life.groups] == ["consumed"]
    assert not any("taken" in text for text in life.missing)


async def test_copies_of_another_topic_with_the_same_id_are_left_out(lives, two):
    two.put("a", copy(), copy("%DLQ%g", 3_000, 0, RETRY_TOPIC="OTHER"), copy(TRANS_HALF_TOPIC, REAL_TOPIC="OTHER"))
    two.groups = ["g"]
    life = await life_of(lives)
    assert ([event.kind for event in life.events], life.groups[0].state) == (["stored"], "consumed")


@pytest.mark.parametrize("separator", ["_", "+"])
async def test_retries_of_a_group_that_pulls_with_receipts_are_found(lives, two, separator):
    retry = f"%RETRY%g{separator}T"
    popped = {"RETRY_TOPIC": "T", "1ST_POP_TIME": "900"}
    letter = copy("%DLQ%g", 3_000, 0, **popped)
    redriven = copy(retry, 4_000, 9, RETRY_TOPIC="T", GANTRY_REDRIVEN_FROM=letter.record.stored_id)
    two.put("a", copy(), copy(retry, 2_000, 7, tries=1, **popped), letter, redriven)
    two.groups = ["g"]
    life = await life_of(lives)
    kinds = [(event.kind, event.group, event.attempt) for event in life.events]
    assert kinds == [
        ("stored", None, None), ("retry_due", "g", 2), ("dead", "g", None), ("redriven", "g", None), ("retry_due", "g", 1),
    ]  # fmt: skip
    assert [one.state for one in life.groups] == ["retrying"]


async def test_retries_of_another_group_whose_topic_has_the_same_name_are_left_out(lives, two):
    two.put("a", copy(), copy("%RETRY%g_T", 2_000, 0, RETRY_TOPIC="T"))
    two.groups = ["g", "g_T"]
    life = await life_of(lives)
    assert [(event.kind, event.group) for event in life.events] == [("stored", None), ("retry_due", "g_T")]


async def test_traces_add_their_groups(lives, two):
    two.put("a", copy())
    trace = copy(TRACE_TOPIC, 5_000, 0, KEYS="M other", UNIQ_KEY="X")
    two.put("b", trace._replace(record=trace.record._replace(body=SUB.encode() + b"bad\x02")))
    life = await life_of(lives)
    assert [(event.kind, event.group) for event in life.events] == [("stored", None), ("delivered", "traced")]
    assert [one.group for one in life.groups] == ["traced"]
    assert any("1 records of the trace message" in text for text in life.missing)


async def test_groups_that_the_key_may_not_see_are_counted(lives, two):
    two.put("a", copy(), copy("%DLQ%hidden", 3_000, 0, RETRY_TOPIC="T"))
    two.groups = ["hidden", "seen"]
    life = await life_of(lives, may_see=lambda group: group == "seen")
    assert [one.group for one in life.groups] == ["seen"]
    assert [event.kind for event in life.events] == ["stored"]
    assert "1 groups are left out: the key may not see them" in life.missing


async def test_groups_beyond_the_limit_are_named(lives, two):
    two.put("a", copy())
    two.groups = [f"g{number:03}" for number in range(GROUPS_MAX + 2)]
    life = await life_of(lives)
    assert len(life.groups) == GROUPS_MAX
    assert "2 groups were not asked about: g050, g051" in life.missing


async def test_a_search_that_reaches_its_limit_is_named(lives, two):
    two.put("a", *(copy(at_ms=1_000 + number, offset=number) for number in range(SAME_ID_MAX)))
    assert f"only the newest {SAME_ID_MAX} records of T on a were read" in (await life_of(lives)).missing


async def test_a_silent_broker_is_asked_once_and_named(lives, two, transport):
    two.put("a", copy())
    two.groups = [f"g{number}" for number in range(20)]
    transport.at("b:10911", {QUERY: lambda request: None})
    life = await life_of(lives)
    assert len(transport.sent(QUERY, "b:10911")) == 1
    assert {one.state for one in life.groups} == {"consumed"}
    assert len([text for text in life.missing if "what b knows about the message is missing" in text]) == 1


async def test_a_message_that_a_silent_broker_may_have_is_not_called_unknown(lives, two, transport):
    transport.at("b:10911", {QUERY: lambda request: None})
    with pytest.raises(ProblemError) as caught:
        await life_of(lives)
    assert caught.value.status == 503
    transport.at("b:10911", {QUERY: refuse(ResponseCode.QUERY_NOT_FOUND)})
    with pytest.raises(ProblemError) as caught:
        await life_of(lives)
    assert (caught.value.status, caught.value.kind.name) == (404, "unknown-message")


def pulled(*records, next_offset: int, max_offset: int):
    ext = {
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(max_offset),
        "suggestWhichBrokerId": "0",
    }
    return lambda request: ok(request, ext=ext, body=b"".join(records))


async def test_an_op_message_proves_a_rollback(lives, two, transport):
    two.put("a", copy(TRANS_HALF_TOPIC, REAL_TOPIC="T", PGROUP="pg"))
    op = copy(TRANS_OP_HALF_TOPIC, 4_000, 3, TAGS="d")
    record = encode_message(op.record._replace(body=b"6,7,"), whole_record_crc=True)
    search = {RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: ok(request, ext={"offset": "3"})}
    transport.at("a:10911", {**search, RequestCode.PULL_MESSAGE: pulled(record, next_offset=4, max_offset=4)})
    life = await life_of(lives)
    assert [(event.kind, event.at_ms) for event in life.events] == [("half", 1_000), ("rolled_back", 4_000)]


async def test_the_search_for_op_messages_is_bounded(lives, two, transport, monkeypatch):
    monkeypatch.setattr(gathering, "OPS_MAX", 2)
    two.put("a", copy(TRANS_HALF_TOPIC, REAL_TOPIC="T", PGROUP="pg"))
    op = encode_message(
        copy(TRANS_OP_HALF_TOPIC, 4_000, 3, TAGS="d").record._replace(body=b"1,"), whole_record_crc=True
    )

    def pull(request):
        offset = int(request.ext_fields["queueOffset"])
        return pulled(op, next_offset=offset + 1, max_offset=1_000)(request)

    search = {RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: ok(request, ext={"offset": "3"})}
    transport.at("a:10911", {**search, RequestCode.PULL_MESSAGE: pull})
    life = await life_of(lives)
    assert [event.kind for event in life.events] == ["half"]
    assert any("only 2 op messages were read" in text for text in life.missing)
    assert len(transport.sent(RequestCode.PULL_MESSAGE)) == 2
