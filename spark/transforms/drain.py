"""The estimated time until a backlog is consumed, with an interval.

The lag L shrinks by the net rate m (out - in). The rate was measured over W seconds, and it varies: over T seconds, the
shrinkage has the variance D * T. So the backlog is gone at the time T at which

    L - m * T = 0,    plus or minus    k * sqrt(D * (T + T * T / W) + Q)

`D * T` is the variance of the future rates. `D * T * T / W` is the variance of the error of the measured mean. Q is the
variance of an offset that was read somewhere between two steps. low and high are the two times at which the left side
is as large as the right side (Fieller's interval). They are the roots of a * T * T - b * T + c, where

    a = m * m - k * k * D / W      if it is not above 0, high is null: the backlog may never be consumed
    b = 2 * L * m + k * k * D
    c = L * L - k * k * Q

D is the long-run variance of the net rates of stretches of time: their variance, plus twice the covariance of
neighbours if it is above 0, because a high rate tends to stay high for a while. A stretch is one quarter. It is several
quarters if a quarter is shorter than `stretch_min_s`, or than the intervals between readings: two stretches within one
interval do not show how long a rate lasts.

The mean comes from the same n stretches as the variance and the covariance. If rates last, each of the three terms is
too small by 1 / n of their sum, so the sum is multiplied by n / (n - 3). k is z, corrected for the number of values
(Cornish-Fisher's first term of Student's quantile).

There is no ETA, and no interval, if less than `drain_messages_min` was drained in the window, or if it would be longer
than `drain_eta_max_s`. An upper end beyond `drain_eta_max_s` is null, too. `drain_unknown` says why (ADR 0053).

Tests measure how often the true end lies within the interval: docs/internals/lag.md.
"""

from typing import Final

from spark.transforms.lagsettings import LagSettings
from spark.transforms.sqltext import Sql, choose

DAY_S: Final = 86_400
STEP_VARIANCE: Final = 1 / 24
"""The variance of an offset that was read somewhere within a step of length 1. It would be 1 / 12 if one step lay
between two readings. Usually there are several smaller steps."""
_PARTS: Final = (
    "transform(sequence(1, size(net_quarters), stretch),"
    " first -> filter(slice(net_quarters, first, stretch), rate -> rate IS NOT NULL))"
)
_MEAN: Final = "aggregate(part, double(0), (total, rate) -> total + rate) / size(part)"
_DEVIATION: Final = "rate -> rate - aggregate(stretches, double(0), (total, rate) -> total + rate) / size(stretches)"
_NEIGHBOURS: Final = (
    "zip_with(slice(deviations, 1, size(deviations) - 1), slice(deviations, 2, size(deviations) - 1),"
    " (one, next) -> one * next)"
)


def drain_steps(settings: LagSettings) -> list[dict[str, Sql]]:
    """Return the columns drain_eta_s, drain_eta_low_s, drain_eta_high_s and drain_unknown, and others, in steps.

    A step needs the columns of the steps before it. The first one needs lag_messages and stands_queues, and the sums of
    net_rate, net_quarters, step_messages, intervals and forecast_s from `queue_rates`.

    Args:
        settings: The thresholds.
    """
    eta_max_s = f"double('{settings.drain_eta_max_s}')"
    has_drained = f"net_rate * forecast_s >= double('{settings.drain_messages_min}')"
    is_draining = f"lag_messages > 0 AND stands_queues = 0 AND {has_drained} AND lag_messages / net_rate <= {eta_max_s}"
    freedom = "nullif(least(size(stretches), intervals) - 1, 0)"
    has_spread = f"drain_eta_s IS NOT NULL AND {freedom} >= 1"
    quarter_s = f"(forecast_s / {4 * settings.pieces})"
    z = settings.drain_z
    # A stretch has at most one piece, so that there are five stretches, unless the intervals between readings are
    # longer.
    of_time = f"least(4, ceil(double('{settings.stretch_min_s}') / nullif({quarter_s}, double(0))))"
    of_intervals = "ceil(size(net_quarters) / nullif(intervals, 0))"
    unbiased = "size(stretches) / greatest(size(stretches) - 3, 1)"
    long_run = f"{quarter_s} * stretch * (variance + 2 * greatest(covariance, double(0))) * {unbiased}"
    root = "(b + sqrt(greatest(b * b - 4 * a * c, double(0))))"
    return [
        {
            "drain_eta_s": choose((is_draining, Sql("lag_messages / net_rate"))),
            "stretch": Sql(f"int(greatest(1, {of_time}, {of_intervals}))"),
        },
        {"parts": Sql(_PARTS)},
        {"stretches": Sql(f"transform(filter(parts, part -> size(part) * 2 >= stretch), part -> {_MEAN})")},
        {"deviations": choose((has_spread, Sql(f"transform(stretches, {_DEVIATION})")))},
        {
            "variance": Sql(f"{_sum('transform(deviations, one -> one * one)')} / (size(deviations) - 1)"),
            "covariance": Sql(f"{_sum(_NEIGHBOURS)} / (size(deviations) - 1)"),
            "measured_s": Sql(f"nullif(size(flatten(parts)) * {quarter_s}, double(0))"),
            "k2": Sql(f"power(double('{z}') * (1 + double('{(z * z + 1) / 4}') / {freedom}), 2)"),
            "q": Sql(f"power(step_messages, 2) * double('{STEP_VARIANCE}')"),
        },
        {
            "a": Sql(f"net_rate * net_rate - k2 * ({long_run}) / measured_s"),
            "b": Sql(f"2 * lag_messages * net_rate + k2 * ({long_run})"),
            "c": Sql("power(lag_messages, 2) - k2 * q"),
        },
        {
            "drain_eta_low_s": choose(
                ("b IS NOT NULL AND c > 0", Sql(f"2 * c / {root}")), ("b IS NOT NULL AND c <= 0", Sql("double(0)"))
            ),
            "drain_eta_high_s": choose((f"a > 0 AND {root} / (2 * a) <= {eta_max_s}", Sql(f"{root} / (2 * a)"))),
            # The Chinese console translates these sentences by patterns, too: see lagtexts.py.
            "drain_unknown": choose(
                ("lag_messages IS NULL OR lag_messages = 0 OR drain_eta_s IS NOT NULL", Sql("CAST(NULL AS STRING)")),
                ("stands_queues > 0", "nothing is consumed from at least one queue"),
                ("net_rate IS NULL", "the rates are not known yet"),
                (f"NOT ({has_drained})", "the lag does not shrink at the present rates"),
                otherwise=f"at the present rates it takes more than {settings.drain_eta_max_s / DAY_S:.0f} days",
            ),
        },
    ]


def _sum(array: str) -> Sql:
    return Sql(f"aggregate({array}, double(0), (total, one) -> total + one)")
