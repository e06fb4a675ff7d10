"""The state of each group in each queue: its lag, the age of the lag, the retention time left, and flags for verdicts.

Unknown values are null, and `unknown` gives the reason. A queue without unconsumed messages is known even if the group
never committed, and even if the first unconsumed message could not be looked up.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

from gantry.model.names import RETRY_PREFIX
from spark.transforms.lagsettings import LagSettings
from spark.transforms.rates import QUEUE_KEYS, SECOND_US

_PRESENT: Final = (
    *("in_rate", "out_rate", "in_messages", "net_rate", "net_rates", "net_quarters", "step_messages", "intervals"),
    *("forecast_s", "stood_s"),
)
NEVER_COMMITTED: Final = (
    "the group has never committed an offset here, so the offset at which it would begin is unknown"
)


def queue_lag(survey: DataFrame, rates: DataFrame, *, as_of: datetime | Column, settings: LagSettings) -> DataFrame:
    """Return a row for each row of `survey`.

    Args:
        survey: Rows of kind `survey`.
        rates: The result of `queue_rates`.
        as_of: The time of rows whose broker gave no numbers: a time with a time zone, or a column of the survey.
        settings: The thresholds.
    """
    joined = survey.join(rates, on=list(QUEUE_KEYS), how="left")
    # The rates of a broker that gave no numbers would be those of a time before the report.
    joined = joined.withColumns({name: fn.when(fn.col("read_at").isNotNull(), fn.col(name)) for name in _PRESENT})
    # Spark analyses the plan at each step. So a step adds all columns that don't need each other.
    numbers = joined.withColumns({"as_of": fn.coalesce("read_at", fn.lit(as_of)), **_numbers()})
    clocks = numbers.withColumns(_clocks(settings))
    ages = clocks.withColumns(_ages(settings))
    return _flags(ages.withColumns({"unknown": _unknown(), **_neighbourhood()}), settings)


def _numbers() -> dict[str, Column]:
    """Return lag_messages, trimmed, has_head, never_committed."""
    low, high, committed = fn.col("min_offset"), fn.col("max_offset"), fn.col("committed_offset")
    is_empty = low == high
    lag = (
        fn.when(committed.isNull() & is_empty, fn.lit(0))
        .when(low.isNull(), fn.lit(None))
        # A commit beyond the end belongs to a deleted queue. The position in this queue is unknown.
        .when(committed <= high, high - fn.greatest(committed, low))
        .cast("long")
    )
    head = (
        fn.when(lag == 0, fn.lit(False))
        .when(lag.isNull(), fn.lit(None))
        .when(fn.col("head_error").isNull(), fn.col("first_offset").isNotNull())
    )
    never = low.isNotNull() & high.isNotNull() & committed.isNull() & ~is_empty
    return {
        "lag_messages": lag,
        "trimmed": fn.when(committed < low, low - committed).otherwise(fn.lit(0)),
        "never_committed": _is_true(never),
        "has_head": head,
    }


def _clocks(settings: LagSettings) -> dict[str, Column]:
    """Return is_broker_clock, broker_now, is_retry and late_s.

    Store times come from the broker's clock, `as_of` from the reader's. If the clocks differ, the broker's clock is
    used for both. `late_s` is the time from the answer of the topic's first broker to that of this broker.
    """
    as_of_us, stored_us = fn.unix_micros("as_of"), fn.unix_micros("first_stored_at")
    skew_us = fn.col("clock_skew_ms") * 1_000
    is_off = fn.abs(skew_us) > settings.clock_skew_max_s * SECOND_US
    is_broker_clock = fn.coalesce(is_off | ((stored_us > as_of_us) & skew_us.isNotNull()), fn.lit(False))
    read_us = fn.unix_micros("read_at")
    return {
        "is_broker_clock": fn.col("has_head") & is_broker_clock,
        "broker_now": fn.timestamp_micros(as_of_us + skew_us),
        "is_retry": fn.col("topic") == fn.concat(fn.lit(RETRY_PREFIX), fn.col("group")),
        "late_s": (read_us - fn.min(read_us).over(_all("group", "topic"))) / SECOND_US,
    }


def _ages(settings: LagSettings) -> dict[str, Column]:
    """Return lag_seconds, oldest_unconsumed_at, retention_left_s and is_late.

    `is_late` is whether the broker answered too late to add its numbers to the others.
    """
    stored_us = fn.unix_micros("first_stored_at")
    now_us = fn.unix_micros(fn.when(fn.col("is_broker_clock"), fn.col("broker_now")).otherwise(fn.col("as_of")))
    # By the broker's clock no message is stored later, except within the ms that its answer took.
    age_us = fn.when(stored_us <= now_us, now_us - stored_us).when(
        fn.col("is_broker_clock") & (stored_us > now_us), fn.lit(0)
    )
    left_us = fn.unix_micros("expires_at") - now_us
    left = fn.when(left_us < 0, fn.lit(0.0)).otherwise(left_us / SECOND_US)
    return {
        "lag_seconds": fn.when(~fn.col("has_head"), fn.lit(0.0)).when(fn.col("has_head"), age_us / SECOND_US),
        "oldest_unconsumed_at": fn.when(fn.col("has_head"), fn.col("first_stored_at")),
        "retention_left_s": fn.when(fn.col("has_head"), left),
        "is_late": _is_true(fn.col("late_s") > settings.late_s),
    }


def _unknown() -> Column:
    """Return the reason why numbers are missing; null if none is missing."""
    # The Chinese console translates these reasons by patterns, too: see lagtexts.py.
    beyond = fn.concat(
        fn.lit("the committed offset "),
        fn.col("committed_offset"),
        fn.lit(" is beyond the end of the queue, "),
        fn.col("max_offset"),
        fn.lit(": the topic was probably deleted and made again"),
    )
    return (
        fn.when(
            fn.col("min_offset").isNull() | fn.col("max_offset").isNull(),
            fn.coalesce("offsets_error", fn.lit("the broker gave no offsets")),
        )
        .when(fn.col("never_committed"), fn.lit(NEVER_COMMITTED))
        .when(fn.col("lag_messages").isNull(), beyond)
        .when(
            fn.col("has_head").isNull(),
            fn.coalesce("head_error", fn.lit("the first unconsumed message was not looked up")),
        )
        .when(fn.col("has_head") & fn.col("first_stored_at").isNull(), fn.lit("the first message can't be read"))
        .when(
            fn.col("has_head") & fn.col("lag_seconds").isNull(),
            fn.lit("the first message was stored after the time of this report, and the broker's time is unknown"),
        )
    )


def _neighbourhood() -> dict[str, Column]:
    """Return columns from the topic's other queues and the group's other topics."""
    of_group, of_topic = _all("group"), _all("group", "topic")
    is_retry = fn.col("is_retry")
    rows = fn.count(fn.lit(1)).over(of_topic)
    is_whole = (fn.count("lag_messages").over(of_topic) == rows) & ~fn.max("is_late").over(of_topic)
    return {
        "has_committed": fn.max(fn.col("committed_offset").isNotNull()).over(of_group),
        "has_consumed": fn.max(fn.col("committed_offset") > 0).over(of_group),
        "topic_advanced_s": fn.min("advanced_s").over(of_topic),
        "retry_messages": fn.sum(fn.when(is_retry, fn.col("in_messages"))).over(of_group),
        "retry_rate": fn.sum(fn.when(is_retry, fn.col("in_rate"))).over(of_group),
        "consumed_rate": fn.sum(fn.when(~is_retry, fn.col("out_rate"))).over(of_group),
        "topic_queues": rows,
        "topic_lag": fn.when(is_whole, fn.sum("lag_messages").over(of_topic)),
    }


def _all(*keys: str) -> WindowSpec:
    """Return all rows with the same keys."""
    return Window.partitionBy(*keys).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)


def _flags(queues: DataFrame, settings: LagSettings) -> DataFrame:
    """Add was_consumed, and the flags for a verdict in this queue alone. Each flag is true or false, never null."""
    # A client that creates a group may commit 0. A larger offset means that messages were consumed.
    was_consumed = (
        fn.when(fn.col("ever_seen") | fn.col("has_consumed"), fn.lit(True))
        .when(~fn.col("ever_seen"), fn.lit(False))
        .when(fn.col("has_committed"), fn.lit(True))
    )
    has_head = _is_true(fn.col("has_head"))
    stalled = (
        has_head
        & (fn.col("clients") > 0)
        & fn.coalesce("consume_enabled", fn.lit(True))
        & (fn.col("lag_seconds") >= settings.stall_min_s)
        & (fn.col("stood_s") >= settings.stall_min_s)
    )
    # A group that pulls over HTTP has no client between its pulls. But a group whose last clients were connected, and are
    # not, has stopped. `ever_seen` says which of the two it is.
    is_moving = _is_true(fn.col("topic_advanced_s") <= settings.moving_s) & ~_is_true(fn.col("ever_seen"))
    unserved = (has_head | fn.col("never_committed")) & (fn.col("clients") == 0) & ~is_moving
    rewound = has_head & (fn.col("back_messages") > 0) & (fn.col("committed_offset") < fn.col("back_from"))
    stands = fn.col("is_paused") | fn.col("is_unserved") | fn.col("is_stalled")
    left = fn.col("retention_left_s")
    is_late = (left < settings.retention_soon_s) & (left < fn.col("lag_seconds"))
    is_too_slow = fn.col("through_s") > left
    return (
        queues.withColumns(
            {
                "is_paused": _is_true(has_head & ~fn.col("consume_enabled")),
                "is_unserved": _is_true(unserved),
                "is_stalled": _is_true(stalled),
                "is_rewound": _is_true(rewound),
                "was_consumed": was_consumed,
            }
        )
        .withColumns(
            {
                "stands": stands,
                "through_s": fn.when(~stands & (fn.col("out_rate") > 0), fn.col("lag_messages") / fn.col("out_rate")),
            }
        )
        .withColumn(
            "is_at_risk",
            _is_true(has_head & fn.when(fn.col("through_s").isNotNull(), is_too_slow).otherwise(is_late)),
        )
    )


def _is_true(condition: Column) -> Column:
    """Return whether a condition is known to hold."""
    return fn.coalesce(condition, fn.lit(False))
