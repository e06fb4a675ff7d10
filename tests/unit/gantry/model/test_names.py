import pytest

from gantry.model import names
from gantry.model.errors import InvalidNameError
from gantry.model.names import check_group, check_topic, is_system_group, is_system_topic


@pytest.mark.parametrize("name", ["T", "a-b_C9", "%RETRY%g", "ns%name", "a|b", "x" * 127])
def test_legal_names_pass(name: str) -> None:
    check_topic(name)
    check_group(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a/b", "订单", "a\n", "a#b", "é", "a@b", "\x00", "A\u0660"])
def test_illegal_names_are_refused_with_field_and_value(name: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_topic(name)
    assert (caught.value.field, caught.value.value) == ("topic", name)
    assert repr(name) in str(caught.value)
    with pytest.raises(InvalidNameError, match="group"):
        check_group(name)


def test_lengths() -> None:
    with pytest.raises(InvalidNameError, match="128 characters long, at most 127"):
        check_topic("x" * 128)
    check_topic("x" * 255, length_max=names.RETRY_TOPIC_LENGTH_MAX)
    check_group("x" * 255)
    with pytest.raises(InvalidNameError, match="256"):
        check_group("x" * 256)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_topic("x" * 100_000)
    assert len(str(caught.value)) < 200


def test_topics_with_a_special_meaning() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_retry_topic("%RETRY%g")
    assert not names.is_retry_topic("g%RETRY%")
    assert names.is_dlq_topic("%DLQ%g")
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_wheel_timer")
    assert not is_system_topic("Orders")
    assert not is_system_topic("DefaultCluster")
    assert is_system_topic("DefaultCluster", "DefaultCluster", "broker-a")
    assert is_system_topic("DefaultCluster_REPLY_TOPIC", "DefaultCluster")
    assert is_system_topic("broker-a", None, "broker-a")
    assert not is_system_topic("broker-b", "DefaultCluster", "broker-a")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert is_system_group("TOOLS_CONSUMER")
    assert not is_system_group("g")
    assert names.NOT_ALLOWED_SEND_TOPICS < names.SYSTEM_TOPICS


def test_a_retry_topic_names_the_groups_to_which_it_may_belong() -> None:
    assert list(names.groups_of_retry_topic("%RETRY%g")) == ["g"]
    assert list(names.groups_of_retry_topic("%RETRY%a_b_T")) == ["a_b_T", "a", "a_b"]
    assert list(names.groups_of_retry_topic("%RETRY%a_b+T")) == ["a_b+T", "a", "a_b"]
    for is_v2 in (False, True):
        assert "a_b" in names.groups_of_retry_topic(names.pop_retry_topic("a_b", "T", is_v2=is_v2))
