"""The filters of groups, as far as units can decide them."""

from gantry.model.group import SubscriptionData, parse_tag_expression
from gantry.model.javahash import java_hash
from spark.datasource.filters import GroupFilter


def test_tags_become_their_hashes():
    found = GroupFilter.of_expression("TAG", "A || 语言")
    assert found == GroupFilter.of_subscription(parse_tag_expression("T", "A || 语言"))
    assert found.codes == tuple(sorted((java_hash("A"), java_hash("语言"))))
    assert (found.tags, found.error) == ({"A", "语言"}, None)
    assert [found.passes(code) for code in (java_hash("A"), java_hash("B"), 0)] == [True, False, False]


def test_without_a_filter_every_unit_passes():
    for found in (
        GroupFilter.of_expression("TAG", "*"),
        GroupFilter.of_subscription(SubscriptionData("T", sub_string="")),
    ):
        assert (found.expression, found.codes, found.error) == ("*", None, None)
        assert found.passes(0)


def test_sql_filters_are_for_brokers():
    sql = GroupFilter.of_expression("SQL92", "a > 1")
    assert (sql.sql, sql.codes, sql.error) == ("a > 1", None, None)
    assert GroupFilter.of_subscription(SubscriptionData("T", sub_string="a > 1", expression_type="SQL92")) == sql


def test_a_filter_that_can_not_be_applied_is_an_error():
    assert GroupFilter.of_expression("CLASS", "X").error == "a filter of type CLASS can't be applied: X"
    assert "type class" in (GroupFilter.of_subscription(SubscriptionData("T", class_filter_mode=True)).error or "")
    assert "can't be read" in (GroupFilter.of_expression("TAG", " || ").error or "")
