"""Samples thinned to the size of a chart, and forecasts made from them."""

from datetime import datetime, timedelta

import pytest

from spark.page.series import Point, downsampled, drain_band, forecast, read_history
from tests.unit.spark.page.reportrows import NOW, samples


def points(lags: list[float | None]) -> list[Point]:
    return [(NOW + timedelta(seconds=15 * index), lag) for index, lag in enumerate(lags)]


def test_samples_are_sorted_and_by_group_and_topic() -> None:
    found = read_history([*reversed(samples("a", [1, 2, -1])), *samples("b", [5])])
    assert [lag for _, lag in found["a", "ORDERS"].lags] == [1, 2, None]
    assert list(found) == [("a", "ORDERS"), ("b", "ORDERS")]


def test_a_long_time_without_samples_is_a_gap() -> None:
    assert [lag for _, lag in read_history(samples("a", [1, 2], every_s=600))["a", "ORDERS"].lags] == [1, 2]
    assert [lag for _, lag in read_history(samples("a", [1, 2, 3], every_s=700))["a", "ORDERS"].lags] == [
        1,
        None,
        2,
        None,
        3,
    ]


def test_no_line_and_no_forecast_crosses_a_reset_of_offsets() -> None:
    sinks = [1_000.0 - 10 * number for number in range(20)]
    history = [
        {
            "sampled_at": NOW + timedelta(minutes=number),
            "group": "a",
            "topic": "T",
            "lag": lag,
            "is_moved": number == 20,
        }
        for number, lag in enumerate([9_000.0] * 20 + sinks)
    ]
    found = read_history(history)["a", "T"].lags
    assert [lag for _, lag in found[19:22]] == [9_000.0, None, 1_000.0]
    made = forecast(found)
    assert made is not None
    assert (made.expected, made.actual) == pytest.approx((810.0, 810.0))


def test_thinning_keeps_peaks_gaps_and_the_end() -> None:
    lags: list[float | None] = [1.0] * 10_000
    lags[4_321], lags[7_000], lags[-1] = 99.0, None, 5.0
    kept = [lag for _, lag in downsampled(points(lags))]
    assert len(kept) == 120
    assert 99.0 in kept
    assert None in kept
    assert kept[-1] == 5.0
    assert downsampled(points([1.0, 2.0])) == points([1.0, 2.0])


def test_a_forecast_is_a_line_through_the_first_half() -> None:
    made = forecast(points([float(index) for index in range(21)]))
    assert made is not None
    assert (made.start, made.expected, made.actual) == (10.0, 20.0, 20.0)
    sinking = forecast(points([*[100.0 - 9 * index for index in range(11)], *[50.0] * 10]))
    assert sinking is not None
    assert sinking.expected == 0.0  # A lag is never negative.


def test_too_few_samples_give_no_forecast() -> None:
    assert forecast([]) is None
    assert forecast(points([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])) is None
    assert forecast(points([*[1.0] * 20, None])) is None
    assert forecast(points([*[None] * 20, *[1.0] * 20])) is None


def test_a_band_goes_from_the_lag_to_zero_or_to_the_horizon() -> None:
    def band(low: float, high: float, horizon: float) -> list[tuple[float, float, float]]:
        def after(moment: datetime) -> float:
            return (moment - NOW).total_seconds()

        found = drain_band(100.0, NOW, low, high, horizon=timedelta(seconds=horizon))
        return [(after(moment), least, most) for moment, least, most in found]

    assert band(50, 100, 1_000) == [(0, 100, 100), (50, 0, 50), (100, 0, 0)]
    assert band(50, 100, 50) == [(0, 100, 100), (50, 0, 50)]
    assert band(200, 400, 100) == [(0, 100, 100), (100, 50, 75)]
    assert band(0, 0, 10) == []
