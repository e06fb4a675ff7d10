from gantry.model.group import SubscriptionData, parse_tag_expression
from gantry.model.javahash import tags_code
from services.broker.filter.tags import unit_filter


def test_everything_needs_no_filter() -> None:
    for expression in (None, "", "*"):
        assert unit_filter(parse_tag_expression("T", expression)) is None
    assert unit_filter(SubscriptionData("T", sub_string="A")) is None  # The client compares the tags.


def test_tags_are_compared_by_hash_including_negative_hashes() -> None:
    wants = unit_filter(parse_tag_expression("T", "TagA || polygenelubricants"))
    assert wants is not None
    assert tags_code("polygenelubricants") == -(2**31)
    assert wants(tags_code("TagA"))
    assert wants(tags_code("polygenelubricants"))
    assert not wants(tags_code("TagB"))
    assert not wants(0)
