import pytest

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import SubscriptionGroup, parse_tag_expression
from gantry.model.javahash import java_hash


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_all(expression: str | None) -> None:
    subscription = parse_tag_expression("T", expression, 7)
    assert subscription.sub_string == "*"
    assert subscription.sub_version == 7
    assert subscription.is_all
    assert subscription.matches_code(0)
    assert subscription.matches_tag(None)


def test_tags() -> None:
    subscription = parse_tag_expression("T", " TagA || TagB||| polygenelubricants ")
    assert subscription.tags_set == {"TagA", "TagB", "| polygenelubricants"}
    subscription = parse_tag_expression("T", "TagA||polygenelubricants")
    assert not subscription.is_all
    assert subscription.code_set == {java_hash("TagA"), -(1 << 31)}
    assert subscription.matches_code(java_hash("TagA"))
    assert subscription.matches_code(-(1 << 31))
    assert not subscription.matches_code(0)
    assert subscription.matches_tag("TagA")
    assert not subscription.matches_tag("TagB")
    assert not subscription.matches_tag(None)


def test_only_the_low_half_of_a_code_counts() -> None:
    subscription = parse_tag_expression("T", "TagA")
    assert subscription.matches_code(java_hash("TagA") + (5 << 32))


@pytest.mark.parametrize("expression", ["||", " ", " || "])
def test_no_tag_at_all_is_refused(expression: str) -> None:
    with pytest.raises(InvalidExpressionError, match="names no tag"):
        parse_tag_expression("T", expression)


def test_defaults_of_a_group() -> None:
    group = SubscriptionGroup("g")
    assert (group.retry_max_times, group.retry_queue_nums, group.consume_timeout_minute) == (16, 1, 15)
    assert group.group_retry_policy == {"type": "CUSTOMIZED"}
