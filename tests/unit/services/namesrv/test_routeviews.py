"""Replies that are built from the tables."""

from dataclasses import replace

import pytest

from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.model.topic import DataVersion, TopicConfig
from services.namesrv.errors import NoRouteError
from services.namesrv.liveness import BrokerKey
from services.namesrv.routetable import Registration, RouteTable
from services.namesrv.routeviews import (
    UNIT,
    UNIT_SUB,
    find_route,
    member_addresses,
    system_topics,
    topics_of_cluster,
    topics_with_flags,
    within_zone,
)


def table_of(*registrations: Registration) -> RouteTable:
    table = RouteTable()
    for one in registrations:
        table.register(one, connection=one.key, now_ms=0)
    return table


def broker(name: str, *, broker_id: int = 0, cluster: str = "C", acting: bool | None = None, **more) -> Registration:
    more.setdefault("topics", {"T1": TopicConfig("T1"), f"only-{name}": TopicConfig(f"only-{name}")})
    key = BrokerKey(cluster, f"10.0.0.{broker_id}:{10911 + ord(name)}")
    return Registration(key, name, broker_id, data_version=DataVersion(0, 0, 1), enable_acting_master=acting, **more)


def test_a_route_names_the_sets_that_serve_the_topic():
    route = find_route(table_of(broker("b"), broker("a")), "T1")
    assert [queue.broker_name for queue in route.queue_datas] == ["a", "b"]
    assert [one.broker_name for one in route.broker_datas] == ["a", "b"]
    assert route.filter_server_table == {}


def test_an_unknown_topic_is_reported_with_the_text_that_clients_print():
    with pytest.raises(NoRouteError, match="No topic route info in name server for the topic: X"):
        find_route(RouteTable(), "X")


def test_filter_servers_are_listed_if_there_are_any():
    table = table_of(broker("a", filter_servers=("f:1",)), broker("b"))
    assert sorted(find_route(table, "T1").filter_server_table.values()) == [(), ("f:1",)]


def test_the_acting_master_stands_in_for_a_missing_one():
    table = table_of(broker("a", broker_id=2, acting=True), broker("a", broker_id=3, acting=True), broker("b"))
    addresses = dict(find_route(table, "T1").broker_datas[0].broker_addrs)
    assert set(addresses) == {2, 3}
    shown = dict(find_route(table, "T1", support_acting_master=True).broker_datas[0].broker_addrs)
    assert shown == {0: addresses[2], 3: addresses[3]}


def test_a_set_without_acting_master_support_or_with_write_permission_has_no_acting_master():
    table = table_of(broker("a", broker_id=2))
    table.register_topic("T1", [QueueData("a", 4, 4, 4)])
    assert set(find_route(table, "T1", support_acting_master=True).broker_datas[0].broker_addrs) == {2}
    acting = table_of(broker("b", broker_id=2, acting=True))
    acting.add_write_perm("b")
    assert set(find_route(acting, "T1", support_acting_master=True).broker_datas[0].broker_addrs) == {2}


def test_members_see_only_live_members():
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    table = table_of(broker("a", broker_id=2, acting=True, topics={topic: TopicConfig(topic), "x": TopicConfig("x")}))
    assert set(find_route(table, topic, support_acting_master=True).broker_datas[0].broker_addrs) == {2}


def test_a_zone_keeps_its_own_sets_and_those_without_a_master():
    brokers = (
        BrokerData("C", "a", {0: "a:1"}, "Z1"),
        BrokerData("C", "b", {0: "b:1"}, "z2"),
        BrokerData("C", "c", {1: "c:1"}, "z2"),
        BrokerData("C", "d", {0: "d:1"}, None),
    )
    queues = tuple(QueueData(one.broker_name, 4, 4, 6) for one in brokers)
    route = TopicRoute(queues, brokers, filter_server_table={"a:1": ("f",), "b:1": ("f",)})
    narrow = within_zone(route, "z1")
    assert [one.broker_name for one in narrow.broker_datas] == ["a", "c"]
    assert [one.broker_name for one in narrow.queue_datas] == ["a", "c"]
    assert narrow.filter_server_table == {"a:1": ("f",)}
    whole = replace(route, broker_datas=brokers[:1])
    assert within_zone(whole, "Z1") is whole


def test_members_of_a_set_are_shown_to_its_own_cluster():
    table = table_of(broker("a"), broker("a", broker_id=1))
    assert set(member_addresses(table, "C", "a")) == {0, 1}
    assert member_addresses(table, "D", "a") == {}
    assert member_addresses(table, "C", "nobody") == {}


def test_topics_are_listed_by_cluster():
    table = table_of(broker("a"), broker("b", cluster="D"))
    assert topics_of_cluster(table, "C") == ["T1", "only-a"]
    assert topics_of_cluster(table, "nowhere") == []


def test_topics_are_listed_by_their_unit_flags():
    flags = {"U": UNIT, "S": UNIT_SUB, "US": UNIT | UNIT_SUB, "plain": 0}
    table = table_of(broker("a", topics={name: TopicConfig(name, topic_sys_flag=flag) for name, flag in flags.items()}))
    assert topics_with_flags(table, have=UNIT) == ["U", "US"]
    assert topics_with_flags(table, have=UNIT_SUB) == ["S", "US"]
    assert topics_with_flags(table, have=UNIT_SUB, lack=UNIT) == ["S"]


def test_clusters_and_sets_are_system_topics():
    assert system_topics(RouteTable()) == ([], None)
    names, address = system_topics(table_of(broker("a"), broker("b", cluster="D")))
    assert names == ["C", "D", "a", "b"]
    assert address == "10.0.0.0:11008"
