"""Registering clients at brokers by heartbeats, and again after a broker has restarted."""

import asyncio

import pytest

from gantry.client.producer import Producer
from gantry.model.group import parse_tag_expression
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting.bodies import ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import NotifyConsumerIdsChangedHeader
from tests.support.scriptedpeer import ok, refuse

HEART_BEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT


def consumer(group: str = "g", expression: str = "*") -> ConsumerData:
    return ConsumerData(group, subscriptions=(parse_tag_expression("T", expression, 1),))


def told(transport, address: str | None = None) -> list[HeartbeatData]:
    return [HeartbeatData.decode(request.body_bytes) for request in transport.sent(HEART_BEAT, address)]


async def test_masters_get_the_producer_within_a_second_of_the_first_route(engine, cluster, transport):
    cluster.topic("T", "a")
    cluster.routes["T"] = TopicRoute((QueueData("a", 1, 1, 6),), (BrokerData("C", "a", {0: "a:10911", 1: "slave:1"}),))
    await Producer(engine, "pg").start()
    await asyncio.sleep(5)
    assert told(transport) == []
    await engine.route("T")
    await asyncio.sleep(1)
    assert [beat.producer_groups for beat in told(transport, "a:10911")] == [("pg",)]
    assert told(transport, "slave:1") == []


async def test_every_broker_gets_a_heartbeat_every_thirty_seconds(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    await asyncio.sleep(95)
    for address in ("a:10911", "b:10911"):
        assert 4 <= len(told(transport, address)) <= 5
        assert {beat.client_id for beat in told(transport, address)} == {"me@1"}


async def test_putting_a_consumer_returns_when_the_brokers_know_it(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer(expression="A || B"))
    beat = told(transport, "a:10911")[0]
    assert beat.consumers[0].group_name == "g"
    assert beat.consumers[0].subscriptions[0].tags_set == {"A", "B"}
    assert len(told(transport, "b:10911")) == 1


async def test_one_engine_sends_heartbeats_of_many_instances(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    for number in range(5):
        await engine.heartbeats.put_consumer(f"me@{number}", consumer(f"g{number % 2}"))
    await asyncio.sleep(1)
    assert {beat.client_id for beat in told(transport)} == {f"me@{number}" for number in range(5)}
    assert all(len(beat.consumers) == 1 for beat in told(transport))


async def test_heartbeats_go_out_within_a_second_of_a_broken_connection(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    await asyncio.sleep(1)
    before = len(told(transport))
    transport.connection_lost("a:10911")
    await asyncio.sleep(1.1)
    assert len(told(transport)) == before + 1


async def test_a_broker_that_is_down_is_tried_every_second_until_it_is_back(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    transport.down("a:10911")
    await engine.heartbeats.put_consumer("me@1", consumer())
    await asyncio.sleep(10)
    assert 8 <= len(told(transport)) <= 13
    transport.at("a:10911", {HEART_BEAT: ok})
    await asyncio.sleep(1.5)
    after = len(told(transport))
    await asyncio.sleep(5)
    assert len(told(transport)) == after


async def test_a_refused_heartbeat_waits_for_the_next_round(engine, cluster, transport):
    cluster.topic("T", "a")
    transport.at("a:10911", {HEART_BEAT: refuse(1)})
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    await asyncio.sleep(20)
    assert len(told(transport)) == 1


async def test_leaving_unregisters_at_known_brokers_and_ends_the_heartbeats(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer("g1"))
    await engine.heartbeats.put_consumer("me@1", consumer("g2"))
    await engine.heartbeats.remove_consumer("me@1", "g1", ["T"])
    assert [request.ext_fields for request in transport.sent(UNREGISTER)] == [
        {"clientID": "me@1", "consumerGroup": "g1"}
    ] * 2
    await asyncio.sleep(31)
    assert [one.group_name for one in told(transport)[-1].consumers] == ["g2"]
    await engine.heartbeats.remove_consumer("me@1", "g2", ["T"])
    beats = len(told(transport))
    await asyncio.sleep(100)
    assert len(told(transport)) == beats


async def test_brokers_are_told_of_the_end_although_the_caller_is_cancelled(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    producer = Producer(engine, "pg")
    await producer.start()
    await engine.heartbeats.put_consumer("me@1", consumer("g1"))
    transport.at("a:10911", {UNREGISTER: ok})
    transport.at("b:10911", {UNREGISTER: ok})
    await asyncio.sleep(1)
    transport.latency_s["a:10911"] = 5
    leaving = [producer.close(), engine.heartbeats.remove_consumer("me@1", "g1", ["T"])]
    for task in [asyncio.ensure_future(work) for work in leaving]:
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.1)
    left = {(request.ext_fields.get("producerGroup"), request.ext_fields.get("consumerGroup")) for request in
            transport.sent(UNREGISTER, "a:10911")}  # fmt: skip
    assert left == {("pg", None), (None, "g1")}
    beats = len(told(transport))
    await asyncio.sleep(100)
    assert len(told(transport)) == beats


async def test_a_stop_of_the_engine_while_a_client_leaves_is_no_cancellation_of_the_caller(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    transport.latency_s["a:10911"] = 5
    leaving = asyncio.ensure_future(engine.heartbeats.remove_consumer("me@1", "g", ["T"]))
    await asyncio.sleep(0.1)
    await engine.stop()
    await leaving


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_cancelled_stop_of_the_engine_ends_its_work(engine, cluster, transport, turns):
    cluster.topic("T", "a")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    engine.tasks.spawn(asyncio.sleep(3_600))
    stopping = asyncio.ensure_future(engine.stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert transport.is_closed
    transport.requests.clear()
    await asyncio.sleep(300)
    assert transport.requests == []


async def test_leaving_while_a_broker_is_down_is_no_error(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    producer = Producer(engine, "pg")
    await producer.start()
    await asyncio.sleep(1)
    del transport.scripts["a:10911"]
    await producer.close()
    await producer.close()
    await engine.heartbeats.remove_consumer("nobody", "g", ["T"])
    await engine.heartbeats.remove_producer("nobody", "g")


async def test_the_version_of_the_broker_is_remembered(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    assert engine.heartbeats.broker_version("a:10911") is None
    await engine.heartbeats.put_consumer("me@1", consumer())
    assert engine.heartbeats.broker_version("a:10911") == 479


async def test_a_change_of_members_reaches_the_listeners(engine, transport):
    heard: list[str] = []
    stop = engine.listen("g", lambda: heard.append("first"))
    stop_other = engine.listen("g", lambda: heard.append("second"))
    header = NotifyConsumerIdsChangedHeader(consumer_group="g")
    one_way = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, one_way=True)
    assert transport.push(one_way) is None
    assert heard == ["first", "second"]
    stop()
    answered = transport.push(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
    assert answered.code == 0
    stop_other()
    transport.push(one_way)
    assert heard == ["first", "second", "second"]


async def test_subscriptions_of_one_client_in_one_group_are_combined_and_removed_one_by_one(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    await engine.heartbeats.put_consumer("me@1", consumer())
    other = ConsumerData("g", subscriptions=(parse_tag_expression("U", "A", 1),))
    await engine.heartbeats.put_consumer("me@1", other)
    assert [one.topic for one in told(transport)[-1].consumers[0].subscriptions] == ["T", "U"]
    await engine.heartbeats.remove_consumer("me@1", "g", ["T"])
    assert [one.topic for one in told(transport)[-1].consumers[0].subscriptions] == ["U"]
    assert transport.sent(UNREGISTER) == []
    await engine.heartbeats.remove_consumer("me@1", "g", ["U"])
    assert len(transport.sent(UNREGISTER)) == 1
    await engine.heartbeats.remove_consumer("me@1", "g", ["U"])


async def test_brokers_are_told_of_a_group_whose_subscriptions_are_removed_at_the_same_time(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    for topic in ("T", "U"):
        data = ConsumerData("g", subscriptions=(parse_tag_expression(topic, "*", 1),))
        await engine.heartbeats.put_consumer("me@1", data)
    await asyncio.gather(*(engine.heartbeats.remove_consumer("me@1", "g", [topic]) for topic in ("T", "U")))
    for address in ("a:10911", "b:10911"):
        (request,) = transport.sent(UNREGISTER, address)
        assert request.ext_fields["consumerGroup"] == "g"


async def test_leaving_after_the_engine_has_stopped_is_no_error(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    other = ConsumerData("g", subscriptions=(parse_tag_expression("U", "*", 1),))
    for one in (consumer(), other):
        await engine.heartbeats.put_consumer("me@1", one)
    await engine.stop()
    before = len(transport.requests)
    await engine.heartbeats.remove_consumer("me@1", "g", ["T"])
    await engine.heartbeats.remove_consumer("me@1", "g", ["U"])
    await asyncio.sleep(1)
    assert len(transport.requests) == before
