"""The filters of groups, as far as units can decide them."""

from gantry.model.group import SubscriptionData, parse_tag_expression
from gantry.model.javahash import java_hash
from spark.datasource.filters import TagFilter


def test_tags_become_their_hashes():
    found = TagFilter.of_expression("TAG", "A || 语言")
    assert found == TagFilter.of_subscription(parse_tag_expression("T", "A || 语言"))
    assert found.codes == tuple(sorted((java_hash("A"), java_hash("语言"))))
    assert (found.tags, found.error) == ({"A", "语言"}, None)
    assert [found.passes(code) for code in (java_hash("A"), java_hash("B"), 0)] == [True, False, False]


def test_without_a_filter_every_unit_passes():
    for found in (TagFilter.of_expression("TAG", "*"), TagFilter.of_subscription(SubscriptionData("T", sub_string=""))):
        assert (found.expression, found.codes, found.error) == ("*", None, None)
        assert found.passes(0)


def test_a_filter_that_units_can_not_apply_is_an_error():
    sql = TagFilter.of_expression("SQL92", "a > 1")
    assert sql.error == "a filter of type SQL92 can't be applied to units: a > 1"
    live = SubscriptionData("T", sub_string="a > 1", expression_type="SQL92")
    assert TagFilter.of_subscription(live).error == sql.error
    assert "type class" in (TagFilter.of_subscription(SubscriptionData("T", class_filter_mode=True)).error or "")
    assert "can't be read" in (TagFilter.of_expression("TAG", " || ").error or "")
