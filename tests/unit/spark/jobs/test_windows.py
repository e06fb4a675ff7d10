"""The window of a job: it never includes the future, and leaves no gap between two runs."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from gantry.runtime.errors import StartupError
from spark.jobs.arguments import Window
from spark.jobs.lag_report import SINCE_MAX, since_of
from spark.jobs.running import refuse_future
from spark.jobs.throughput_rollup import pieces_of
from spark.transforms.lagsettings import LagSettings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "since"),
    [
        (None, timedelta(minutes=15)),
        (NOW - timedelta(minutes=1), timedelta(minutes=15)),
        (NOW - timedelta(minutes=31), timedelta(minutes=31)),
        (NOW - timedelta(days=3), SINCE_MAX),
    ],
)
def test_a_report_begins_at_the_end_of_the_previous_one(before: datetime | None, since: timedelta) -> None:
    assert NOW - since_of(before, NOW, LagSettings()) == since


def test_a_window_whose_samples_are_not_complete_is_refused_with_the_time_from_which_it_can_run() -> None:
    window = Window(NOW - timedelta(hours=1), NOW - timedelta(minutes=4))
    said = "--to: 2026-11-21T11:56:00.000Z is too recent: its samples are complete at 2026-11-21T12:01:00.000Z"
    with pytest.raises(StartupError, match=said):
        refuse_future(window, NOW, settled_after=timedelta(minutes=5))
    refuse_future(window, NOW + timedelta(minutes=1), settled_after=timedelta(minutes=5))


def test_a_window_that_ends_in_the_future_is_refused() -> None:
    refuse_future(None, NOW)
    refuse_future(Window(NOW - timedelta(hours=1), NOW), NOW)
    said = "--to: 2026-11-21T12:00:01.000Z lies in the future: it is 2026-11-21T12:00:00.000Z"
    with pytest.raises(StartupError, match=said):
        refuse_future(Window(NOW - timedelta(hours=1), NOW + timedelta(seconds=1)), NOW)


@pytest.mark.parametrize(
    ("start", "end", "borders"),
    [
        (NOW, NOW + timedelta(hours=1), []),
        (NOW, NOW + timedelta(hours=12), []),
        (NOW, NOW + timedelta(hours=12, seconds=1), [12]),
        (NOW, NOW + timedelta(days=2, hours=12), [12, 36]),
        (NOW - timedelta(hours=12), NOW + timedelta(days=1), [12]),
    ],
)
def test_a_long_window_is_split_at_the_ends_of_days(start: datetime, end: datetime, borders: list[int]) -> None:
    moments = [start, *(NOW + timedelta(hours=hours) for hours in borders), end]
    assert pieces_of(Window(start, end)) == [Window(*ends) for ends in pairwise(moments)]
