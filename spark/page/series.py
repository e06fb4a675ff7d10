"""Lag over time: samples brought down to what a picture can show, and what their first half foretold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from spark.page.shown import moment, number

POINTS_MAX: Final = 120
"""More cannot be told apart in a chart of this size."""
GAP_MAX: Final = timedelta(minutes=11)
"""A sample is written every five minutes at least: two of them missing, and nobody looked."""
FORECAST_SAMPLES_MIN: Final = 4
"""In each half: two points make a line, but not a forecast."""

_INSTANT: Final = timedelta(milliseconds=1)
"""How long the hole is before a point at which offsets were found moved."""

Point: TypeAlias = tuple[datetime, float | None]
"""A sample; None where the lag was not known."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A straight line through the first half of the samples, drawn on to the last one.

    Attributes:
        made_at: Where the first half ends.
        start: The lag then.
        expected: What the line says for the last sample's time; at least 0.
        actual: What it was.
    """

    made_at: datetime
    start: float
    until: datetime
    expected: float
    actual: float


@dataclass(frozen=True, slots=True)
class Past:
    """How a lag went, the oldest first: messages, and seconds that the oldest had waited."""

    lags: list[Point]
    waits: list[Point]

    def ended(self, at: datetime, lag: float | None, waited_s: float | None) -> "Past":
        """Return this past with a last point of its own, and nothing behind it."""
        return Past(_ended(self.lags, at, lag), _ended(self.waits, at, waited_s))


def read_history(history: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Past]:
    """Return the past of each (group, topic); with holes where a line would claim to know."""
    found: dict[tuple[str, str], dict[datetime, tuple[float | None, float | None]]] = {}
    for sample in history:
        sampled_at = moment(sample["sampled_at"])
        if sampled_at is not None:
            points = found.setdefault((str(sample["group"]), str(sample["topic"])), {})
            points[sampled_at] = number(sample["lag"]), number(sample.get("behind_s"))
            if sample.get("is_moved"):
                # What lies before says nothing of how the lag goes on.
                points[sampled_at - _INSTANT] = None, None
    pasts = {}
    for key, points in found.items():
        moments = sorted(points)
        pasts[key] = Past(*(_with_holes([(at, points[at][which]) for at in moments]) for which in (0, 1)))
    return pasts


def _ended(points: Sequence[Point], at: datetime, value: float | None) -> list[Point]:
    return _with_holes([*(point for point in points if point[0] < at), (at, value)])


def _with_holes(points: Sequence[Point]) -> list[Point]:
    """Add a point that is not known wherever nobody looked for long: a line over it would claim to know."""
    whole: list[Point] = []
    for at, lag in points:
        if whole and at - whole[-1][0] > GAP_MAX:
            before = whole[-1][0]
            whole.append((before + (at - before) / 2, None))
        whole.append((at, lag))
    return whole


def thinned(points: Sequence[Point], *, most: int = POINTS_MAX) -> list[Point]:
    """Return at most `most` points: of each stretch its highest, so that no peak is lost; the last one always."""
    if len(points) <= most:
        return list(points)
    stretches = most - 1
    kept: list[Point] = []
    for index in range(stretches):
        stretch = points[index * (len(points) - 1) // stretches : (index + 1) * (len(points) - 1) // stretches]
        # A stretch with a hole shows the hole: a line over it would claim to know.
        kept.append(max(stretch, key=lambda point: float("inf") if point[1] is None else point[1]))
    return [*kept, points[-1]]


def forecast(points: Sequence[Point]) -> Forecast | None:
    """Return what the first half foretold for the end; None where there are too few samples, or the end is unknown.

    It looks at points behind the last move of offsets.
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
    """Return the place of the first point behind the last hole of an instant; 0 where there is none."""
    places = range(1, len(points))
    moves = (place for place in places if points[place - 1] == (points[place][0] - _INSTANT, None))
    return max(moves, default=0)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the growth a second by least squares."""
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
    """Return (moment, lowest, highest lag) of a backlog that is gone between `low_s` and `high_s`, up to a horizon."""
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
