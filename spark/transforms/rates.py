"""The rates at which queues fill and groups consume, from samples of their offsets.

A *reading* is the known state of a group in a queue at one moment: a sample, or the report's own look at the offsets
(at `read_at` of the broker; samples count up to that time). Between two consecutive readings lies an *interval*. An
interval does not count if the queue was deleted and made again in it (its max or min went back, so the numbers before
and after belong to two queues), or if the commit went back in it (a rewind, so the difference is not the number of
consumed messages). So no rate is negative. A commit may also pass over messages that retention has removed, or be set
by a person. Such messages are not consumed but moved (`moved_messages`). If a broker reported a reset of the queue in an
interval (`reset_messages`), its consumption is unknown, because the group may have consumed before and after it.

    in_rate  = growth of max over the intervals that count ÷ their length       messages/s
    out_rate = messages consumed in those of them with known commits ÷ their length

A forecast uses the time since the last move of (group, topic), because earlier events do not show how fast the lag
shrinks now. This time ranges from the move, or from the first reading, to the last reading. It is divided into `pieces`
equal pieces of four quarters. An interval that lies in several quarters is divided among them by time. `net_rates` are
out - in of the pieces of which intervals cover at least half. `net_quarters` is the same for quarters, and `net_rate`
for the whole time.

Offsets grow in steps, and a reading may come just before or just after a step. `step_messages` is the largest net
growth between two readings.

Samples are written after a change, and every five minutes. A missing row means that nothing has changed. The last
reading before the window is the starting point of the window. `looked_at`, of a sample and of the report's own look, is
the time until which nothing has moved in an interval, if it is known. Then the whole growth of the interval came after
that time.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

from spark.transforms.lagsettings import LagSettings
from spark.transforms.sqltext import Sql

QUEUE_KEYS: Final = ("group", "topic", "broker", "queue_id")
SECOND_US: Final = 1_000_000
GAP_MAX_S: Final = 330.0
"""The longest gap between samples: five minutes, and two rounds of tolerance. In a longer gap there were no samples."""


def queue_rates(
    samples: DataFrame,
    survey: DataFrame,
    *,
    as_of: datetime | Column,
    since: datetime | Column | None = None,
    settings: LagSettings,
) -> DataFrame:
    """Return a row for each group and queue that has a reading.

    Args:
        samples: sampled_at, group?, topic, broker, queue_id, min_offset, max_offset, committed_offset?, looked_at?,
            is_served?; of any time. Rows of a topic without a group are ignored.
        survey: Rows of kind `survey`. Rows with numbers are readings at their `read_at`. The column `looked_at`, if
            there is one, is the time up to which samples include all movements.
        as_of: The time up to which samples of a broker that gave no numbers count: a time with a time zone, or a column
            of both frames.
        since: The time from which events of offsets count, if it is before `events_s`; in the same form.
        settings: The thresholds.

    Returns:
        The keys, and these columns. Unknown items of arrays are null.

        - readings: the number of readings.
        - covered_s: the time from the first reading to the broker's `read_at`.
        - in_rate, out_rate, in_messages: null with fewer than two readings.
        - net_rates, net_quarters: arrays of net rates.
        - net_rate, step_messages: null if unknown.
        - intervals: the number of known intervals after the last move.
        - forecast_s: the time from the beginning of the forecasts' period to `read_at`.
        - moved_s: the time from the last move to `read_at`; null if there was no move.
        - stood_s: the shortest time for which the commit has not changed; null with fewer than two readings.
        - advanced_s: the time since the commit last went forward.
        - back_messages, back_from: the messages by which commits went back, and the offset before.
        - moved_messages: the messages by which commits went forward without consumption.
        - recreated: whether the queue was deleted and made again.
    """
    intervals = _intervals(_readings(samples, survey, as_of, since, settings), settings)
    quarters = range(4 * settings.pieces)
    has_two = fn.col("readings") >= 2
    return _by_queue(intervals, quarters).select(
        *QUEUE_KEYS,
        "readings",
        ((fn.col("end_us") - fn.col("first_us")) / SECOND_US).alias("covered_s"),
        _rate("in_messages", "in_us").alias("in_rate"),
        _rate("out_messages", "out_us").alias("out_rate"),
        "in_messages",
        "step_messages",
        "intervals",
        _net_rates("net_rates", [quarters[start : start + 4] for start in quarters[::4]]),
        _net_rates("net_quarters", [(quarter,) for quarter in quarters]),
        fn.expr(f"{_net_rate(quarters)} AS net_rate"),
        # Another broker's last reading may come later than this one's.
        (fn.greatest(fn.col("end_us") - fn.col("start_us"), fn.lit(0)) / SECOND_US).alias("forecast_s"),
        fn.when(
            fn.col("move_us").isNotNull(), fn.greatest(fn.col("end_us") - fn.col("move_us"), fn.lit(0)) / SECOND_US
        ).alias("moved_s"),
        fn.when(has_two, (fn.col("end_us") - fn.coalesce("changed_us", "seen_us")) / SECOND_US).alias("stood_s"),
        ((fn.col("end_us") - fn.col("advanced_us")) / SECOND_US).alias("advanced_s"),
        fn.coalesce("back_messages", fn.lit(0)).alias("back_messages"),
        "back_from",
        fn.coalesce("moved_messages", fn.lit(0)).alias("moved_messages"),
        fn.coalesce("recreated", fn.lit(False)).alias("recreated"),
    )


def _by_queue(intervals: DataFrame, quarters: Sequence[int]) -> DataFrame:
    """Add up the intervals of each queue, and their contributions to each quarter."""
    is_recent = fn.col("at_us") > fn.col("start_us")
    return intervals.groupBy(*QUEUE_KEYS).agg(
        # The last reading before the window counts as the first reading of the window.
        fn.count(fn.when((fn.col("at_us") >= fn.col("begin_us")) | (fn.col("next_us") > fn.col("begin_us")), 1)).alias(
            "readings"
        ),
        fn.coalesce(fn.min("first_us"), fn.max("at_us")).alias("first_us"),
        fn.min("at_us").alias("seen_us"),
        fn.max("end_us").alias("end_us"),
        fn.sum("in_messages").alias("in_messages"),
        fn.sum(fn.when(fn.col("in_messages").isNotNull(), fn.col("length_us"))).alias("in_us"),
        fn.sum("out_messages").alias("out_messages"),
        fn.sum(fn.when(fn.col("out_messages").isNotNull(), fn.col("length_us"))).alias("out_us"),
        fn.max("quarter_us").alias("quarter_us"),
        fn.max("start_us").alias("start_us"),
        fn.max("move_us").alias("move_us"),
        fn.count(fn.when(is_recent, fn.col("out_messages"))).alias("intervals"),
        fn.max(fn.when(is_recent, fn.abs(fn.col("out_messages") - fn.col("in_messages")))).alias("step_messages"),
        fn.max(fn.when(fn.col("is_changed"), fn.col("at_us"))).alias("changed_us"),
        fn.max(fn.when(fn.col("is_advanced"), fn.col("at_us"))).alias("advanced_us"),
        fn.sum("back_messages").alias("back_messages"),
        fn.max("back_from").alias("back_from"),
        fn.sum("moved_messages").alias("moved_messages"),
        fn.max("is_recreated").alias("recreated"),
        *[fn.expr(f"sum({_net_within(quarter)}) AS net_{quarter}") for quarter in quarters],
        *[
            fn.expr(f"sum(CASE WHEN out_messages IS NOT NULL THEN {_overlap_us(quarter)} END) AS net_us_{quarter}")
            for quarter in quarters
        ],
    )


def _readings(
    samples: DataFrame,
    survey: DataFrame,
    as_of: datetime | Column,
    since: datetime | Column | None,
    settings: LagSettings,
) -> DataFrame:
    """Return samples and the report's own readings, with the beginning and the end of their queue's windows.

    `end_us` is the time when the queue was read, `begin_us` is the beginning of the window of rates. Older readings
    (within `events_s`, or after `since`) are only used for events of offsets. The last reading before them is included
    as well, as the state at the beginning.
    """
    moments = [_micros(as_of).alias("as_of_us"), _micros(since).alias("since_us")]
    sampled = samples.select(
        *QUEUE_KEYS,
        fn.unix_micros("sampled_at").alias("at_us"),
        fn.unix_micros("looked_at").alias("looked_us"),
        "min_offset",
        "max_offset",
        _committed(),
        fn.lit(False).alias("is_own"),
        fn.lit(None).cast("int").alias("clients"),
        "is_served",
        _reset_messages(samples),
        *moments,
    )
    own = survey.select(
        *QUEUE_KEYS,
        fn.unix_micros("read_at").alias("at_us"),
        (fn.unix_micros("looked_at") if "looked_at" in survey.columns else fn.lit(None).cast("long")).alias(
            "looked_us"
        ),
        "min_offset",
        "max_offset",
        _committed(),
        fn.lit(True).alias("is_own"),
        "clients",
        fn.lit(None).cast("boolean").alias("is_served"),
        _reset_messages(survey),
        *moments,
    )
    read_us = fn.max(fn.when(fn.col("is_own"), fn.col("at_us"))).over(_of_queue())
    state = fn.struct("at_us", "min_offset", "max_offset", "committed_offset")
    neighbours = {"next_us": fn.lead("at_us").over(_in_order(1)), "last": fn.lag(state).over(_in_order(-1))}
    first_us = fn.col("end_us") - round(max(settings.events_s, settings.window_s) * SECOND_US)
    first_us = fn.least(first_us, "since_us")
    # Readings after the end, and those before the one that is the state at the beginning, don't exist for the others.
    following = fn.when(fn.col("next_us") <= fn.col("end_us"), fn.col("next_us"))
    last = fn.when((fn.col("at_us") > first_us) | (fn.col("last.at_us") >= first_us), fn.col("last"))
    is_within = (fn.col("at_us") >= first_us) | (following > first_us)
    return (
        sampled.unionByName(own)
        .where("`group` IS NOT NULL AND max_offset IS NOT NULL AND at_us IS NOT NULL")
        .withColumns({"end_us": fn.coalesce(read_us, "as_of_us"), **neighbours})
        .where((fn.col("at_us") <= fn.col("end_us")) & is_within)
        .withColumns(
            {
                "begin_us": fn.col("end_us") - round(settings.window_s * SECOND_US),
                "next_us": following,
                "last": last,
            }
        )
    )


def _reset_messages(frame: DataFrame) -> Column:
    name = "reset_messages"
    return (fn.col(name) if name in frame.columns else fn.lit(None).cast("long")).alias(name)


def _committed() -> Column:
    """Return the committed offset. If a group never committed in an empty queue, it is the queue's end."""
    at_end = fn.when(fn.col("min_offset") == fn.col("max_offset"), fn.col("max_offset"))
    return fn.coalesce("committed_offset", at_end).alias("committed_offset")


def _intervals(readings: DataFrame, settings: LagSettings) -> DataFrame:
    """Return each reading with the interval before it, with nulls if it does not count.

    The interval is [from_us, at_us]. Until still_us nothing moved in it, because a look between the readings found no
    change.
    """
    at, last_at, looked = fn.col("at_us"), fn.col("last.at_us"), fn.col("looked_us")
    committed, last_committed = fn.col("committed_offset"), fn.col("last.committed_offset")
    has_stood = (looked > last_at) & (looked < at) & (looked - last_at <= GAP_MAX_S * SECOND_US)
    still = fn.when(has_stood, looked).otherwise(last_at)
    # A time of standstill before the window does not belong to the interval.
    begun = fn.when(last_at.isNotNull(), fn.greatest(last_at, fn.least(fn.col("begin_us"), still)))
    is_recreated = (fn.col("max_offset") < fn.col("last.max_offset")) | (
        fn.col("min_offset") < fn.col("last.min_offset")
    )
    is_recreated = fn.coalesce(is_recreated, fn.lit(False))
    is_back = fn.coalesce(~is_recreated & (committed < last_committed), fn.lit(False))
    # A reset may be hidden by what was consumed before or after it.
    is_reset = fn.coalesce(fn.col("last").isNotNull() & fn.col("reset_messages").isNotNull(), fn.lit(False))
    back_by_reset = fn.when(fn.col("is_reset") & (fn.col("reset_messages") < 0), -fn.col("reset_messages"))
    moved_by_reset = fn.when(fn.col("is_reset") & ~fn.col("is_back"), fn.greatest("reset_messages", fn.lit(0)))
    is_sound = fn.col("last").isNotNull() & ~fn.col("is_recreated") & ~fn.col("is_back")
    is_long_enough = fn.when(fn.col("is_own"), fn.col("length_us") >= settings.reading_gap_min_s * SECOND_US).otherwise(
        fn.col("length_us") > 0
    )
    counts = is_sound & is_long_enough & (at > fn.col("begin_us"))
    # A sample may not know whether clients were connected. Then the report's knowledge about the present is used.
    is_unserved = fn.coalesce(~fn.col("is_served"), fn.max("clients").over(_of_queue()) == 0, fn.lit(False))
    intervals = (
        readings.withColumns(
            {
                "still_us": still,
                "from_us": begun,
                "is_recreated": is_recreated,
                "is_back": is_back,
                "is_reset": is_reset,
            }
        )
        .withColumns(
            {
                "still_us": fn.greatest("still_us", "from_us"),
                "length_us": at - fn.col("from_us"),
                "first_us": fn.when(at > fn.col("begin_us"), fn.coalesce("from_us", at)),
                "is_advanced": committed > last_committed,
                "is_changed": fn.col("last").isNotNull() & ~committed.eqNullSafe(last_committed),
                "grown": fn.when(is_sound & ~fn.col("is_reset"), committed - last_committed),
                "is_unserved": is_unserved,
            }
        )
        .withColumns({"counts": counts, "consumed": _consumed()})
        .withColumn("consumed", fn.when(_is_jump(settings), fn.lit(0).cast("long")).otherwise(fn.col("consumed")))
        .withColumns(
            {
                "in_messages": fn.when(fn.col("counts"), fn.col("max_offset") - fn.col("last.max_offset")),
                "out_messages": fn.when(fn.col("counts"), fn.col("consumed")),
                "moved_messages": fn.coalesce(fn.col("grown") - fn.col("consumed"), moved_by_reset),
                "back_messages": fn.greatest(back_by_reset, fn.when(fn.col("is_back"), last_committed - committed)),
                "back_from": fn.when(fn.col("is_back") | back_by_reset.isNotNull(), last_committed),
            }
        )
    )
    return _quarters(intervals, settings)


def _quarters(intervals: DataFrame, settings: LagSettings) -> DataFrame:
    """Add move_us, start_us and quarter_us: the last move of (group, topic), and the period of forecasts."""
    whole = Window.partitionBy("group", "topic").rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_move = (
        fn.col("is_recreated")
        | fn.col("is_reset")
        | (fn.col("moved_messages") > 0)
        # A consumer that takes over a queue repeats a few messages.
        | (fn.col("back_messages") >= settings.rewind_messages_min)
    )
    move_us = fn.max(fn.when(is_move, fn.col("at_us"))).over(whole)
    start_us = fn.greatest(fn.min("first_us").over(whole), move_us)
    quarter_us = (fn.max("end_us").over(whole) - start_us) / (4 * settings.pieces)
    return intervals.withColumns({"move_us": move_us, "start_us": start_us, "quarter_us": quarter_us})


def _in_order(place: int) -> WindowSpec:
    """Return the reading of the same queue that comes `place` readings later."""
    return Window.partitionBy(*QUEUE_KEYS).orderBy("at_us", "is_own").rowsBetween(place, place)


def _of_queue() -> WindowSpec:
    return Window.partitionBy(*QUEUE_KEYS).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)


def _consumed() -> Column:
    """Return the number of consumed messages: the growth of the commit, without messages that retention has removed."""
    there = fn.col("committed_offset") - fn.greatest("last.committed_offset", "min_offset")
    return fn.when(fn.col("grown").isNotNull(), fn.greatest(fn.lit(0).cast("long"), fn.least("grown", there)))


def _is_jump(settings: LagSettings) -> Column:
    """Return whether the commit was set without consumption: a reset, or skipped messages.

    Either the commit grew faster than any consumer, or no client was connected and the commit grew only once, and far.
    """
    consumed, moving_us = fn.col("consumed"), fn.col("at_us") - fn.col("still_us")
    is_too_fast = consumed * SECOND_US > moving_us * settings.jump_rate_min
    # A client that consumes over HTTP is not connected, and it commits more than once.
    steps = fn.count(fn.when((consumed > 0) & fn.col("is_unserved"), 1)).over(_of_queue())
    is_alone = fn.col("is_unserved") & (steps == 1)
    return fn.coalesce((consumed >= settings.jump_messages_min) & (is_too_fast | is_alone), fn.lit(False))


def _overlap_us(quarter: int, begin: str = "from_us") -> Sql:
    """Return the length of the part of an interval, or of its part after `begin`, that lies in a quarter of a piece."""
    start, end = f"(start_us + {quarter} * quarter_us)", f"(start_us + {quarter + 1} * quarter_us)"
    return Sql(f"greatest(double(0), least(double(at_us), {end}) - greatest(double({begin}), {start}))")


def _net_within(quarter: int) -> Sql:
    """Return the net growth of an interval in a quarter of a piece. Growth is spread over the time after `still_us`."""
    net, moving_us = "(out_messages - in_messages)", "(at_us - still_us)"
    share = f"{net} * {_overlap_us(quarter, 'still_us')} / {moving_us}"
    return Sql(f"CASE WHEN out_messages IS NOT NULL THEN {share} END")


def _net_rates(name: str, stretches: Sequence[Sequence[int]]) -> Column:
    """Return the net rates of stretches, each given by its quarters; null if less than half of a stretch is covered."""
    known = [
        f"CASE WHEN {_covered(quarters)} * 2 >= quarter_us * {len(quarters)} THEN {_net_rate(quarters)} END"
        for quarters in stretches
    ]
    return fn.expr(f"array({', '.join(known)}) AS {name}")


def _net_rate(quarters: Sequence[int]) -> Sql:
    net = " + ".join(f"coalesce(net_{quarter}, 0)" for quarter in quarters)
    covered = _covered(quarters)
    return Sql(f"CASE WHEN quarter_us > 0 AND {covered} > 0 THEN ({net}) / ({covered} / {SECOND_US}) END")


def _covered(quarters: Sequence[int]) -> Sql:
    return Sql(f"({' + '.join(f'coalesce(net_us_{quarter}, 0)' for quarter in quarters)})")


def _rate(messages: str, length_us: str) -> Column:
    return fn.when(fn.col(length_us) > 0, fn.col(messages) / (fn.col(length_us) / SECOND_US))


def _micros(moment: datetime | Column | None) -> Column:
    if isinstance(moment, Column):
        return fn.unix_micros(moment)
    return fn.lit(None if moment is None else round(moment.timestamp() * SECOND_US)).cast("long")
