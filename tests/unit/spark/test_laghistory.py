"""Points of a lag over time, from samples that are written only where something moved."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from spark.lagblocks import UNKNOWN
from spark.laghistory import HELD_FOR, POINTS_MAX, STEPS, QueueOffsets, Seen, add_up, choose_step, were_moved

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)


def points(*seen: tuple[float, str, int | None], until_s: float) -> list[tuple[float, int | None]]:
    found = [Seen(NOON + timedelta(seconds=at_s), broker, lag) for at_s, broker, lag in seen]
    added = add_up(found, step=STEP, until=NOON + timedelta(seconds=until_s))
    return [((at - NOON).total_seconds(), lag) for at, lag, _ in added]


def test_what_did_not_move_stays_until_it_moves() -> None:
    assert points((1, "a", 5), (46, "a", 9), until_s=50) == [(1, 5), (30, 5), (45, 5), (46, 9)]


def test_brokers_that_are_sampled_apart_are_added_up() -> None:
    assert points((1, "a", 5), (1, "b", 7), (16, "b", 1), until_s=20) == [(1, 12), (16, 6)]


def test_one_broker_that_is_not_known_makes_the_sum_unknown() -> None:
    assert points((1, "a", 5), (2, "b", None), (16, "b", 0), until_s=20) == [(2, None), (16, 5)]


def test_where_nobody_looked_there_is_no_point() -> None:
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
def test_a_younger_past_has_smaller_steps(span: timedelta, step: timedelta) -> None:
    assert choose_step(span) == step


def offsets(at_s: float, *queues: tuple[int, int, int]) -> QueueOffsets:
    columns = [np.array(column, dtype=np.int64) for column in zip(*queues, strict=True)]
    return QueueOffsets(round(at_s * 1_000), np.arange(len(queues)), *columns)


STILL = (0, 5_000_000, 100)


@pytest.mark.parametrize(
    ("after", "is_moved"),
    [
        ((0, 5_000_000, 100), False),
        ((0, 5_000_500, 750_000), False),
        ((0, 5_000_000, 750_101), True),  # More than anybody consumes in 15 s.
        ((0, 5_000_000, 69), False),  # Whoever takes over a queue repeats a little.
        ((0, 5_000_000, 68), True),
        ((100, 5_000_000, 100), False),
        ((101, 5_000_000, 100), True),  # Trimmed before it was consumed.
        ((0, 10, 5), True),
        ((0, 5_000_000, UNKNOWN), False),
    ],
)
def test_offsets_that_moved_without_messages_being_consumed(after: tuple[int, int, int], is_moved: bool) -> None:
    assert were_moved(offsets(0, STILL, STILL), offsets(15, STILL, after)) is is_moved
    assert were_moved(offsets(0, (0, 9, UNKNOWN), STILL), offsets(15, (5, 9, 9), after)) is is_moved


def test_a_pair_with_other_queues_has_moved() -> None:
    assert were_moved(offsets(0, STILL), offsets(15, STILL, STILL))
