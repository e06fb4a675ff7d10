"""A name without a route may still exist: the decision, and all calls that use it."""

import asyncio
import functools
from contextlib import nullcontext

import pytest

from gantry.client.errors import ClientError
from gantry.model.message import MessageQueue
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway import errors
from services.gateway.db.models import Topic
from services.gateway.errors import ProblemError
from services.gateway.schemas.outgoing import read_items, read_message
from services.gateway.turns import Turns
from services.gateway.usecases.configs.presence import Absence, Evidence, RowState, judge
from services.gateway.usecases.reading.lookup import Lookup
from tests.support.scriptedpeer import ok, refuse

TOPIC, QUERY = RequestCode.GET_TOPIC_CONFIG, RequestCode.QUERY_MESSAGE


@pytest.mark.parametrize(
    ("evidence", "absence"),
    [
        (Evidence(RowState.DELETING), Absence.NOT_FOUND),
        (Evidence(RowState.DELETING, has="a", answered="a"), Absence.NOT_FOUND),
        (Evidence(RowState.EXISTS), Absence.UNREGISTERED),
        (Evidence(RowState.EXISTS, answered="ab"), Absence.UNREGISTERED),
        (Evidence(RowState.NONE), Absence.UNDECIDED),
        (Evidence(RowState.UNAVAILABLE), Absence.UNDECIDED),
        (Evidence(RowState.NONE, silent="ab"), Absence.UNDECIDED),
        (Evidence(RowState.NONE, has="a", answered="ab"), Absence.HELD),
        (Evidence(RowState.UNAVAILABLE, has="a", answered="a", silent="b"), Absence.HELD),
        (Evidence(RowState.NONE, answered="a", silent="b", homes="b"), Absence.UNDECIDED),
        (Evidence(RowState.NONE, answered="a", silent="b"), Absence.NOT_FOUND),
        (Evidence(RowState.NONE, answered="a", homes="ab"), Absence.NOT_FOUND),
        (Evidence(RowState.NONE, answered="ab"), Absence.NOT_FOUND),
        (Evidence(RowState.UNAVAILABLE, answered="a", silent="b"), Absence.UNDECIDED),
        (Evidence(RowState.UNAVAILABLE, answered="a", homes="ab"), Absence.UNDECIDED),
        (Evidence(RowState.UNAVAILABLE, answered="ab", homes="ab"), Absence.NOT_FOUND),
    ],
)
def test_the_decision_table(evidence, absence):
    assert judge(evidence) is absence


async def problem_of(awaitable) -> ProblemError:
    with pytest.raises((ProblemError, ClientError)) as caught:
        await awaitable
    return errors.problem_of(caught.value)


class Reader:
    """A caller who does not wait."""

    key_id = "key-1"

    def require_presence(self):
        pass

    def require_room(self):
        pass

    def waiting(self):
        return nullcontext()

    async def take_turn(self):
        pass


@pytest.fixture
def seen(cluster, transport):
    """Topic T on brokers a and b, whose route is cached and old enough to be refreshed."""
    cluster.topic("T", "a", "b")
    for name in "ab":
        transport.at(f"{name}:10911", {TOPIC: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    return cluster


def take_all_away(cluster, transport):
    cluster.routes.clear()
    cluster.registered = {}
    for name in "ab":
        transport.down(f"{name}:10911")


@pytest.mark.parametrize(
    "body", ['{"body": "b", "ordering_key": "k"}', '{"body": "b", "queue": {"broker": "a", "id": 0}}', '{"body": "b"}']
)
@pytest.mark.parametrize("one_way", [False, True])
async def test_a_send_while_all_brokers_are_away_is_503(sending, engine, brokers, seen, transport, body, one_way):
    """Such a send was answered 404 as not retryable: the sender gave up on a topic that was back a second later."""
    await engine.publish_info("T")
    await brokers.sets()
    take_all_away(seen, transport)
    await asyncio.sleep(2)
    message = read_message(body.encode())
    message.one_way = one_way
    problem = await problem_of(sending.send_one("T", message))
    assert (problem.kind.name, problem.outcome, problem.retryable) == ("broker-unavailable", "not_stored", True)
    report = await sending.send_many(
        "T", read_items([body.encode()], packed=False), turn=functools.partial(Turns().take, "key-1")
    )
    [result] = report.results
    assert (result.outcome, result.problem.status, result.problem.retryable) == ("not_stored", 503, True)


async def read_once(reader, queue):
    async with reader.read(queue, 0, limit=1, wait_ms=0, wanted="*", caller=Reader()):
        raise AssertionError("there is no answer to write")


async def test_a_read_while_all_brokers_are_away_is_503(reader, engine, brokers, seen, transport, topics, metrics):
    lookup = Lookup(engine, brokers, reader, metrics, topics=topics)
    await engine.publish_info("T")
    await brokers.sets()
    take_all_away(seen, transport)
    await asyncio.sleep(2)
    queue = MessageQueue("T", "a", 0)
    for ask in (
        read_once(reader, queue),
        reader.find_offset(queue, 0, "lower"),
        reader.route("T", refresh=True),
        lookup.by_id("A" * 32, "T"),
        lookup.by_key("T", "k", limit=1),
    ):
        assert (await problem_of(ask)).status == 503


async def test_a_message_of_an_unreachable_broker_is_not_unknown(
    reader, engine, brokers, seen, transport, topics, metrics
):
    lookup = Lookup(engine, brokers, reader, metrics, topics=topics)
    await engine.publish_info("T")
    await brokers.sets()
    transport.at("a:10911", {QUERY: refuse(ResponseCode.QUERY_NOT_FOUND)})
    transport.down("b:10911")
    del seen.registered["b"]
    seen.topic("T", "a")
    await engine.publish_info("T", refresh=True)
    assert (await problem_of(lookup.by_id("A" * 32, "T"))).kind.name == "broker-unavailable"
    found = await lookup.by_key("T", "k", limit=1)
    assert (list(found.messages), found.is_truncated) == ([], True)


async def test_a_topic_that_its_brokers_no_longer_have_is_unknown(sending, engine, brokers, seen, transport):
    await engine.publish_info("T")
    seen.routes.clear()
    for name in "ab":
        transport.at(f"{name}:10911", {RequestCode.SEND_MESSAGE_V2: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    problem = await problem_of(sending.send_one("T", read_message(b'{"body": "b"}')))
    assert (problem.kind.name, problem.outcome, problem.retryable) == ("unknown-topic", "not_stored", False)


async def test_concurrent_callers_of_a_missing_topic_share_one_search(reader, seen, brokers, transport):
    seen.routes.clear()
    problems = await asyncio.gather(*(problem_of(reader.route("NOPE")) for _ in range(50)))
    assert {problem.kind.name for problem in problems} == {"unknown-topic"}
    assert len({id(problem) for problem in problems}) == 50
    assert len(transport.sent(TOPIC)) == 2


async def test_a_queue_of_a_never_seen_broker_is_unknown_and_of_a_returned_one_is_not(
    reader, sending, brokers, seen, transport
):
    """A route and a list of brokers are of different moments, so the gateway asks the broker itself."""
    seen.topic("T", "a")
    message = read_message(b'{"body": "b", "queue": {"broker": "b", "id": 0}}')
    assert (await problem_of(reader.check_queue(MessageQueue("T", "b", 0)))).kind.name == "unknown-queue"
    assert (await problem_of(sending.send_one("T", message))).kind.name == "unknown-queue"
    transport.at("b:10911", {TOPIC: lambda request: ok(request, body=b'{"topicName": "T"}')})
    assert (await problem_of(reader.check_queue(MessageQueue("T", "b", 0)))).kind.name == "broker-unavailable"
    problem = await problem_of(sending.send_one("T", message))
    assert (problem.kind.name, problem.outcome, problem.retryable) == ("broker-unavailable", "not_stored", True)
    assert (await problem_of(reader.check_queue(MessageQueue("T", "zz", 0)))).kind.name == "unknown-broker"


async def test_observed_configurations_are_read_back_from_postgres(topics, monkeypatch):
    held = {"read_queues": 3, "write_queues": 2, "perm": "r", "order": True, "of a later version": 1}
    row = Topic(name="T", config={"brokers": ["a"]}, observed={"a": held, "b": held})

    async def find_row(name):
        return RowState.EXISTS, row

    monkeypatch.setattr(topics, "find_row", find_row)
    assert await topics.observed_homes("T") == {"a": TopicConfig("T", 3, 2, Perm.READ, order=True)}
