"""Throughput per minute, hour and day: what came into each topic, what each group consumed of it.

Between two samples an offset is taken to grow evenly. So at every moment there is a number, interpolated and rounded
down to a whole message, and what a bucket saw is the number at its end less the number at its start: buckets add up
exactly, minutes to hours to days, and nothing is counted twice at a border.

An interval between two samples counts unless the queue was made anew in it or the offset went back (a rewind): no number
is negative. Samples are written when something changed and every five minutes, so an interval up to `gap_max_s` is known
in between; in a longer one nobody looked, and buckets that lie wholly inside it are absent. `covered_s` says how much of a
bucket is known: a bucket with less than its whole length has at least that many messages.

Buckets are those of UTC (the session's zone).
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

GAP_MAX_S: Final = 330.0
"""The five minutes after which a sample is written at the latest, and two rounds of slack."""
UNITS: Final = ("minute", "hour", "day")
_MS: Final = 1_000


def throughput_rollup(
    samples: DataFrame,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    gap_max_s: float = GAP_MAX_S,
) -> DataFrame:
    """Return a row for each unit, bucket and topic, and one for each of its groups.

    Args:
        samples: sampled_at, group, topic, broker, queue_id, min_offset, max_offset, committed_offset?. To be exact at
            the ends of [start, end) they must reach one sample beyond.
        start: Buckets that begin before it are left out; with a zone.
        end: Buckets that begin at it or later are left out; with a zone.
        gap_max_s: The longest interval in whose midst a bucket counts.

    Returns:
        unit ("minute", "hour", "day"), bucket_at (timestamp, its start), topic, group (null: the row says what came in;
        else what this group consumed), messages (long), lag_messages (of a group at the bucket's last sample; null for
        topics, and where not all of its queues are known), covered_s (double, of the queue that is known least), queues
        (long, how many contributed).
    """
    known = samples.where(fn.col("max_offset").isNotNull())
    queue = ("topic", "broker", "queue_id")
    # Every group's sample of a queue says what came in; together they are more readings of the same number.
    came = (
        known.groupBy(*queue, "sampled_at")
        .agg(fn.min("min_offset").alias("min_offset"), fn.max("max_offset").alias("max_offset"))
        .select(
            fn.lit(None).cast("string").alias("group"),
            *queue,
            "sampled_at",
            "min_offset",
            "max_offset",
            fn.col("max_offset").alias("offset"),
            fn.lit(None).cast("long").alias("lag"),
        )
    )
    consumed = known.where(fn.col("committed_offset").isNotNull()).select(
        "group",
        *queue,
        "sampled_at",
        "min_offset",
        "max_offset",
        fn.col("committed_offset").alias("offset"),
        fn.when(
            fn.col("committed_offset") <= fn.col("max_offset"),
            fn.col("max_offset") - fn.greatest("committed_offset", "min_offset"),
        ).alias("lag"),
    )
    shares = _shares(_intervals(came.unionByName(consumed)), gap_max_s)
    bounded = shares
    if start is not None:
        bounded = bounded.where(fn.col("bucket_at") >= fn.lit(start))
    if end is not None:
        bounded = bounded.where(fn.col("bucket_at") < fn.lit(end))
    return _summed(bounded)


def _intervals(readings: DataFrame) -> DataFrame:
    """Return a row for each two readings that follow each other; from_ms and to_ms are their times."""
    order = Window.partitionBy("group", "topic", "broker", "queue_id").orderBy("sampled_at").rowsBetween(-1, -1)
    last = fn.lag(fn.struct("sampled_at", "min_offset", "max_offset", "offset")).over(order)
    is_sound = (
        (fn.col("max_offset") >= fn.col("last.max_offset"))
        & (fn.col("min_offset") >= fn.col("last.min_offset"))
        & (fn.col("offset") >= fn.col("last.offset"))
        & (fn.col("sampled_at") > fn.col("last.sampled_at"))
    )
    return (
        readings.withColumn("last", last)
        .where(is_sound)
        .select(
            "group",
            "topic",
            "broker",
            "queue_id",
            fn.unix_millis("last.sampled_at").alias("from_ms"),
            fn.unix_millis("sampled_at").alias("to_ms"),
            fn.col("last.sampled_at").alias("from_at"),
            # An interval that ends on a border has nothing in the bucket behind it.
            (fn.col("sampled_at") - fn.expr("INTERVAL 1 MICROSECOND")).alias("to_at"),
            fn.col("last.offset").alias("from_offset"),
            fn.col("offset").alias("to_offset"),
            "lag",
        )
    )


def _shares(intervals: DataFrame, gap_max_s: float) -> DataFrame:
    """Give each interval's growth to the buckets it lies in."""
    is_long = fn.col("to_ms") - fn.col("from_ms") > gap_max_s * _MS
    buckets = fn.flatten(fn.array(*[_buckets(unit, is_long) for unit in UNITS]))
    at_start = fn.greatest("from_ms", "bucket_ms")
    at_end = fn.least(fn.col("to_ms"), fn.col("bucket_ms") + fn.col("bucket.length_ms"))
    return (
        intervals.withColumn("bucket", fn.explode(buckets))
        .withColumn("bucket_ms", fn.unix_millis("bucket.at"))
        .select(
            fn.col("bucket.unit").alias("unit"),
            fn.col("bucket.at").alias("bucket_at"),
            "group",
            "topic",
            "broker",
            "queue_id",
            (_offset_at(at_end) - _offset_at(at_start)).alias("messages"),
            (at_end - at_start).alias("covered_ms"),
            # The lag belongs to the bucket in which the interval ends.
            fn.when(fn.col("to_ms") <= fn.col("bucket_ms") + fn.col("bucket.length_ms"), fn.col("lag")).alias("lag"),
            "to_ms",
        )
    )


def _buckets(unit: str, is_long: Column) -> Column:
    """Return the buckets of a unit that an interval gives to, as array<struct<unit, at, length_ms>>."""
    lengths = {"minute": 60 * _MS, "hour": 3_600 * _MS, "day": 86_400 * _MS}
    first, last = fn.date_trunc(unit, "from_at"), fn.date_trunc(unit, "to_at")
    starts = fn.when(is_long, fn.array_distinct(fn.array(first, last))).otherwise(
        fn.sequence(first, last, fn.expr(f"INTERVAL 1 {unit}"))
    )
    return fn.transform(
        starts,
        lambda at: fn.struct(
            fn.lit(unit).alias("unit"), at.alias("at"), fn.lit(lengths[unit]).cast("long").alias("length_ms")
        ),
    )


def _offset_at(moment_ms: Column) -> Column:
    """Return the offset at a moment of the interval, rounded down."""
    length = fn.col("to_ms") - fn.col("from_ms")
    growth = fn.col("to_offset") - fn.col("from_offset")
    within = fn.floor(growth * ((moment_ms - fn.col("from_ms")) / length))
    # At its ends it is what was read, whatever a double makes of it.
    return (
        fn.when(moment_ms == fn.col("from_ms"), fn.col("from_offset"))
        .when(moment_ms == fn.col("to_ms"), fn.col("to_offset"))
        .otherwise(fn.col("from_offset") + within)
    )


def _summed(shares: DataFrame) -> DataFrame:
    bucket = ("unit", "bucket_at", "topic", "group")
    per_queue = shares.groupBy(*bucket, "broker", "queue_id").agg(
        fn.sum("messages").alias("messages"),
        fn.sum("covered_ms").alias("covered_ms"),
        fn.max_by("lag", fn.when(fn.col("lag").isNotNull(), fn.col("to_ms"))).alias("lag"),
    )
    queues = fn.count(fn.lit(1))
    return (
        per_queue.groupBy(*bucket)
        .agg(
            fn.sum("messages").alias("messages"),
            fn.when(fn.count("lag") == queues, fn.sum("lag")).alias("lag_messages"),
            (fn.min("covered_ms") / _MS).alias("covered_s"),
            queues.alias("queues"),
        )
        .select("unit", "bucket_at", "topic", "group", "messages", "lag_messages", "covered_s", "queues")
    )
