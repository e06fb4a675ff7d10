from gantry.remoting.bodies.variants import GroupVariants, MemberVariant, WantedTopic
from services.gateway.usecases.consuming.consistency import Side, judge


def variant(*clients: str, since: int, model: str = "CLUSTERING", **topics: str) -> MemberVariant:
    wanted = [WantedTopic(topic=topic, expression_type="TAG", expression=filter_) for topic, filter_ in topics.items()]
    return MemberVariant(
        client_ids=list(clients), clients=len(clients), message_model=model, since=since, subscriptions=wanted
    )


def shown(side: Side) -> tuple[str, list[str], int, int]:
    return side.value, list(side.clients), side.clients_count, side.since_ms


def test_members_that_agree_on_all_brokers_are_consistent_and_counted_once() -> None:
    answers = [GroupVariants(variants=[variant("one", "two", since=10, T="*")]) for _ in range(2)]
    found = judge(answers, [])
    assert (found.is_consistent, found.since_ms, found.differences) == (True, None, ())
    assert judge([], []).is_consistent is True


def test_without_an_answer_from_every_broker_agreement_is_unknown_and_a_difference_is_not() -> None:
    alike = GroupVariants(variants=[variant("one", since=10, T="*")])
    assert judge([alike], ["broker b: away"]).is_consistent is None
    differing = GroupVariants(differs_since=20, variants=[*alike.variants, variant("two", since=20, T="A")])
    assert judge([differing], ["broker b: away"]).is_consistent is False


def test_each_difference_names_its_sides() -> None:
    answer = GroupVariants(
        differs_since=20,
        variants=[
            variant("one", "two", since=10, T="A || B"),
            variant("three", since=20, T="A", U="*"),
            variant("four", since=30, model="BROADCASTING", T="A"),
        ],
    )
    found = judge([answer, answer], [])
    assert (found.is_consistent, found.since_ms) == (False, 20)
    assert {(one.kind, one.topic): [shown(side) for side in one.sides] for one in found.differences} == {
        ("models", None): [("CLUSTERING", ["one", "two", "three"], 3, 10), ("BROADCASTING", ["four"], 1, 30)],
        ("filters", "T"): [("A || B", ["one", "two"], 2, 10), ("A", ["three", "four"], 2, 20)],
        ("topics", "U"): [("not_subscribed", ["one", "two", "four"], 3, 10), ("subscribed", ["three"], 1, 20)],
    }


def test_brokers_that_differ_from_each_other_show_a_difference() -> None:
    found = judge(
        [
            GroupVariants(variants=[variant("one", since=10, T="A")]),
            GroupVariants(variants=[variant("one", since=15, T="B")]),
        ],
        [],
    )
    assert (found.is_consistent, found.since_ms) == (False, 15)
