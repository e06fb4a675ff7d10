"""Throughput per minute, hour and day: messages stored in each topic, and messages consumed by each group.

Between two samples an offset is assumed to grow evenly. So it has a value at every moment, interpolated and rounded
down to a whole message. The messages of a bucket are the value at its end minus the value at its start. So buckets add
up exactly, from minutes to hours to days, and no message is counted twice at a border.

An interval between two samples does not count if the queue was deleted and made again in it, or if the offset went back
(a rewind), or if the broker reported a reset of the group's offset. So no number is negative. If a commit passes over
messages that retention has removed, or if it was set, these messages do not count as consumed (rates.py). A commit
was set if it grew faster than any consumer, or if it grew only once, and far, while no client was connected. Samples are written after a change and every five minutes. So an
interval of up to `gap_max_s` is known as a whole. If the last look at the broker before a sample is known
(`looked_at`), nothing moved until that look, and the whole growth came after it. A longer interval has no samples in
its middle, so buckets that lie completely inside it are absent. `covered_s` is the known part of a bucket. A bucket
that is not completely known has at least that many messages.

`rate_max` is the largest rate at any moment of a bucket, of all queues together, each with the rate of its interval. So
it is never below the mean, and as exact as the samples. For a bucket that is known in part, it is a lower bound.

Buckets are those of UTC (the session's time zone).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from gantry.model.laghistory import Outage
from spark.transforms.bucketlags import bucket_lags
from spark.transforms.lagsettings import LagSettings
from spark.transforms.rates import GAP_MAX_S

UNITS: Final = ("minute", "hour", "day")
_MS: Final = 1_000
_BUCKET: Final = ("unit", "bucket_at", "topic", "group")
_QUEUE: Final = ("topic", "broker", "queue_id")


def throughput_rollup(
    samples: DataFrame,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    gap_max_s: float = GAP_MAX_S,
    outages: Sequence[Outage] = (),
    homes: Mapping[str, Collection[str]] | None = None,
) -> DataFrame:
    """Return a row for each unit, bucket and topic, and one for each of its groups.

    Args:
        samples: sampled_at, group? (null: the topic's own), topic, broker, queue_id, min_offset, max_offset,
            committed_offset?, looked_at?, is_served?, reset_messages?. For exact values at the ends of [start, end) they must reach one sample
            beyond them.
        start: The time before which no returned bucket begins; with a time zone.
        end: The time before which all returned buckets begin; with a time zone.
        gap_max_s: The longest interval in whose middle buckets are known.
        outages: The times in which brokers gave no numbers.
        homes: Topic → the brokers that have it, as far as they are known from elsewhere.

    Returns:
        unit ("minute", "hour", "day"), bucket_at (timestamp, its start), topic, group (null: the row counts stored
        messages; else the messages that this group consumed), messages (long), rate_max (double, messages/s to the
        millionth), lag_messages (of a group at the bucket's end; null for topics, and if unknown: bucket_lags),
        covered_s (double, of the queue with the smallest known part), queues (long, the number of contributing queues).
    """
    known = samples.where(fn.col("max_offset").isNotNull())
    consumed = known.where(fn.col("group").isNotNull() & fn.col("committed_offset").isNotNull()).select(
        "group",
        *_QUEUE,
        "sampled_at",
        "min_offset",
        "max_offset",
        "looked_at",
        fn.coalesce(~fn.col("is_served"), fn.lit(False)).alias("is_unserved"),
        fn.col("reset_messages").isNotNull().alias("is_reset"),
        fn.col("committed_offset").alias("offset"),
    )
    intervals = _intervals(_came(known).unionByName(consumed), gap_max_s)
    wanted = fn.lit(True)
    if start is not None:
        wanted &= fn.col("bucket.at") >= fn.lit(start)
    if end is not None:
        wanted &= fn.col("bucket.at") < fn.lit(end)
    summed = _summed(_shares(_by_bucket(intervals, gap_max_s).where(wanted)))
    peaks = _peaks(_by_bucket(_rates(intervals), gap_max_s).where(wanted))
    is_same = [fn.col(name).eqNullSafe(fn.col(f"peak_{name}")) for name in _BUCKET]
    lags = bucket_lags(samples, units=UNITS, outages=outages, homes=homes)
    return (
        summed.join(peaks, is_same)
        .join(lags, on=list(_BUCKET), how="left")
        .select(*_BUCKET, "messages", "rate_max", "lag_messages", "covered_s", "queues")
    )


def _came(known: DataFrame) -> DataFrame:
    """Return the readings of max_offset. Samples of a topic and of each of its groups are readings of the same one."""
    return (
        known.groupBy(*_QUEUE, "sampled_at")
        .agg(
            fn.min("min_offset").alias("min_offset"),
            fn.max("max_offset").alias("max_offset"),
            fn.max("looked_at").alias("looked_at"),
        )
        .select(
            fn.lit(None).cast("string").alias("group"),
            *_QUEUE,
            "sampled_at",
            "min_offset",
            "max_offset",
            "looked_at",
            fn.lit(False).alias("is_unserved"),
            fn.lit(False).alias("is_reset"),
            fn.col("max_offset").alias("offset"),
        )
    )


def _intervals(readings: DataFrame, gap_max_s: float) -> DataFrame:
    """Return a row for each two consecutive readings.

    from_ms and to_ms are their times. Until still_ms nothing grew, because a look between them found no change.
    """
    of_queue = Window.partitionBy("group", "topic", "broker", "queue_id")
    order = of_queue.orderBy("sampled_at").rowsBetween(-1, -1)
    last = fn.lag(fn.struct("sampled_at", "min_offset", "max_offset", "offset")).over(order)
    from_ms, to_ms = fn.unix_millis("last.sampled_at"), fn.unix_millis("sampled_at")
    is_sound = (
        (fn.col("max_offset") >= fn.col("last.max_offset"))
        & (fn.col("min_offset") >= fn.col("last.min_offset"))
        & (fn.col("offset") >= fn.col("last.offset"))
        & (to_ms > from_ms)
        & ~fn.col("is_reset")
    )
    looked_ms = fn.unix_millis("looked_at")
    # After a longer time, a missing sample means that this queue was not looked at.
    has_stood = (looked_ms > from_ms) & (looked_ms < to_ms) & (looked_ms - from_ms <= gap_max_s * _MS)
    # A commit may pass over messages that retention has removed, or be set. Such messages are not consumed.
    there = fn.greatest("last.offset", fn.least("offset", "min_offset"))
    moving_ms = to_ms - fn.when(has_stood, looked_ms).otherwise(from_ms)
    settings = LagSettings()
    grown = fn.col("offset") - there
    whole = of_queue.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_alone = fn.col("is_unserved") & (fn.count(fn.when(grown > 0, 1)).over(whole) == 1)
    is_jump = (grown >= settings.jump_messages_min) & ((grown * _MS > moving_ms * settings.jump_rate_min) | is_alone)
    begins_at = (
        fn.when(fn.col("group").isNull(), fn.col("last.offset"))
        .when(fn.col("is_jump"), fn.col("offset"))
        .otherwise(there)
    )
    return (
        readings.withColumn("last", last)
        .withColumn("is_jump", is_jump)
        .where(is_sound)
        .select(
            "group",
            "topic",
            "broker",
            "queue_id",
            from_ms.alias("from_ms"),
            fn.when(has_stood, looked_ms).otherwise(from_ms).alias("still_ms"),
            to_ms.alias("to_ms"),
            fn.col("last.sampled_at").alias("from_at"),
            # An interval that ends on a border does not reach into the next bucket.
            (fn.col("sampled_at") - fn.expr("INTERVAL 1 MICROSECOND")).alias("to_at"),
            begins_at.alias("from_offset"),
            fn.col("offset").alias("to_offset"),
        )
    )


def _rates(intervals: DataFrame) -> DataFrame:
    """Return the common growth of all queues with the same interval, in messages/s.

    All queues of a broker are sampled at the same time, so there are far fewer rows than queues.
    """
    growth, length_ms = fn.col("to_offset") - fn.col("from_offset"), fn.col("to_ms") - fn.col("still_ms")
    stretch = ("group", "topic", "from_ms", "still_ms", "to_ms", "from_at", "to_at")
    return intervals.groupBy(*stretch).agg((fn.sum(growth) / (length_ms / _MS)).alias("rate"))


def _by_bucket(intervals: DataFrame, gap_max_s: float) -> DataFrame:
    """Return each interval once for each bucket that it lies in, with its part of the bucket: start_ms and end_ms."""
    is_long = fn.col("to_ms") - fn.col("from_ms") > gap_max_s * _MS
    buckets = fn.flatten(fn.array(*[_buckets(unit, is_long) for unit in UNITS]))
    start_ms = fn.unix_millis("bucket.at")
    return intervals.withColumn("bucket", fn.explode(buckets)).withColumns(
        {
            "unit": fn.col("bucket.unit"),
            "bucket_at": fn.col("bucket.at"),
            "start_ms": fn.greatest(fn.col("from_ms"), start_ms),
            "end_ms": fn.least(fn.col("to_ms"), start_ms + fn.col("bucket.length_ms")),
        }
    )


def _shares(parts: DataFrame) -> DataFrame:
    """Give the growth of each interval to the buckets that it lies in."""
    return parts.select(
        *_BUCKET,
        "broker",
        "queue_id",
        (_offset_at(fn.col("end_ms")) - _offset_at(fn.col("start_ms"))).alias("messages"),
        (fn.col("end_ms") - fn.col("start_ms")).alias("covered_ms"),
    )


def _buckets(unit: str, is_long: Column) -> Column:
    """Return the buckets of a unit to which an interval contributes, as array<struct<unit, at, length_ms>>."""
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
    length = fn.col("to_ms") - fn.col("still_ms")
    growth = fn.col("to_offset") - fn.col("from_offset")
    within = fn.floor(growth * ((moment_ms - fn.col("still_ms")) / length))
    # At the ends of the interval, use the offsets that were read, without errors of doubles.
    return (
        fn.when(moment_ms <= fn.col("still_ms"), fn.col("from_offset"))
        .when(moment_ms == fn.col("to_ms"), fn.col("to_offset"))
        .otherwise(fn.col("from_offset") + within)
    )


def _peaks(parts: DataFrame) -> DataFrame:
    """Return rate_max of each bucket: the largest sum of rates. The sum changes at the ends of intervals."""
    # A part without growth adds and removes its rate at the same moment, so a bucket always has a rate, even if it is
    # 0.
    moving_ms = fn.least(fn.greatest("start_ms", "still_ms"), fn.col("end_ms"))
    begins = fn.struct(moving_ms.alias("at_ms"), fn.col("rate").alias("change"))
    ends = fn.struct(fn.col("end_ms").alias("at_ms"), (-fn.col("rate")).alias("change"))
    changes = (
        parts.select(*_BUCKET, fn.inline(fn.array(begins, ends)))
        .groupBy(*_BUCKET, "at_ms")
        .agg(fn.sum("change").alias("change"))
    )
    order = Window.partitionBy(*_BUCKET).orderBy("at_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        changes.withColumn("rate", fn.sum("change").over(order))
        .groupBy(*_BUCKET)
        # The errors of adding and subtracting doubles are far smaller.
        .agg(fn.round(fn.max("rate"), 6).alias("rate_max"))
        .select(*[fn.col(name).alias(f"peak_{name}") for name in _BUCKET], "rate_max")
    )


def _summed(shares: DataFrame) -> DataFrame:
    per_queue = shares.groupBy(*_BUCKET, "broker", "queue_id").agg(
        fn.sum("messages").alias("messages"),
        fn.sum("covered_ms").alias("covered_ms"),
    )
    queues = fn.count(fn.lit(1))
    return per_queue.groupBy(*_BUCKET).agg(
        fn.sum("messages").alias("messages"),
        (fn.min("covered_ms") / _MS).alias("covered_s"),
        queues.alias("queues"),
    )
