"""Registrations change the tables."""

from collections.abc import Mapping
from typing import Any

import pytest

from gantry.model.route import BrokerData, QueueData
from gantry.model.topic import DataVersion, TopicConfig
from services.namesrv.errors import RefusedError, TableFullError
from services.namesrv.liveness import BrokerKey
from services.namesrv.routetable import Registration, RegistrationResult, RouteTable

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"


def topics(*names: str, **config: Any) -> Mapping[str, TopicConfig]:
    return {name: TopicConfig(name, **config) for name in names}


def registration(
    address: str = MASTER, broker_id: int = 0, *, name: str = "a", cluster: str = "C", counter: int = 1, **changes: Any
) -> Registration:
    changes.setdefault("topics", topics("T1", "T2"))
    changes.setdefault("data_version", DataVersion(0, 1, counter))
    changes.setdefault("ha_server_address", address.replace("10911", "10912"))
    return Registration(BrokerKey(cluster, address), name, broker_id, **changes)


def register(
    table: RouteTable, registration: Registration, *, now_ms: int = 0, connection: object = None, **flags: bool
) -> RegistrationResult:
    return table.register(registration, connection=connection or registration.key.address, now_ms=now_ms, **flags)


def registered(*registrations: Registration) -> RouteTable:
    table = RouteTable()
    for one in registrations:
        register(table, one)
    return table


def perm_of(table: RouteTable, topic: str = "T1", name: str = "a") -> int:
    return table.topics[topic][name].perm


def test_a_master_adds_its_set_its_cluster_and_its_topics():
    table = registered(registration(topics=topics("T1", "T2", read_queue_nums=8, write_queue_nums=4), zone_name="z1"))
    assert table.brokers == {"a": BrokerData("C", "a", {0: MASTER}, "z1")}
    assert table.clusters == {"C": {"a"}}
    assert table.topics["T1"] == {"a": QueueData("a", 8, 4, 6)}
    assert set(table.topics) == {"T1", "T2"}
    assert table.live.find(BrokerKey("C", MASTER)) is not None


def test_a_slave_gets_the_address_of_its_master_and_adds_no_topics():
    table = registered(registration())
    answer = register(table, registration(SLAVE, 1, topics=topics("T9", "T8")))
    assert (answer.master_address, answer.master_ha_address) == (MASTER, "10.0.0.1:10912")
    assert "T9" not in table.topics
    assert table.brokers["a"].broker_addrs == {0: MASTER, 1: SLAVE}


def test_a_slave_without_a_master_gets_none():
    assert register(RouteTable(), registration(SLAVE, 1)) == RegistrationResult()


def test_a_slave_of_a_silent_master_gets_no_master():
    table = registered(registration(heartbeat_timeout_ms=1))
    table.live.remove(BrokerKey("C", MASTER))
    assert register(table, registration(SLAVE, 1)) == RegistrationResult()


def test_a_slave_that_became_master_has_its_address_once():
    table = registered(registration(SLAVE, 1))
    register(table, registration(SLAVE, 0))
    assert table.brokers["a"].broker_addrs == {0: SLAVE}


def test_the_first_registration_may_not_name_exactly_one_topic():
    table = RouteTable()
    with pytest.raises(RefusedError, match=r"register broker failed: a at 10\.0\.0\.1:10911"):
        register(table, registration(topics=topics("T1")))
    assert (table.topics, table.brokers, table.clusters, len(table.live)) == ({}, {}, {}, 0)
    register(table, registration())
    register(table, registration(topics=topics("T3"), counter=2))
    assert set(table.topics) == {"T1", "T2", "T3"}


def test_a_registration_without_topics_is_accepted():
    table = registered(registration(topics={}))
    assert (table.topics, set(table.brokers)) == ({}, {"a"})


def test_an_older_incarnation_is_answered_but_not_registered():
    table = registered(registration(data_version=DataVersion(2, 1, 1)))
    answer = register(table, registration("10.0.0.9:1", data_version=DataVersion(1, 9, 9)))
    assert answer.is_stale
    assert table.brokers["a"].broker_addrs == {0: MASTER}
    assert len(table.live) == 1


def test_a_newer_incarnation_replaces_the_older_one():
    table = registered(registration())
    register(table, registration("10.0.0.9:1", counter=2))
    assert table.brokers["a"].broker_addrs == {0: "10.0.0.9:1"}


def test_the_end_of_a_replaced_broker_does_not_affect_its_successor():
    table = registered(registration())
    register(table, registration("10.0.0.9:1", counter=2))
    removals = table.connection_closed(MASTER)
    assert [removal.key.address for removal in removals] == [MASTER]
    assert table.brokers["a"].broker_addrs == {0: "10.0.0.9:1"}
    assert set(table.topics) == {"T1", "T2"}


def test_topics_change_only_with_the_data_version():
    table = registered(registration())
    register(table, registration(topics=topics("T1", "T2", perm=4)))
    assert perm_of(table) == 6
    register(table, registration(topics=topics("T1", "T2", perm=4), counter=2))
    assert perm_of(table) == 4


def test_a_deleted_topic_returns_while_its_broker_registers_it():
    table = registered(registration())
    table.delete_topic("T1")
    register(table, registration())
    assert set(table.topics) == {"T1", "T2"}


def test_missing_topics_stay_by_default():
    table = registered(registration())
    register(table, registration(topics=topics("T2", "T3"), counter=2))
    assert set(table.topics) == {"T1", "T2", "T3"}
    register(table, registration(topics=topics("T2", "T3"), counter=3), delete_missing_topics=True)
    assert set(table.topics) == {"T2", "T3"}


def test_an_increment_of_one_topic_deletes_no_other():
    table = registered(registration())
    register(table, registration(topics=topics("T3"), counter=2), delete_missing_topics=True)
    assert set(table.topics) == {"T1", "T2", "T3"}


def test_the_end_of_the_last_member_removes_queues_and_cluster():
    table = registered(registration(), registration("10.0.0.3:1", name="b"))
    table.unregister(BrokerKey("C", MASTER), "a")
    assert set(table.topics["T1"]) == {"b"}
    table.unregister(BrokerKey("C", "10.0.0.3:1"), "b")
    assert (table.topics, table.brokers, table.clusters, len(table.live)) == ({}, {}, {}, 0)


def test_unregistering_an_unknown_broker_changes_nothing():
    table = registered(registration())
    table.unregister(BrokerKey("C", "10.9.9.9:1"), "a")
    table.unregister(BrokerKey("C", "10.9.9.9:1"), "nobody")
    assert table.brokers["a"].broker_addrs == {0: MASTER}


def test_a_set_that_moved_is_not_affected_by_its_old_cluster():
    table = registered(registration())
    register(table, registration(cluster="D", counter=2), now_ms=1_000)
    assert table.clusters == {"D": {"a"}}
    assert [removal.key.cluster for _, removal in table.expire(120_001)] == ["C"]
    assert table.brokers["a"].broker_addrs == {0: MASTER}


def test_a_renamed_broker_leaves_its_old_set():
    table = registered(registration())
    register(table, registration(name="b", counter=2))
    assert set(table.brokers) == {"b"}
    assert set(table.topics["T1"]) == {"b"}


def test_an_older_incarnation_is_removed_from_another_id():
    table = registered(registration(data_version=DataVersion(2, 1, 1)), registration(SLAVE, 1))
    assert register(table, registration(SLAVE, 0)).is_stale
    assert table.brokers["a"].broker_addrs == {0: MASTER}


def test_queues_stay_readable_while_a_slave_is_left():
    table = registered(registration(), registration(SLAVE, 1))
    table.unregister(BrokerKey("C", MASTER), "a")
    assert perm_of(table) == 6
    assert table.brokers["a"].broker_addrs == {1: SLAVE}


def test_the_acting_master_registers_topics_without_their_write_bit():
    table = registered(registration(SLAVE, 1, enable_acting_master=True))
    assert perm_of(table) == 4
    plain = registered(registration(SLAVE, 1, enable_acting_master=False))
    assert perm_of(plain) == 6


def test_losing_the_master_of_an_acting_set_wipes_the_write_bit_until_it_is_back():
    table = registered(registration(enable_acting_master=True), registration(SLAVE, 1, enable_acting_master=True))
    table.unregister(BrokerKey("C", MASTER), "a")
    assert perm_of(table) == 4
    register(table, registration(enable_acting_master=True))
    assert perm_of(table) == 6


def test_write_permissions_are_removed_and_restored_by_set():
    table = registered(registration(), registration("10.0.0.3:1", name="b"))
    assert table.wipe_write_perm("a") == 2
    assert (perm_of(table), perm_of(table, name="b")) == (4, 6)
    assert table.add_write_perm("a") == 2
    assert perm_of(table) == 6
    assert table.wipe_write_perm("nobody") == 0


def test_a_silent_broker_expires_with_its_routes():
    table = registered(registration(heartbeat_timeout_ms=5_000))
    register(table, registration("10.0.0.3:1", name="b"))
    assert [broker.broker_name for broker, _ in table.expire(5_001)] == ["a"]
    assert set(table.brokers) == {"b"}


def test_filter_servers_are_added_and_removed_by_registrations():
    table = registered(registration(filter_servers=("10.0.0.1:30000",)))
    assert table.filter_servers == {BrokerKey("C", MASTER): ("10.0.0.1:30000",)}
    register(table, registration())
    assert table.filter_servers == {}


def test_a_topic_may_be_registered_for_known_sets_only():
    table = registered(registration())
    queues = [QueueData("a", 1, 1, 6), QueueData("nobody", 1, 1, 6)]
    assert table.register_topic("New", queues) == 1
    assert set(table.topics["New"]) == {"a"}
    assert table.register_topic("Other", [QueueData("nobody", 1, 1, 6)]) == 0
    assert "Other" not in table.topics


def test_a_topic_is_deleted_everywhere_or_in_one_cluster():
    table = registered(registration(), registration("10.0.0.3:1", name="b", cluster="D"))
    table.delete_topic("T1", "C")
    assert set(table.topics["T1"]) == {"b"}
    table.delete_topic("T1", "nowhere")
    table.delete_topic("T1")
    table.delete_topic("T1")
    assert set(table.topics) == {"T2"}


def test_full_tables_refuse_new_entries_and_keep_existing_ones():
    table = RouteTable(brokers_max=1, topics_max=2)
    register(table, registration())
    with pytest.raises(TableFullError, match="brokerName b: there are 1 broker sets"):
        register(table, registration("10.0.0.3:1", name="b"))
    with pytest.raises(TableFullError, match="brings 1 new topics to the 2"):
        register(table, registration(topics=topics("T1", "T2", "T3"), counter=2))
    with pytest.raises(TableFullError, match="topic T3"):
        table.register_topic("T3", [QueueData("a", 1, 1, 6)])
    assert set(table.topics) == {"T1", "T2"}


def test_a_change_of_the_lowest_id_is_announced_to_the_other_members():
    table = registered(registration(SLAVE, 2), registration("10.0.0.3:1", 3))
    change = register(table, registration(MASTER, 0)).change
    assert change is not None
    assert (change.lowest_id, change.lowest_address, change.offline_address) == (0, MASTER, None)
    assert change.notify == (SLAVE, "10.0.0.3:1")
    gone = table.unregister(BrokerKey("C", MASTER), "a").change
    assert gone is not None
    assert (gone.lowest_id, gone.lowest_address, gone.offline_address) == (2, SLAVE, MASTER)
    assert gone.notify == (SLAVE, "10.0.0.3:1")
    assert table.unregister(BrokerKey("C", "10.0.0.3:1"), "a").change is None


def test_a_broker_set_in_two_clusters_is_a_bug() -> None:
    table = registered(registration())
    table.clusters["other"] = {"a"}
    with pytest.raises(AssertionError, match="each broker set belongs to one cluster"):
        register(table, registration())
    with pytest.raises(AssertionError, match="each broker set belongs to one cluster"):
        table.unregister(BrokerKey("C", MASTER), "a")
