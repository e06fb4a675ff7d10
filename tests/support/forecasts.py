"""How good forecasts of the ends of backlogs are, once the ends are known."""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Foretold(NamedTuple):
    """When a backlog was gone, and what was foretold, all in seconds from the report on; None where nothing was said."""

    true_s: float
    eta_s: float | None
    low_s: float | None
    high_s: float | None

    @property
    def is_within(self) -> bool:
        """Whether the true end lies in the interval; one without an upper end has all that is later."""
        return (
            self.low_s is not None and self.low_s <= self.true_s and (self.high_s is None or self.true_s <= self.high_s)
        )

    @property
    def place(self) -> float:
        """Where in the interval the true end lies: 0 at its lower end, 1 at its upper one."""
        if self.low_s is None or self.high_s is None:
            return 0.0
        return (self.true_s - self.low_s) / (self.high_s - self.low_s)


class Judgement(NamedTuple):
    """How good forecasts were.

    Attributes:
        within: The share of true ends that lie in their interval.
        width: Of the intervals, in units of the middle half's spread: between the first and the third quarter of true
            ends, each measured by its own interval. Of ends that are spread as a normal distribution, nine of ten lie
            in an interval of 2.4. Infinite where half of the ends lie in one place.
        unbounded: How many intervals had no upper end; they count as infinitely wide.
    """

    within: float
    width: float
    unbounded: int


def judge(forecasts: Iterable[Foretold]) -> Judgement:
    """Return how good forecasts were."""
    made = list(forecasts)
    first, _, third = statistics.quantiles([one.place for one in made], n=4, method="inclusive")
    return Judgement(
        within=sum(one.is_within for one in made) / len(made),
        width=1 / (third - first) if third > first else math.inf,
        unbounded=sum(one.high_s is None for one in made),
    )
