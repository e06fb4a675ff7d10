"""Points of a lag over time, from samples that are written only for changes."""

from datetime import UTC, datetime, timedelta

import pytest

from gantry.model.laghistory import (
    HELD_FOR,
    POINTS_MAX,
    STEPS,
    BehindSince,
    LagPoint,
    LagSample,
    add_up,
    behind_since,
    choose_step,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)


def points(*seen: tuple[float, str, int | None], until_s: float) -> list[tuple[float, int | None]]:
    found = [LagSample(NOON + timedelta(seconds=at_s), broker, lag) for at_s, broker, lag in seen]
    added = add_up(found, step=STEP, until=NOON + timedelta(seconds=until_s))
    return [((at - NOON).total_seconds(), lag) for at, lag, _ in added]


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
    assert [((at - NOON).total_seconds(), lag) for at, lag, _ in added] == [(2, 12), (16, 5)]


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
