from gantry.model.route import BrokerData
from gantry.model.sysflag import PullSysFlag
from gantry.model.topic import DataVersion, Perm, TopicConfig


def test_perm_bits() -> None:
    perm = Perm(6)
    assert (perm.is_readable, perm.is_writable, perm.is_inherited) == (True, True, False)
    assert Perm(1).is_inherited
    assert not Perm(1).is_readable


def test_defaults_of_a_topic() -> None:
    config = TopicConfig("T")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (16, 16, 6)
    assert config.attributes == {}


def test_each_change_makes_a_new_version() -> None:
    version = DataVersion(1, 2, 3)
    assert version.next(10) == DataVersion(1, 10, 4)


def test_master() -> None:
    assert BrokerData("c", "b", {0: "1.2.3.4:1", 1: "1.2.3.4:2"}).master_address == "1.2.3.4:1"
    assert BrokerData("c", "b").master_address is None


def test_pull_flags() -> None:
    assert PullSysFlag.build() == 0
    assert (
        PullSysFlag.build(commit_offset=True, suspend=True, subscription=True, class_filter=True, lite_pull=True) == 31
    )
