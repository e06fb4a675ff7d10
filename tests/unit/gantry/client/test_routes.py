"""Requests to name servers for routes: shared by callers, repeated in time, and kept while no name server answers."""

import asyncio

import pytest

from gantry.client.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConnectionFailedError,
    InvalidArgumentError,
    NoRouteError,
    NotStartedError,
    RequestTimeoutError,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.scriptedpeer import ScriptedCluster, ok, refuse

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_a_route_is_requested_once(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    assert [queue.broker_name for queue in (await engine.route("T")).queue_datas] == ["a", "b"]
    await engine.route("T")
    assert engine.cached_publish_info("T") is not None
    assert len(transport.sent(ROUTE)) == 1
    assert transport.sent(ROUTE)[0].ext_fields == {"topic": "T", "acceptStandardJsonOnly": "true"}


async def test_a_hundred_callers_cause_one_request(engine, cluster, transport):
    cluster.topic("T", "a")
    routes = await asyncio.gather(*(engine.route("T") for _ in range(100)))
    assert len(transport.sent(ROUTE)) == 1
    assert all(route is routes[0] for route in routes)


async def test_a_caller_that_gives_up_does_not_cancel_the_request_of_others(engine, cluster, transport):
    cluster.topic("T", "a")
    first = asyncio.ensure_future(engine.route("T"))
    second = asyncio.ensure_future(engine.route("T"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).queue_datas
    assert len(transport.sent(ROUTE)) == 1


async def test_routes_in_use_are_refreshed_every_thirty_seconds(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    cluster.topic("T", "a", "b")
    await asyncio.sleep(31)
    assert len(engine.cached_publish_info("T").queues) == 4
    assert set(engine.brokers()) == {"a", "b"}


async def test_unused_routes_are_refreshed_only_when_used(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    await asyncio.sleep(1_000)
    asked = len(transport.sent(ROUTE))
    await asyncio.sleep(1_000)
    assert len(transport.sent(ROUTE)) == asked
    assert engine.cached_publish_info("T") is None
    await engine.route("T")
    assert len(transport.sent(ROUTE)) == asked + 1


async def test_routes_stay_while_every_name_server_is_away(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    transport.down("ns:1")
    await asyncio.sleep(300)
    assert (await engine.route("T")).queue_datas
    with pytest.raises(ConnectionFailedError):
        await engine.route("T", refresh=True)
    with pytest.raises(ConnectionFailedError):
        await engine.route("U")


async def test_a_restarted_name_server_does_not_remove_routes(engine, cluster, transport):
    cluster.topic("T", "a")
    await engine.route("T")
    cluster.routes.clear()
    await asyncio.sleep(100)
    assert (await engine.route("T")).queue_datas
    with pytest.raises(NoRouteError, match="topic T"):
        await engine.route("T", refresh=True)


async def test_the_next_name_server_is_asked_when_one_fails_and_is_kept(start_engine, transport):
    cluster = ScriptedCluster(transport, namesrv=("ns:2",))
    cluster.topic("T", "a")
    engine = await start_engine(namesrv=("ns:1", "ns:2", "ns:3"))
    await engine.route("T")
    assert engine.name_servers.current == "ns:2"
    before = len(transport.requests)
    await engine.route("T", refresh=True)
    assert [address for address, _ in transport.requests[before:]] == ["ns:2"]


async def test_a_hanging_name_server_costs_its_timeout_once(start_engine, transport):
    cluster = ScriptedCluster(transport, namesrv=("ns:2",))
    cluster.topic("T", "a")
    transport.at("ns:1", {ROUTE: lambda request: None})
    engine = await start_engine(namesrv=("ns:1", "ns:2"))
    engine.name_servers._current = 0
    loop = asyncio.get_running_loop()
    started = loop.time()
    await engine.route("T")
    assert loop.time() - started == pytest.approx(3, abs=0.1)


async def test_another_name_server_is_asked_if_one_does_not_know_the_topic(start_engine, transport):
    empty = ScriptedCluster(transport, namesrv=("ns:1",))
    full = ScriptedCluster(transport, namesrv=("ns:2",))
    full.topic("T", "a")
    engine = await start_engine(namesrv=("ns:1", "ns:2"))
    for _ in range(4):
        assert (await engine.route("T", refresh=True)).queue_datas
    assert not empty.routes
    with pytest.raises(NoRouteError):
        await engine.route("U")


async def test_an_unavailable_name_server_counts_less_than_one_without_the_topic(start_engine, transport):
    ScriptedCluster(transport, namesrv=("ns:1",))
    transport.at("ns:2", {ROUTE: refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "namesrv is stopping")})
    engine = await start_engine(namesrv=("ns:1", "ns:2"))
    for _ in range(3):
        with pytest.raises(NoRouteError):
            await engine.route("T")


@pytest.mark.parametrize("body", [b"", b"{", b'{"queueDatas":[{"brokerName":1}]}'])
async def test_a_route_that_can_not_be_read_is_an_error_with_its_sender(engine, transport, body):
    transport.at("ns:1", {ROUTE: lambda request: ok(request, body=body)})
    with pytest.raises((BrokerError, NoRouteError)) as caught:
        await engine.route("T")
    assert "ns:1" in str(caught.value) or "topic T" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "thème"])
async def test_an_invalid_name_is_never_requested(engine, transport, name):
    with pytest.raises(InvalidArgumentError, match="topic"):
        await engine.route(name)
    assert transport.requests == []


async def test_a_set_that_left_the_route_is_remembered_while_it_is_not_registered(engine, cluster):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    cluster.topic("T", "a")
    del cluster.registered["b"]
    await engine.route("T", refresh=True)
    assert len(engine.cached_publish_info("T").ordering_queues) == 4
    assert len(engine.cached_publish_info("T").queues) == 2


async def test_a_set_that_has_died_since_the_last_cluster_request_is_remembered(engine, cluster):
    """Keys of a dead broker moved to another one if the client had cached the cluster before the broker died."""
    cluster.topic("T", "a", "b")
    await engine.route("T")
    await engine.cluster_info()
    cluster.topic("T", "a")
    del cluster.registered["b"]
    await engine.route("T", refresh=True)
    assert len(engine.cached_publish_info("T").ordering_queues) == 4


async def test_a_set_that_is_registered_without_the_topic_does_not_hold_it(engine, cluster):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    cluster.topic("T", "a")
    await engine.route("T", refresh=True)
    assert len(engine.cached_publish_info("T").ordering_queues) == 2


async def test_a_set_is_remembered_while_its_registration_is_unknown(engine, cluster, transport):
    cluster.topic("T", "a", "b")
    await engine.route("T")
    cluster.topic("T", "a")
    transport.at("ns:1", {RequestCode.GET_BROKER_CLUSTER_INFO: lambda request: ok(request, body=b"nonsense")})
    await engine.route("T", refresh=True)
    assert len(engine.cached_publish_info("T").ordering_queues) == 4


async def test_one_cluster_request_serves_many_topics(engine, cluster, transport):
    for topic in ("T1", "T2", "T3"):
        cluster.topic(topic, "a", "b")
        await engine.route(topic)
        cluster.topic(topic, "a")
    del cluster.registered["b"]
    for topic in ("T1", "T2", "T3"):
        await engine.route(topic, refresh=True)
    assert len(transport.sent(RequestCode.GET_BROKER_CLUSTER_INFO)) == 1


async def test_declared_queues_count_for_keys(engine, cluster):
    cluster.topic("T", "a")
    engine.set_desired_queues("T", {"a": 2, "b": 3})
    info = await engine.publish_info("T")
    assert [queue.broker_name for queue in info.ordering_queues] == ["a", "a", "b", "b", "b"]
    engine.forget_topic("T")
    assert len((await engine.publish_info("T")).ordering_queues) == 2


async def test_unknown_topics_take_the_default_route_if_settings_say_so(start_engine, cluster):
    cluster.topic("TBW102", "a", "b", queues=8, perm=7)
    engine = await start_engine(auto_create_topics=True)
    assert len((await engine.publish_info("New")).queues) == 8
    assert engine.cached_publish_info("New") is None
    plain = await start_engine()
    with pytest.raises(NoRouteError):
        await plain.publish_info("New")


async def test_without_an_inheritable_default_topic_an_unknown_one_stays_unknown(start_engine, cluster):
    cluster.topic("TBW102", "a", perm=6)
    engine = await start_engine(auto_create_topics=True)
    with pytest.raises(NoRouteError, match="New"):
        await engine.publish_info("New")


async def test_addresses_come_from_the_routes_in_use(engine, cluster):
    cluster.topic("T", "a")
    with pytest.raises(BrokerUnavailableError, match="broker a"):
        engine.master_address("a")
    with pytest.raises(BrokerUnavailableError):
        engine.read_address("a")
    await engine.route("T")
    assert engine.master_address("a") == engine.read_address("a", 5) == "a:10911"
    assert await engine.subscribe_queues("T")


async def test_an_engine_that_does_not_run_refuses_calls(start_engine, cluster, transport):
    engine = await start_engine()
    await engine.stop()
    for call in (engine.route("T"), engine.publish_info("T"), engine.subscribe_queues("T"), engine.cluster_info()):
        with pytest.raises(NotStartedError):
            await call
    assert transport.is_closed


async def test_a_silent_name_server_causes_a_timeout(engine, transport):
    transport.at("ns:1", {ROUTE: lambda request: None})
    with pytest.raises(RequestTimeoutError):
        await engine.route("T")


async def test_a_request_to_all_name_servers_reaches_the_others_if_one_fails(start_engine, transport):
    heard: list[str] = []
    for address in ("ns:1", "ns:3"):
        transport.at(address, {100: lambda request, address=address: heard.append(address) or ok(request)})
    engine = await start_engine(namesrv=("ns:1", "ns:2", "ns:3"))
    with pytest.raises(ConnectionFailedError, match="ns:2"):
        await engine.name_servers.send_to_all(100)
    assert heard == ["ns:1", "ns:3"]


async def test_other_refusals_of_a_name_server_are_raised(engine, transport):
    transport.at("ns:1", {ROUTE: refuse(1, "name server not ready")})
    with pytest.raises(BrokerError, match="not ready"):
        await engine.route("T")


async def test_a_route_without_queues_is_none(engine, transport):
    transport.at("ns:1", {ROUTE: lambda request: ok(request, body=b"{}")})
    with pytest.raises(NoRouteError):
        await engine.route("T")


async def test_stopping_ends_a_request_in_flight(start_engine, transport):
    transport.at("ns:1", {ROUTE: lambda request: None})
    engine = await start_engine()
    asking = asyncio.ensure_future(engine.route("T"))
    await asyncio.sleep(1)
    await engine.stop()
    with pytest.raises(NotStartedError):
        await asking


@pytest.mark.parametrize("settings", [{"namesrv": ()}, {"send_timeout_ms": 0}, {"topics_max": -1}])
async def test_settings_that_can_not_be_are_refused_by_name(start_engine, settings):
    with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
        await start_engine(**settings)
