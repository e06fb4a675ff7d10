"""Accuracy of forecasts for the ends of backlogs, computed once the true ends are known."""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple


class ForecastOutcome(NamedTuple):
    """The true end of a backlog and the forecast for it, in seconds from the report on; None if nothing was forecast."""

    true_s: float
    eta_s: float | None
    low_s: float | None
    high_s: float | None

    @property
    def is_within(self) -> bool:
        """Return whether the true end lies in the interval; an interval without an upper end contains all later times."""
        return (
            self.low_s is not None and self.low_s <= self.true_s and (self.high_s is None or self.true_s <= self.high_s)
        )

    @property
    def position(self) -> float:
        """Return the position of the true end in the interval: 0 at its lower end, 1 at its upper one."""
        if self.low_s is None or self.high_s is None:
            return 0.0
        return (self.true_s - self.low_s) / (self.high_s - self.low_s)


class Judgement(NamedTuple):
    """Accuracy of a set of forecasts.

    Attributes:
        within: The share of true ends that lie in their interval.
        width: Width of the intervals, in units of the interquartile range of the true ends, each measured by its own
            interval. For normally distributed ends, an interval of width 2.4 holds nine out of ten. Infinite if half of
            the ends are equal.
        unbounded: Number of intervals without an upper end; they count as infinitely wide.
    """

    within: float
    width: float
    unbounded: int


def judge(forecasts: Iterable[ForecastOutcome]) -> Judgement:
    """Return the accuracy of the forecasts."""
    made = list(forecasts)
    first, _, third = statistics.quantiles([one.position for one in made], n=4, method="inclusive")
    return Judgement(
        within=sum(one.is_within for one in made) / len(made),
        width=1 / (third - first) if third > first else math.inf,
        unbounded=sum(one.high_s is None for one in made),
    )
