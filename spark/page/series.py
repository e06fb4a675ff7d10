"""Lag over time: reduces samples to the number that a chart can show, and makes a forecast from their first half."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from spark.page.formatting import moment, number

POINTS_MAX: Final = 120
"""The limit for the points of a chart: more can't be distinguished in a chart of this size."""
GAP_MAX: Final = timedelta(minutes=11)
"""The longest time between two samples without a gap. There is a sample at least every five minutes; if two are
missing, there is a gap."""
FORECAST_SAMPLES_MIN: Final = 4
"""The fewest samples in each half: two points make a line, but not a forecast."""

_INSTANT: Final = timedelta(milliseconds=1)
"""The length of the gap before a sample that found moved offsets."""

Point: TypeAlias = tuple[datetime, float | None]
"""A sample; None if the lag was unknown."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A straight line through the first half of the samples, extended to the last one.

    Attributes:
        made_at: The time of the last sample in the first half.
        start: The lag at that time.
        until: The time of the last sample.
        expected: The lag that the line gives for that time; at least 0.
        actual: The lag of the last sample.
    """

    made_at: datetime
    start: float
    until: datetime
    expected: float
    actual: float


@dataclass(frozen=True, slots=True)
class LagSeries:
    """The history of a lag, the oldest sample first: messages, and seconds that the oldest message had waited."""

    lags: list[Point]
    waits: list[Point]

    def ended(self, at: datetime, lag: float | None, waited_s: float | None, *, is_moved: bool = False) -> "LagSeries":
        """Return this history with the given last point, and without the points at or after it.

        `is_moved`: whether offsets have moved since the last sample although no messages were consumed.
        """
        return LagSeries(
            _ended(self.lags, at, lag, is_moved=is_moved), _ended(self.waits, at, waited_s, is_moved=is_moved)
        )


def read_history(history: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], LagSeries]:
    """Return the history of each (group, topic), with gaps where the lag is unknown."""
    found: dict[tuple[str, str], dict[datetime, tuple[float | None, float | None]]] = {}
    for sample in history:
        sampled_at = moment(sample["sampled_at"])
        if sampled_at is not None:
            points = found.setdefault((str(sample["group"]), str(sample["topic"])), {})
            points[sampled_at] = number(sample["lag"]), number(sample.get("behind_s"))
            if sample.get("is_moved"):
                # The samples before the move say nothing about how the lag continues.
                points[sampled_at - _INSTANT] = None, None
    pasts = {}
    for key, points in found.items():
        moments = sorted(points)
        pasts[key] = LagSeries(*(_with_holes([(at, points[at][which]) for at in moments]) for which in (0, 1)))
    return pasts


def _ended(points: Sequence[Point], at: datetime, value: float | None, *, is_moved: bool) -> list[Point]:
    hole: list[Point] = [(at - _INSTANT, None)] if is_moved else []
    return _with_holes([*(point for point in points if point[0] < at - _INSTANT), *hole, (at, value)])


def _with_holes(points: Sequence[Point]) -> list[Point]:
    """Add an unknown point wherever samples are missing for long: a line across the gap would show unknown values."""
    whole: list[Point] = []
    for at, lag in points:
        if whole and at - whole[-1][0] > GAP_MAX:
            before = whole[-1][0]
            whole.append((before + (at - before) / 2, None))
        whole.append((at, lag))
    return whole


def downsampled(points: Sequence[Point], *, most: int = POINTS_MAX) -> list[Point]:
    """Return at most `most` points: the highest of each stretch, so that no peak is lost, and always the last point."""
    if len(points) <= most:
        return list(points)
    stretches = most - 1
    kept: list[Point] = []
    for index in range(stretches):
        stretch = points[index * (len(points) - 1) // stretches : (index + 1) * (len(points) - 1) // stretches]
        # A stretch with a gap shows the gap: a line across it would show unknown values.
        kept.append(max(stretch, key=lambda point: float("inf") if point[1] is None else point[1]))
    return [*kept, points[-1]]


def forecast(points: Sequence[Point]) -> Forecast | None:
    """Return the forecast of the first half for the end; None if there are too few samples or the end is unknown.

    It uses only the points after the last move of offsets.
    """
    if not points or points[-1][1] is None:
        return None
    until, actual = points[-1][0], points[-1][1]
    points = points[_last_move(points) :]
    first = points[0][0]
    made_at = first + (until - first) / 2
    early = [(at, lag) for at, lag in points if lag is not None and at <= made_at]
    late = [at for at, lag in points if lag is not None and at > made_at]
    if len(early) < FORECAST_SAMPLES_MIN or len(late) < FORECAST_SAMPLES_MIN:
        return None
    slope = _slope([((at - first).total_seconds(), lag) for at, lag in early])
    start_at, start = early[-1]
    expected = max(0.0, start + slope * (until - start_at).total_seconds())
    return Forecast(start_at, start, until, expected, actual)


def _last_move(points: Sequence[Point]) -> int:
    """Return the index of the first point after the last move of offsets; 0 if there is none."""
    places = range(1, len(points))
    moves = (place for place in places if points[place - 1] == (points[place][0] - _INSTANT, None))
    return max(moves, default=0)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the growth per second, by least squares."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def drain_band(
    lag: float, start: datetime, low_s: float, high_s: float, *, horizon: timedelta
) -> list[tuple[datetime, float, float]]:
    """Return (moment, lowest lag, highest lag) of a backlog that drains in `low_s` to `high_s`, up to a horizon."""
    end_s = min(high_s, horizon.total_seconds())
    steps = sorted({0.0, min(low_s, end_s), end_s})
    return [
        (
            start + timedelta(seconds=s),
            max(0.0, lag * (1 - s / low_s)) if low_s else 0.0,
            max(0.0, lag * (1 - s / high_s)),
        )
        for s in steps
        if high_s
    ]
