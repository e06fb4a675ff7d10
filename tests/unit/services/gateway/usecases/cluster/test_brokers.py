"""The list of brokers: name servers forget brokers after a restart or a lost connection, and brokers come back."""

import asyncio

import pytest

from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import ProblemError
from services.gateway.usecases.cluster.brokers import CLUSTER_CACHED_MS, MISSING_KEPT_MS, KnownSet, merge_known_sets
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.configs.kinds import GroupKind, TopicKind
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.consuming.offsets import GroupOffsets
from services.gateway.usecases.metadata import Metadata
from tests.support.scriptedpeer import ok, refuse

A, B = BrokerData("C", "a", {0: "a:10911"}), BrokerData("C", "b", {0: "b:10911"})
CLUSTER, GROUP, TOPIC = (
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_TOPIC_CONFIG,
)
GROUP_BODY = b'{"groupName": "G"}'


@pytest.fixture
def groups(engine, brokers, clock):
    kind, metadata = GroupKind(engine), Metadata(None)
    presence = Presence(kind, metadata, brokers, engine)
    return Configs(kind, metadata, brokers, engine, presence=presence, clock=clock)


@pytest.fixture
def two(cluster, transport):
    """Topic T on brokers a and b; b has group G."""
    cluster.topic("T", "a", "b")
    transport.at("a:10911", {GROUP: refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})
    transport.at("b:10911", {GROUP: lambda request: ok(request, body=GROUP_BODY)})
    for name in "ab":
        transport.at(f"{name}:10911", {TOPIC: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    return cluster


async def problem_of(awaitable) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        await awaitable
    return caught.value


def test_a_missing_broker_set_is_kept_for_a_while():
    known = merge_known_sets({}, {"a": A, "b": B}, 1_000)
    assert known == {"a": KnownSet(A), "b": KnownSet(B)}
    known = merge_known_sets(known, {"a": A}, 2_000)
    assert known == {"a": KnownSet(A), "b": KnownSet(B, missing_since_ms=2_000)}
    known = merge_known_sets(known, {}, 2_000 + MISSING_KEPT_MS)
    assert known["b"] == KnownSet(B, missing_since_ms=2_000)
    assert merge_known_sets(known, {"b": B}, 2_001 + MISSING_KEPT_MS)["b"] == KnownSet(B)
    assert "b" not in merge_known_sets(known, {"a": A}, 2_001 + MISSING_KEPT_MS)


def test_a_missing_set_is_dropped_once_another_one_has_its_address():
    known = merge_known_sets({}, {"a": A}, 0)
    assert set(merge_known_sets(known, {"new": BrokerData("C", "new", {0: "a:10911"})}, 1)) == {"new"}


async def test_brokers_unknown_to_a_new_name_server_are_called_at_their_old_address(groups, two, brokers):
    await groups.require("G")
    for registered in ({"a": A}, {}):
        two.registered = registered
        await brokers.sets(fresh=True)
        await groups.require("G")
    assert await brokers.missing() == ["a", "b"]


async def test_a_missing_and_unreachable_broker_makes_it_503_and_not_404(groups, two, brokers, transport):
    await brokers.sets()
    del two.registered["b"]
    transport.down("b:10911")
    await brokers.sets(fresh=True)
    problem = await problem_of(groups.require("G"))
    assert (problem.kind.name, problem.detail.partition(":")[0]) == ("broker-unavailable", "broker b")


async def test_a_missing_set_is_finally_dropped(groups, two, brokers, transport):
    await brokers.sets()
    del two.registered["b"]
    transport.down("b:10911")
    await brokers.sets(fresh=True)
    await asyncio.sleep(MISSING_KEPT_MS / 1_000 + 1)
    assert (await problem_of(groups.require("G"))).kind.name == "unknown-group"


async def test_no_name_is_unknown_while_no_broker_is_known(groups, two, brokers, engine, reader, metrics):
    two.registered = {}
    consumers = Consumers(engine, brokers, Metadata(None), clock=None)
    offsets = GroupOffsets(engine, brokers, reader, consumers, Metadata(None))
    for awaitable in (
        groups.require("G"),
        groups.get("G"),
        groups.page(cursor=None, limit=10, system=False, sees=lambda name: True),
        groups.consume_timeout_ms("G"),
        consumers.clients("G"),
        offsets.of_group("G"),
        brokers.master("a"),
        reader.route("NOPE"),
    ):
        problem = await problem_of(awaitable)
        assert (problem.kind.name, problem.detail) == ("broker-unavailable", "no broker is registered at the moment")


async def test_an_empty_cluster_is_not_cached(brokers, two, transport):
    two.registered, registered = {}, two.registered
    assert await brokers.sets() == {}
    two.registered = registered
    assert set(await brokers.sets()) == {"a", "b"}
    asked = len(transport.sent(CLUSTER))
    await brokers.sets()
    assert len(transport.sent(CLUSTER)) == asked, CLUSTER_CACHED_MS


async def test_a_topic_without_a_route_is_searched_on_every_broker(reader, two, brokers, transport):
    del two.routes["T"]
    await brokers.sets()
    assert (await problem_of(reader.route("T"))).kind.name == "unknown-topic"
    two.registered = {"b": B}
    assert (await problem_of(reader.route("T"))).kind.name == "unknown-topic"
    transport.at("a:10911", {TOPIC: lambda request: ok(request, body=b'{"topicName": "T"}')})
    assert (await problem_of(reader.route("T"))).kind.name == "broker-unavailable"
    transport.down("a:10911")
    assert (await problem_of(reader.route("T"))).kind.name == "broker-unavailable"


async def test_a_queue_of_a_broker_that_is_missing_is_503(reader, two, brokers):
    await brokers.sets()
    two.topic("T", "a")
    del two.registered["b"]
    await brokers.sets(fresh=True)
    problem = await problem_of(reader.check_queue(MessageQueue("T", "b", 0)))
    assert (problem.kind.name, problem.field) == ("broker-unavailable", "broker")


async def test_topics_that_only_a_missing_broker_has_are_listed(engine, two, brokers, transport, clock, topics):
    table = b'{"topicConfigTable": {"ONLY": {"topicName": "ONLY"}}, "dataVersion": {"counter": 1, "timestamp": 1}}'
    transport.at("a:10911", {RequestCode.GET_ALL_TOPIC_CONFIG: lambda request: ok(request, body=table)})
    configs = Configs(TopicKind(engine), Metadata(None), brokers, engine, presence=topics, clock=clock)
    await brokers.sets()
    two.registered = {}
    page = await configs.page(cursor=None, limit=10, system=False, sees=lambda name: True)
    assert [topic.name for topic in page.items] == ["ONLY"]
