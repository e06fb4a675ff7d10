import pytest

from gantry.model.topic import MULTI_TAG, DataVersion, TopicConfig
from services.broker.registry.topics import (
    TopicTable,
    auto_created,
    changed_attributes,
    system_topics,
    with_perm_of_broker,
)
from services.broker.settings import BrokerSettings
from tests.support.brokerunit import IDENTITY

TEMPLATE = TopicConfig("TBW102", 8, 8, 7, topic_filter_type=MULTI_TAG)


def test_every_change_is_a_new_version_and_is_announced() -> None:
    told: list[str] = []
    table = TopicTable(told.append)
    table.put(TopicConfig("T"), 100)
    table.put(TopicConfig("T", 1, 1), 200)
    assert table.remove("T", 300)
    assert not table.remove("T", 400)
    assert told == ["T", "T", "T"]
    assert table.version == DataVersion(0, 300, 3)
    table.touch(500)
    assert table.version == DataVersion(0, 500, 4)


def test_system_topics_are_added_only_where_they_are_missing() -> None:
    table = TopicTable()
    table.load(DataVersion(0, 1, 1), [TopicConfig("SELF_TEST_TOPIC", 9, 9)])
    topics = system_topics(
        IDENTITY, BrokerSettings(broker_topic_enable=False, trace_topic_enable=True, msg_trace_topic_name="TR")
    )
    added = table.add_missing(topics)
    assert "SELF_TEST_TOPIC" not in added
    shapes = {topic.topic_name: (topic.read_queue_nums, topic.perm) for topic in table.all().values()}
    assert shapes["SELF_TEST_TOPIC"] == (9, 6)
    assert shapes["TBW102"] == (8, 7)
    assert shapes["BenchmarkTest"] == (1024, 6)
    assert shapes["C"] == (16, 7)
    assert shapes["broker-a"] == (1, 1)
    assert shapes["SCHEDULE_TOPIC_XXXX"] == (18, 6)
    assert shapes["C_REPLY_TOPIC"] == shapes["TR"] == shapes["RMQ_SYS_TRANS_HALF_TOPIC"] == (1, 6)
    assert table.version == DataVersion(0, 1, 1)
    without = system_topics(IDENTITY, BrokerSettings(auto_create_topic_enable=False))
    assert "TBW102" not in {topic.topic_name for topic in without}


def test_a_new_topic_inherits_from_its_template() -> None:
    made = auto_created("T", TEMPLATE, 4, BrokerSettings(), topic_sys_flag=1)
    assert made == TopicConfig("T", 4, 4, 6, topic_filter_type=MULTI_TAG, topic_sys_flag=1)
    assert auto_created("T", TEMPLATE, 99, BrokerSettings(), topic_sys_flag=0) == TopicConfig(
        "T", 8, 8, 6, topic_filter_type=MULTI_TAG
    )
    least = auto_created("T", TEMPLATE, -3, BrokerSettings(), topic_sys_flag=0)
    assert least is not None
    assert least.write_queue_nums == 1


def test_no_topic_is_created_without_an_inheritable_template() -> None:
    assert auto_created("T", None, 4, BrokerSettings(), topic_sys_flag=0) is None
    assert auto_created("T", TopicConfig("Other", 4, 4, 6), 4, BrokerSettings(), topic_sys_flag=0) is None
    off = BrokerSettings(auto_create_topic_enable=False)
    assert auto_created("T", TEMPLATE, 4, off, topic_sys_flag=0) is None
    assert auto_created("T", TopicConfig("Other", 4, 4, 7), 4, off, topic_sys_flag=0) is not None
    assert auto_created("%RETRY%g", None, 4, off, topic_sys_flag=0) == TopicConfig("%RETRY%g", 1, 1, 6)


def test_a_retry_topic_is_made_once_and_has_a_queue() -> None:
    table = TopicTable()
    assert table.ensure_retry("g", 0, 1)
    assert not table.ensure_retry("g", 4, 1)
    assert table.find("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)


def test_attributes_are_added_changed_and_removed() -> None:
    assert changed_attributes({}, "+message.type=FIFO,+cleanup.policy=DELETE", creating=True) == {
        "message.type": "FIFO",
        "cleanup.policy": "DELETE",
    }
    assert changed_attributes({"message.type": "FIFO", "x": "y"}, "-message.type", creating=False) == {"x": "y"}
    assert changed_attributes({"x": "y"}, "", creating=True) == {"x": "y"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("+no.such=1", "unsupported key: no.such"),
        ("message.type=FIFO", "neither \\+key=value nor -key"),
        ("+message.type", "neither"),
        ("-message.type=FIFO", "neither"),
        ("-message.type", "only add attribute"),
        ("+message.type=FIFO,+message.type=NORMAL", "stands twice"),
        ("+message.type=LOUD", "'LOUD' of message.type is not one of"),
        ("+queue.type=BatchCQ", "not one of SimpleCQ"),
    ],
)
def test_bad_attributes_are_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        changed_attributes({}, text, creating=True)


def test_clients_see_the_combined_permission_of_topic_and_broker() -> None:
    config = TopicConfig("T", 4, 4, 7)
    assert with_perm_of_broker(config, 6) is config
    assert with_perm_of_broker(config, 4).perm == 5
    assert with_perm_of_broker(TopicConfig("T", 4, 4, 2), 4).perm == 0
