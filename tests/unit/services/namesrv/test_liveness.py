"""The table of live brokers."""

from gantry.model.topic import DataVersion
from services.namesrv.liveness import BrokerKey, LiveBroker, LiveTable

KEY = BrokerKey("C", "10.0.0.1:10911")


def broker(key: BrokerKey = KEY, *, connection: object = "c1", seen_at_ms: int = 0, counter: int = 1) -> LiveBroker:
    return LiveBroker(key, "a", 0, DataVersion(0, 0, counter), "", 120_000, connection, seen_at_ms)


def test_a_broker_expires_after_its_own_timeout_and_not_before():
    table = LiveTable()
    table.put(broker())
    assert table.expired(120_000) == []
    assert [one.key for one in table.expired(120_001)] == [KEY]


def test_a_heartbeat_counts_for_known_brokers_only():
    table = LiveTable()
    table.put(broker())
    assert table.touch(KEY, 60_000)
    assert not table.touch(BrokerKey("C", "10.0.0.9:1"), 60_000)
    assert table.expired(180_000) == []
    assert len(table) == 1


def test_a_connection_belongs_to_the_brokers_last_registered_over_it():
    table = LiveTable()
    other = BrokerKey("C", "10.0.0.2:10911")
    table.put(broker())
    table.put(broker(other, connection="c2"))
    table.put(broker(connection="c3"))
    assert table.registered_over("c1") == []
    assert [one.key for one in table.registered_over("c3")] == [KEY]
    table.remove(KEY)
    assert table.registered_over("c3") == []
    assert [one.key for one in table] == [other]


def test_a_version_is_current_only_if_all_its_parts_are_equal():
    table = LiveTable()
    assert not table.is_version_current(KEY, DataVersion(0, 0, 1))
    table.put(broker())
    assert table.is_version_current(KEY, DataVersion(0, 0, 1))
    assert not table.is_version_current(KEY, DataVersion(0, 0, 2))
    assert not table.is_version_current(KEY, DataVersion(0, 5, 1))
    assert not table.is_version_current(KEY, DataVersion(1, 0, 1))
