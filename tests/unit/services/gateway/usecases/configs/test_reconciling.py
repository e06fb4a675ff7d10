"""Decisions that bring brokers to their desired settings."""

from hypothesis import given
from hypothesis import strategies as st

from gantry.model.topic import TopicConfig
from services.gateway.schemas.configs import TopicSettings
from services.gateway.usecases.configs.reconciling import (
    DesiredState,
    Plan,
    decide_all,
    decide_name,
    homes_of,
    merge_observed,
)

FOUR = TopicSettings()
ON_A = TopicSettings(brokers=["a"])


def there(**fields) -> TopicConfig:
    return TopicConfig("T", **{"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, **fields})


def decide(wanted, present, answered=("a", "b"), silent=()):
    return decide_name(wanted, present, answered=answered, silent=silent)


def test_desired_state_needs_no_change():
    plan = decide(DesiredState(1, FOUR), {"a": there(), "b": there(perm=7)})
    assert plan == Plan()
    assert plan.is_settled


def test_missing_or_different_settings_are_written():
    assert decide(DesiredState(1, FOUR), {"a": there(read_queue_nums=8)}).put == ("a", "b")
    assert decide(DesiredState(1, FOUR), {"a": there(perm=4), "b": there()}).put == ("a",)
    assert decide(DesiredState(1, ON_A), {}).put == ("a",)


def test_a_topic_is_not_deleted_only_because_a_broker_is_not_desired():
    assert decide(DesiredState(1, ON_A), {"a": there(), "b": there()}) == Plan()


def test_a_topic_kept_by_a_broker_is_written_only_if_it_is_less_readable_than_desired():
    assert decide(DesiredState(1, ON_A), {"a": there(), "b": there(perm=2)}).put == ("b",)
    assert decide(DesiredState(1, ON_A), {"a": there(), "b": there(read_queue_nums=3)}).put == ("b",)
    more = there(read_queue_nums=8, write_queue_nums=1, perm=4, order=True)
    assert decide(DesiredState(1, ON_A), {"a": there(), "b": more}) == Plan()
    closed = TopicSettings(perm="none", brokers=["a"])
    assert decide(DesiredState(1, closed), {"a": there(perm=0), "b": there()}) == Plan()


def test_a_deleted_topic_is_deleted_on_brokers_and_waits_for_unreachable_ones():
    plan = decide(DesiredState(2, FOUR, is_deleting=True), {"a": there()}, answered=("a",), silent=("b",))
    assert (plan.drop, plan.waiting, plan.is_settled) == (("a",), ("b",), False)
    assert decide(DesiredState(2, FOUR, is_deleting=True), {}).is_settled


def test_settings_unknown_to_postgres_are_adopted():
    assert decide(None, {"b": there()}) == Plan(adopt=True)
    assert decide(None, {}).is_settled


def test_an_unreachable_broker_keeps_a_desired_topic_pending():
    assert decide(DesiredState(1, FOUR), {"a": there()}, answered=("a",), silent=("b",)).waiting == ("b",)
    assert decide(DesiredState(1, ON_A), {"a": there()}, answered=("a",), silent=("b",)).is_settled


def test_only_names_with_pending_work_are_planned():
    wanted = {
        "done": DesiredState(1, FOUR, is_applied=True),
        "late": DesiredState(1, FOUR),
        "bad": DesiredState(1, FOUR, is_applied=True),
    }
    present = {"done": {"a": there()}, "late": {"a": there()}, "bad": {}, "new": {"a": there()}}
    plans = decide_all(wanted, present, answered=["a"], silent=[])
    assert plans == {"late": Plan(), "bad": Plan(put=("a",)), "new": Plan(adopt=True)}


def test_an_unreachable_broker_is_still_a_home():
    """Otherwise ordering keys would move to another broker while theirs is away."""
    assert homes_of(FOUR, ["a"], {"a": {}, "b": {}}) == ["a", "b"]
    assert homes_of(FOUR, ["a", "new"], {"a": {}}) == ["a", "new"]
    assert homes_of(ON_A, ["a", "b"], {"b": {}}) == ["a"]
    before = {"a": {"read_queues": 1}, "b": {"read_queues": 2}, "c": {"read_queues": 3}}
    now = {"a": {"read_queues": 9}}
    assert merge_observed(before, now, answered=["a", "c"]) == {"a": {"read_queues": 9}, "b": {"read_queues": 2}}


CONFIGS = st.builds(there, read_queue_nums=st.integers(1, 3), perm=st.integers(0, 7), order=st.booleans())
SETTINGS = st.builds(
    TopicSettings,
    read_queues=st.integers(1, 3),
    perm=st.sampled_from(["rw", "r", "w", "none"]),
    brokers=st.none() | st.lists(st.sampled_from("abc"), min_size=1, unique=True),
)


@given(
    st.none() | st.builds(DesiredState, st.just(1), SETTINGS, st.booleans()),
    st.dictionaries(st.sampled_from("abc"), CONFIGS),
)
def test_an_applied_plan_leaves_nothing_to_do(wanted, present):
    """After one execution the plan is empty: the reconciler does not repeat itself."""
    plan = decide_name(wanted, present, answered=("a", "b", "c"), silent=())
    after = {broker: config for broker, config in present.items() if broker not in plan.drop}
    for broker in plan.put:
        after[broker] = wanted.settings.applied_to("T", present.get(broker))
    if plan.adopt:
        return
    assert decide_name(wanted, after, answered=("a", "b", "c"), silent=()).is_settled
    if wanted is not None and not wanted.is_deleting:
        assert after.keys() >= present.keys()
