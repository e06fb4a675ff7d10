"""Throughput per minute, hour and day: what came into each topic, what each group consumed of it.

Between two looks an offset is taken to grow evenly. So at every moment there is a number, interpolated and rounded
down to a whole message, and what a bucket saw is the number at its end less the number at its start: buckets add up
exactly, minutes to hours to days, and nothing is counted twice at a border.

An interval between two samples counts unless the queue was made anew in it or the offset went back (a rewind): no number
is negative. Samples are written when something changed and every five minutes, so an interval up to `gap_max_s` is known
in between, and where it is known when the broker was looked at last before a sample (`looked_at`), nothing moved up to
then and all of the growth lies behind it. In a longer one nobody looked, and buckets that lie wholly inside it are absent.
`covered_s` says how much of a bucket is known: a bucket with less than its whole length has at least that many messages.

`rate_max` is the largest rate at any moment of a bucket, of all queues together, each at the rate of the interval that it
is in. So it is never below the mean, and as fine as samples are; of a bucket that is known in part it is the least it was.

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
_BUCKET: Final = ("unit", "bucket_at", "topic", "group")


def throughput_rollup(
    samples: DataFrame,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    gap_max_s: float = GAP_MAX_S,
) -> DataFrame:
    """Return a row for each unit, bucket and topic, and one for each of its groups.

    Args:
        samples: sampled_at, group? (null: the topic's own), topic, broker, queue_id, min_offset, max_offset,
            committed_offset?, looked_at?. To be exact at the ends of [start, end) they must reach one sample beyond.
        start: Buckets that begin before it are left out; with a zone.
        end: Buckets that begin at it or later are left out; with a zone.
        gap_max_s: The longest interval in whose midst a bucket counts.

    Returns:
        unit ("minute", "hour", "day"), bucket_at (timestamp, its start), topic, group (null: the row says what came in;
        else what this group consumed), messages (long), rate_max (double, messages/s to the millionth), lag_messages (of
        a group at the bucket's last sample; null for topics, and where not all of its queues are known), covered_s
        (double, of the queue that is known least), queues (long, how many contributed).
    """
    known = samples.where(fn.col("max_offset").isNotNull())
    queue = ("topic", "broker", "queue_id")
    # Every sample of a queue says what came in, the topic's own and each group's: more readings of the same number.
    came = (
        known.groupBy(*queue, "sampled_at")
        .agg(
            fn.min("min_offset").alias("min_offset"),
            fn.max("max_offset").alias("max_offset"),
            fn.max("looked_at").alias("looked_at"),
        )
        .select(
            fn.lit(None).cast("string").alias("group"),
            *queue,
            "sampled_at",
            "min_offset",
            "max_offset",
            "looked_at",
            fn.col("max_offset").alias("offset"),
            fn.lit(None).cast("long").alias("lag"),
        )
    )
    consumed = known.where(fn.col("group").isNotNull() & fn.col("committed_offset").isNotNull()).select(
        "group",
        *queue,
        "sampled_at",
        "min_offset",
        "max_offset",
        "looked_at",
        fn.col("committed_offset").alias("offset"),
        fn.when(
            fn.col("committed_offset") <= fn.col("max_offset"),
            fn.col("max_offset") - fn.greatest("committed_offset", "min_offset"),
        ).alias("lag"),
    )
    shares = _shares(_intervals(came.unionByName(consumed), gap_max_s), gap_max_s)
    bounded = shares
    if start is not None:
        bounded = bounded.where(fn.col("bucket_at") >= fn.lit(start))
    if end is not None:
        bounded = bounded.where(fn.col("bucket_at") < fn.lit(end))
    return _with_peaks(_summed(bounded), bounded)


def _intervals(readings: DataFrame, gap_max_s: float) -> DataFrame:
    """Return a row for each two looks that follow each other; from_ms and to_ms are their times.

    A reading that was preceded by a look which found nothing new is two: up to that look nothing grew.
    """
    order = Window.partitionBy("group", "topic", "broker", "queue_id").orderBy("sampled_at").rowsBetween(-1, -1)
    last = fn.lag(fn.struct("sampled_at", "min_offset", "max_offset", "offset", "lag")).over(order)
    is_sound = (
        (fn.col("max_offset") >= fn.col("last.max_offset"))
        & (fn.col("min_offset") >= fn.col("last.min_offset"))
        & (fn.col("offset") >= fn.col("last.offset"))
        & (fn.col("sampled_at") > fn.col("last.sampled_at"))
    )
    stood_ms = fn.unix_millis("looked_at") - fn.unix_millis("last.sampled_at")
    # Longer than that a sample is not left out: then this queue was not looked at.
    has_stood = (stood_ms > 0) & (stood_ms <= gap_max_s * _MS) & (fn.col("looked_at") < fn.col("sampled_at"))
    before, now = fn.col("last.offset"), fn.col("offset")
    whole = _interval("last.sampled_at", "sampled_at", before, now, "lag")
    quiet = _interval("last.sampled_at", "looked_at", before, before, "last.lag")
    grown = _interval("looked_at", "sampled_at", before, now, "lag")
    parts = fn.when(has_stood, fn.array(quiet, grown)).otherwise(fn.array(whole))
    return (
        readings.withColumn("last", last)
        .where(is_sound)
        .select("group", "topic", "broker", "queue_id", fn.inline(parts))
    )


def _interval(start: str, end: str, from_offset: Column, to_offset: Column, lag: str) -> Column:
    return fn.struct(
        fn.unix_millis(start).alias("from_ms"),
        fn.unix_millis(end).alias("to_ms"),
        fn.col(start).alias("from_at"),
        # An interval that ends on a border has nothing in the bucket behind it.
        (fn.col(end) - fn.expr("INTERVAL 1 MICROSECOND")).alias("to_at"),
        from_offset.alias("from_offset"),
        to_offset.alias("to_offset"),
        fn.col(lag).alias("lag"),
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
            at_start.alias("start_ms"),
            at_end.alias("end_ms"),
            ((fn.col("to_offset") - fn.col("from_offset")) / ((fn.col("to_ms") - fn.col("from_ms")) / _MS)).alias(
                "rate"
            ),
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


def _with_peaks(summed: DataFrame, shares: DataFrame) -> DataFrame:
    """Add rate_max: the largest sum of the rates of all queues, which change where an interval begins or ends."""
    # Queues of a broker are sampled together: far fewer stretches than shares.
    stretches = shares.groupBy(*_BUCKET, "start_ms", "end_ms").agg(fn.sum("rate").alias("rate"))
    begins = fn.struct(fn.col("start_ms").alias("at_ms"), fn.col("rate").alias("change"))
    ends = fn.struct(fn.col("end_ms").alias("at_ms"), (-fn.col("rate")).alias("change"))
    changes = (
        stretches.select(*_BUCKET, fn.inline(fn.array(begins, ends)))
        .groupBy(*_BUCKET, "at_ms")
        .agg(fn.sum("change").alias("change"))
    )
    order = Window.partitionBy(*_BUCKET).orderBy("at_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    peaks = (
        changes.withColumn("rate", fn.sum("change").over(order))
        .groupBy(*_BUCKET)
        # What adding and subtracting doubles leaves behind is far smaller.
        .agg(fn.round(fn.max("rate"), 6).alias("rate_max"))
        .select(*[fn.col(name).alias(f"peak_{name}") for name in _BUCKET], "rate_max")
    )
    is_same = [fn.col(name).eqNullSafe(fn.col(f"peak_{name}")) for name in _BUCKET]
    return summed.join(peaks, is_same).select(*_BUCKET, "messages", "rate_max", "lag_messages", "covered_s", "queues")


def _summed(shares: DataFrame) -> DataFrame:
    per_queue = shares.groupBy(*_BUCKET, "broker", "queue_id").agg(
        fn.sum("messages").alias("messages"),
        fn.sum("covered_ms").alias("covered_ms"),
        fn.max_by("lag", fn.when(fn.col("lag").isNotNull(), fn.col("to_ms"))).alias("lag"),
    )
    queues = fn.count(fn.lit(1))
    return per_queue.groupBy(*_BUCKET).agg(
        fn.sum("messages").alias("messages"),
        fn.when(fn.count("lag") == queues, fn.sum("lag")).alias("lag_messages"),
        (fn.min("covered_ms") / _MS).alias("covered_s"),
        queues.alias("queues"),
    )
