"""Points of a lag over time, from samples that are written only for changes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gantry.model.laghistory import (
    HELD_FOR,
    POINTS_MAX,
    STEPS,
    BehindSince,
    LagPoint,
    LagSample,
    Looks,
    Outage,
    add_up,
    behind_since,
    choose_step,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)


def points(*seen: tuple[float, str, int | None], until_s: float) -> list[tuple[float, int | None]]:
    found = [LagSample(NOON + timedelta(seconds=at_s), broker, lag) for at_s, broker, lag in seen]
    added = add_up(found, step=STEP, until=NOON + timedelta(seconds=until_s))
    return [((point.at - NOON).total_seconds(), point.lag) for point in added]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def named(looks: Looks, *seen: tuple[float, str, int | None], until_s: float) -> list[tuple[Any, ...]]:
    """Return second, lag, missing and late brokers of each point. A lag below 0 says that the group is gone."""
    found = [LagSample(at(at_s), broker, lag, is_gone=lag == -1) for at_s, broker, lag in seen]
    points = add_up(found, step=STEP, until=at(until_s), looks=looks)
    return [((one.at - NOON).total_seconds(), one.lag, one.missing_brokers, one.late_brokers) for one in points]


def test_a_point_names_the_brokers_that_gave_no_numbers() -> None:
    looks = Looks(outages=[Outage("b", at(15), at(30))])
    seen = (1, "a", 5), (1, "b", 7), (16, "a", 4), (31, "a", 3), (46, "a", 2), (46, "b", 6)
    assert named(looks, *seen, until_s=50) == [
        (1, 12, (), ()), (16, None, ("b",), ()), (31, None, ("b",), ()), (46, 8, (), ()),
    ]  # fmt: skip
    # It stays missing for longer than its last sample is valid, and if it was never seen but has the topic.
    long = Looks(outages=[Outage("b", at(10), at(3_600))], homes=["a", "b"])
    looked = [(second, "a", 5) for second in range(0, 1_200, 60)]
    assert named(long, (0, "b", 7), *looked, until_s=1_150)[-1][1:] == (None, ("b",), ())
    assert named(long, *looked, until_s=1_150)[-1][1:] == (None, ("b",), ())
    # Other brokers do not have the topic.
    elsewhere = Looks(outages=[Outage("z", at(0), at(3_600))])
    assert named(elsewhere, (1, "a", 5), until_s=10) == [(1, 5, (), ())]


def test_a_point_adds_up_one_look_at_all_brokers() -> None:
    # The rounds begin shortly before steps do: b answers in the step after.
    looks = Looks(rounds=[at(-0.5), at(14.5), at(29.5)])
    seen = (-0.4, "a", 1), (0.1, "b", 10), (14.6, "a", 2), (15.1, "b", 20), (29.6, "a", 3), (30.1, "b", 30)
    assert [(point[0], point[1]) for point in named(looks, *seen, until_s=30)] == [(0.1, 11), (15.1, 22), (30.1, 33)]


def test_a_point_names_brokers_that_were_late() -> None:
    looks = Looks(rounds=[at(0), at(30)])
    seen = (1, "a", 5), (12, "b", 7), (31, "a", 4), (40.9, "b", 6)
    assert named(looks, *seen, until_s=42) == [(12, None, (), ("b",)), (30, 12, (), ()), (40.9, 10, (), ())]


def test_a_broker_that_lost_the_topic_is_not_missing() -> None:
    looks = Looks(outages=[Outage("b", at(40), at(90))])
    seen = (1, "a", 5), (1, "b", 7), (16, "b", -1), (46, "a", 4)
    assert [point[1] for point in named(looks, *seen, until_s=50)] == [12, 5, 5, 4]


def test_a_pair_without_change_keeps_its_lag() -> None:
    assert points((1, "a", 5), (46, "a", 9), until_s=50) == [(1, 5), (30, 5), (45, 5), (46, 9)]


def test_brokers_that_are_sampled_separately_are_summed() -> None:
    assert points((1, "a", 5), (1, "b", 7), (16, "b", 1), until_s=20) == [(1, 12), (16, 6)]


def test_one_unknown_broker_makes_the_sum_unknown() -> None:
    assert points((1, "a", 5), (2, "b", None), (16, "b", 0), until_s=20) == [(2, None), (16, 5)]


def test_a_broker_without_the_group_any_more_counts_for_nothing() -> None:
    def sample(at_s: float, broker: str, lag: int, *, is_gone: bool = False) -> LagSample:
        return LagSample(NOON + timedelta(seconds=at_s), broker, lag, is_gone=is_gone)

    found = [sample(1, "a", 5), sample(2, "b", 7), sample(16, "b", 0, is_gone=True), sample(31, "a", 0, is_gone=True)]
    added = add_up(found, step=STEP, until=NOON + timedelta(seconds=60))
    assert [((one.at - NOON).total_seconds(), one.lag) for one in added] == [(2, 12), (16, 5)]


def test_a_group_whose_filter_accepts_none_of_its_messages_is_not_behind_in_time() -> None:
    none = LagSample(NOON, "a", 5, None, is_none_waiting=True)
    late = LagSample(NOON, "b", 3, NOON - timedelta(seconds=9))
    (alone,) = add_up([none], step=STEP, until=NOON)
    (both,) = add_up([none, late], step=STEP, until=NOON)
    (unknown,) = add_up([none, late._replace(first_at=None)], step=STEP, until=NOON)
    assert [(point.lag, point.behind_s) for point in (alone, both, unknown)] == [(5, 0), (8, 9), (8, None)]


def test_a_gap_in_the_samples_has_no_points() -> None:
    away_s = HELD_FOR.total_seconds() + 60
    found = points((0, "a", 5), (away_s, "a", 6), until_s=away_s)
    assert found[-1] == (away_s, 6)
    assert found[-2] == (HELD_FOR.total_seconds(), 5)
    assert points(until_s=100) == []


@pytest.mark.parametrize(
    ("span", "step"),
    [
        (timedelta(0), STEPS[0]),
        (STEPS[0] * POINTS_MAX, STEPS[0]),
        (STEPS[0] * POINTS_MAX + timedelta(seconds=1), STEPS[1]),
        (timedelta(days=1), timedelta(minutes=5)),
        (timedelta(days=90), STEPS[-1]),
    ],
)
def test_a_shorter_history_has_smaller_steps(span: timedelta, step: timedelta) -> None:
    assert choose_step(span) == step


def since(*looks: tuple[float, float | None]) -> tuple[float | None, float | None]:
    """Return the second since which a group is behind. `looks` are pairs: second, and age of the oldest message."""
    points = [LagPoint(NOON + timedelta(seconds=at_s), None, behind_s) for at_s, behind_s in looks]
    found = behind_since(points)
    return tuple(None if at is None else (at - NOON).total_seconds() for at in found)  # type: ignore[return-value]


def test_a_group_is_behind_since_its_first_waiting_message() -> None:
    assert since((0, 0.0), (300, 120.0), (600, 420.0)) == (180, 180)
    # Some messages are always in transit.
    assert since((0, 9.0), (60, 2.0), (120, 40.0)) == (80, 80)
    assert since((0, 0.0), (15, 5.0), (30, 20.0)) == (10, 10)
    # The message is older than the last sample in which the group kept up, so the group's offset was set back.
    assert since((0, 0.0), (300, 9_000.0)) == (0, 0)


def test_a_group_that_keeps_up_has_no_start_of_a_lag() -> None:
    assert since((0, 600.0), (300, 0.0)) == (None, None)
    assert since() == (None, None)


def test_a_gap_in_the_samples_makes_the_start_of_the_lag_unknown() -> None:
    assert since((0, 600.0), (300, 900.0)) == (None, 0)
    assert since((0, 0.0), (60, None), (120, 300.0), (180, 360.0)) == (None, 120)
    assert since((0, 0.0), (120, None)) == (None, None)
    away_s = HELD_FOR.total_seconds() + 1
    assert since((0, 0.0), (away_s, 300.0), (away_s + 60, 360.0)) == (None, away_s)
    assert behind_since([]) == BehindSince(None, None)
