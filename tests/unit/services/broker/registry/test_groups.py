import pytest

from gantry.model.errors import InvalidNameError
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion
from services.broker.registry.groups import GroupTable, system_groups
from services.broker.settings import BrokerSettings


def test_a_group_is_created_at_its_first_use_if_allowed() -> None:
    told: list[str] = []
    table = GroupTable(told.append)
    assert table.ensure("g", BrokerSettings(), 5) == SubscriptionGroup("g")
    table.ensure("g", BrokerSettings(), 6)
    assert told == ["g"]
    assert table.version == DataVersion(0, 5, 1)
    off = BrokerSettings(auto_create_subscription_group=False)
    assert table.ensure("h", off, 7) is None
    assert table.ensure("TOOLS_CONSUMER", off, 7) is not None


def test_an_invalid_name_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="group: 'a b'"):
        GroupTable().ensure("a b", BrokerSettings(), 1)


def test_groups_are_changed_and_deleted() -> None:
    table = GroupTable()
    table.put(SubscriptionGroup("g", retry_max_times=3), 1)
    table.forbidden["g"] = {"T": 0b100, "U": 0b010}
    assert not table.may_read("g", "T")
    assert table.may_read("g", "U")
    assert table.may_read("h", "T")
    assert table.remove("g", 2)
    assert not table.remove("g", 3)
    assert table.may_read("g", "T")
    assert len(table) == 0


def test_system_groups_do_not_replace_those_of_the_file() -> None:
    table = GroupTable()
    mine = SubscriptionGroup("TOOLS_CONSUMER", retry_max_times=1)
    table.load(DataVersion(0, 1, 1), [mine], {"g": {"T": 4}})
    table.add_missing(system_groups())
    assert table.find("TOOLS_CONSUMER") == mine
    assert table.find("CID_RMQ_SYS_TRANS") == SubscriptionGroup("CID_RMQ_SYS_TRANS")
    version, groups, forbidden = table.snapshot()
    assert (version, len(groups), forbidden) == (DataVersion(0, 1, 1), 8, {"g": {"T": 4}})
