"""How fast queues fill and groups consume, from samples of their offsets.

A *reading* is what was known of a group in a queue at one moment: a sample, or the report's own look at the offsets
(at `as_of`). Between two readings that follow each other lies an *interval*. An interval counts unless the queue was
made anew in it (its max or min went back: the numbers before and after are of two queues) or the commit went back in it
(a rewind: what was consumed is not what the difference says). So no rate is ever negative.

    in_rate  = growth of max over the intervals that count ÷ their length       messages/s
    out_rate = growth of the commit over those of them whose commits are known ÷ their length

For the spread, the time from the first reading of (group, topic) to `as_of` is cut into `pieces` equal pieces; an
interval that lies in several gives each its share by time. `net_rates` are out - in of the pieces of which at least half
is covered by intervals.

Offsets move in steps, and a reading may come just before or just after one. What the largest interval brought, over the
whole length of those that count, is the `step_rate`: by so much a net rate may be off.

Samples are written when something changed, and every five minutes: a row that is missing means "as before", which is
what the difference over a longer interval says.
"""

from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from spark.transforms.lagsettings import LagSettings

QUEUE_KEYS: Final = ("group", "topic", "broker", "queue_id")
SECOND_US: Final = 1_000_000


def queue_rates(samples: DataFrame, offsets: DataFrame, *, as_of: datetime, settings: LagSettings) -> DataFrame:
    """Return a row for each group and queue of which there is a reading.

    Args:
        samples: sampled_at, group?, topic, broker, queue_id, min_offset, max_offset, committed_offset?; any time. Those
            without a group are a topic's own, and left out.
        offsets: Kind `offsets`; its rows with numbers are readings at `as_of`.
        as_of: With a zone.
        settings: Thresholds.

    Returns:
        The keys; readings; covered_s (from the first reading to as_of); in_rate, out_rate, in_messages (null below two
        readings); net_rates (an array, pieces that are not known are null); step_rate (see above; null as out_rate is); stood_s (how long the commit is as it is,
        at least; null below two readings); advanced_s (how long ago it was last seen to go forward); back_messages (by how much commits went back), back_from (from where);
        recreated.
    """
    intervals = _intervals(_readings(samples, offsets, as_of, settings), as_of, settings)
    pieces = range(settings.pieces)
    summed = intervals.groupBy(*QUEUE_KEYS).agg(
        fn.count(fn.lit(1)).alias("readings"),
        fn.min("at_us").alias("first_us"),
        fn.sum("in_messages").alias("in_messages"),
        fn.sum(fn.when(fn.col("in_messages").isNotNull(), fn.col("length_us"))).alias("in_us"),
        fn.sum("out_messages").alias("out_messages"),
        fn.sum(fn.when(fn.col("out_messages").isNotNull(), fn.col("length_us"))).alias("out_us"),
        fn.max("piece_us").alias("piece_us"),
        fn.max(fn.abs(fn.col("out_messages") - fn.col("in_messages"))).alias("step_messages"),
        fn.max(fn.when(fn.col("is_changed"), fn.col("at_us"))).alias("changed_us"),
        fn.max(fn.when(fn.col("is_advanced"), fn.col("at_us"))).alias("advanced_us"),
        fn.sum("back_messages").alias("back_messages"),
        fn.max("back_from").alias("back_from"),
        fn.max("is_recreated").alias("recreated"),
        *[fn.sum(_net_within(piece)).alias(f"net_{piece}") for piece in pieces],
        *[
            fn.sum(fn.when(fn.col("out_messages").isNotNull(), _overlap_us(piece))).alias(f"net_us_{piece}")
            for piece in pieces
        ],
    )
    has_two = fn.col("readings") >= 2
    as_of_us = _micros(as_of)
    return summed.select(
        *QUEUE_KEYS,
        "readings",
        ((as_of_us - fn.col("first_us")) / SECOND_US).alias("covered_s"),
        _rate("in_messages", "in_us").alias("in_rate"),
        _rate("out_messages", "out_us").alias("out_rate"),
        "in_messages",
        _rate("step_messages", "out_us").alias("step_rate"),
        fn.array(*[_net_rate(piece) for piece in pieces]).alias("net_rates"),
        fn.when(has_two, (as_of_us - fn.coalesce("changed_us", "first_us")) / SECOND_US).alias("stood_s"),
        ((as_of_us - fn.col("advanced_us")) / SECOND_US).alias("advanced_s"),
        fn.coalesce("back_messages", fn.lit(0)).alias("back_messages"),
        "back_from",
        fn.coalesce("recreated", fn.lit(False)).alias("recreated"),
    )


def _readings(samples: DataFrame, offsets: DataFrame, as_of: datetime, settings: LagSettings) -> DataFrame:
    start = as_of - timedelta(seconds=settings.window_s)
    sampled = samples.where(
        fn.col("sampled_at").between(fn.lit(start), fn.lit(as_of))
        & fn.col("group").isNotNull()
        & fn.col("max_offset").isNotNull()
    ).select(
        *QUEUE_KEYS,
        fn.unix_micros("sampled_at").alias("at_us"),
        "min_offset",
        "max_offset",
        _committed(),
        fn.lit(False).alias("is_own"),
    )
    own = offsets.where(fn.col("max_offset").isNotNull()).select(
        *QUEUE_KEYS,
        fn.lit(_micros(as_of)).alias("at_us"),
        "min_offset",
        "max_offset",
        _committed(),
        fn.lit(True).alias("is_own"),
    )
    return sampled.unionByName(own)


def _committed() -> Column:
    """Return the committed offset; a group that never committed in a queue without messages is at its end."""
    at_end = fn.when(fn.col("min_offset") == fn.col("max_offset"), fn.col("max_offset"))
    return fn.coalesce("committed_offset", at_end).alias("committed_offset")


def _intervals(readings: DataFrame, as_of: datetime, settings: LagSettings) -> DataFrame:
    """Return each reading with what lies between it and the one before (null where there is none, or it doesn't count)."""
    whole = Window.partitionBy("group", "topic").rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    before = Window.partitionBy(*QUEUE_KEYS).orderBy("at_us", "is_own").rowsBetween(-1, -1)
    last = fn.lag(fn.struct("at_us", "min_offset", "max_offset", "committed_offset")).over(before)
    at, last_at = fn.col("at_us"), fn.col("last.at_us")
    committed, last_committed = fn.col("committed_offset"), fn.col("last.committed_offset")
    is_recreated = (fn.col("max_offset") < fn.col("last.max_offset")) | (
        fn.col("min_offset") < fn.col("last.min_offset")
    )
    is_back = ~fn.col("is_recreated") & (committed < last_committed)
    is_long_enough = fn.when(fn.col("is_own"), fn.col("length_us") >= settings.reading_gap_min_s * SECOND_US).otherwise(
        fn.col("length_us") > 0
    )
    counts = fn.col("last").isNotNull() & ~fn.col("is_recreated") & ~fn.col("is_back")
    return (
        readings.withColumns({"start_us": fn.min("at_us").over(whole), "last": last})
        .withColumns(
            {
                "piece_us": (_micros(as_of) - fn.col("start_us")) / settings.pieces,
                "length_us": at - last_at,
                "is_recreated": fn.coalesce(is_recreated, fn.lit(False)),
                "is_advanced": committed > last_committed,
                "is_changed": fn.col("last").isNotNull() & ~committed.eqNullSafe(last_committed),
            }
        )
        .withColumn("is_back", fn.coalesce(is_back, fn.lit(False)))
        .withColumn("counts", counts & is_long_enough)
        .withColumns(
            {
                "in_messages": fn.when(fn.col("counts"), fn.col("max_offset") - fn.col("last.max_offset")),
                "out_messages": fn.when(fn.col("counts"), committed - last_committed),
                "back_messages": fn.when(fn.col("is_back"), last_committed - committed),
                "back_from": fn.when(fn.col("is_back"), last_committed),
            }
        )
    )


def _overlap_us(piece: int) -> Column:
    """Return how much of an interval lies in a piece."""
    start = fn.col("start_us") + piece * fn.col("piece_us")
    end = fn.col("start_us") + (piece + 1) * fn.col("piece_us")
    overlap = fn.least(fn.col("at_us").cast("double"), end) - fn.greatest(fn.col("last.at_us").cast("double"), start)
    return fn.greatest(fn.lit(0.0), overlap)


def _net_within(piece: int) -> Column:
    net = fn.col("out_messages") - fn.col("in_messages")
    return fn.when(fn.col("out_messages").isNotNull(), net * _overlap_us(piece) / fn.col("length_us"))


def _net_rate(piece: int) -> Column:
    covered = fn.col(f"net_us_{piece}")
    is_covered = (fn.col("piece_us") > 0) & (covered * 2 >= fn.col("piece_us"))
    return fn.when(is_covered, fn.col(f"net_{piece}") / (covered / SECOND_US))


def _rate(messages: str, length_us: str) -> Column:
    return fn.when(fn.col(length_us) > 0, fn.col(messages) / (fn.col(length_us) / SECOND_US))


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * SECOND_US)
