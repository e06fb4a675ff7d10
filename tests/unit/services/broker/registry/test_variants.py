from gantry.model.group import SubscriptionData, parse_tag_expression, sql_subscription
from services.broker.registry.variants import Variants, signature_of

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"


def signature(*subscriptions: SubscriptionData, model: str = CLUSTERING):
    return signature_of(model, subscriptions)


def test_equal_filters_are_equal_in_any_order_and_version_and_without_the_retry_topic() -> None:
    one = signature(parse_tag_expression("T", "A || B", 1), SubscriptionData("%RETRY%g"))
    assert one == signature(parse_tag_expression("T", "B||A", 9))
    assert one != signature(parse_tag_expression("T", "A", 1))
    assert one != signature(parse_tag_expression("T", "A || B", 1), model=BROADCASTING)
    assert signature(sql_subscription("T", "a = 1")) != signature(parse_tag_expression("T", "a = 1", 1))


def test_a_group_differs_from_the_moment_a_second_variant_appears_until_one_is_left() -> None:
    variants = Variants()
    variants.put("one", signature(SubscriptionData("T")), 10)
    variants.put("two", signature(SubscriptionData("T")), 20)
    assert variants.differs_since_ms is None
    variants.put("three", signature(SubscriptionData("U")), 30)
    variants.put("four", signature(SubscriptionData("V")), 40)
    variants.put("three", signature(SubscriptionData("U")), 50)
    assert variants.differs_since_ms == 30
    assert [each.since_ms for each in variants.all().values()] == [10, 30, 40]
    variants.remove("four")
    assert variants.differs_since_ms == 30
    variants.put("three", signature(SubscriptionData("T")), 60)
    assert variants.differs_since_ms is None
    (only,) = variants.all().values()
    assert list(only.members) == ["one", "two", "three"]
    variants.remove("unknown")


def test_models_of_a_group() -> None:
    variants = Variants()
    variants.put("one", signature(SubscriptionData("T")), 10)
    variants.put("two", signature(SubscriptionData("T"), model=BROADCASTING), 20)
    assert variants.models() == {CLUSTERING, BROADCASTING}
