"""The lag of each group on a topic at the end of each bucket of time.

As in a lag history (gantry/model/laghistory.py), a sample of a broker holds until its next one, and for at most
HELD_FOR. The lag of a bucket is the sum over all brokers of the topic at the bucket's last moment, or at the last
sample of all if the bucket is not over. It is null if a broker is missing at that moment: its last sample is too old,
or it gave no numbers in that round (an outage). It is also null if a queue with messages has no commit, or a commit is
beyond the end.

A broker is expected from its first sample. It is not expected any more if it still has samples, but none of this topic
and group for HELD_FOR: then the topic or the group is gone there.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from gantry.model.laghistory import HELD_FOR, STEPS, Outage

_PAIR: Final = ("group", "topic")
_BUCKET: Final = ("unit", "bucket_at")
_HELD_FOR: Final = f"INTERVAL {HELD_FOR.total_seconds():.0f} SECONDS"


def bucket_lags(
    samples: DataFrame,
    *,
    units: Collection[str],
    outages: Sequence[Outage] = (),
    homes: Mapping[str, Collection[str]] | None = None,
) -> DataFrame:
    """Return unit, bucket_at, group, topic and lag_messages, for buckets at whose end at least one broker is known.

    Args:
        samples: The samples of `throughput_rollup`.
        units: The units of the buckets, such as "minute".
        outages: The times in which brokers gave no numbers.
        homes: Topic → the brokers that have it, as far as they are known from elsewhere.
    """
    looks = _looks(samples)
    last = fn.broadcast(samples.agg(fn.max("sampled_at").alias("last_at")))
    known = _at_ends(looks, last, units).where(fn.col("moment") < fn.col("until_at"))
    if outages:
        away = _away(samples.sparkSession, outages, last, units)
        known = known.join(fn.broadcast(away), on=list(_BUCKET), how="left")
    else:
        known = known.withColumn("away", fn.lit(None).cast("map<string, timestamp>"))
    ended_at = fn.col("away")[fn.col("broker")]
    is_here = ended_at.isNull() | (fn.col("sampled_at") > ended_at)
    counted = known.groupBy(*_BUCKET, *_PAIR).agg(
        fn.count(fn.when(is_here, fn.col("lag"))).alias("known"),
        fn.sum("lag").alias("lag"),
        fn.first("moment").alias("moment"),
        fn.first("away").alias("away"),
    )
    is_whole = (fn.col("known") == _expected()) & ~_is_new_one_away()
    return counted.join(_brokers(samples, looks, homes or {}), on=list(_PAIR), how="left").select(
        *_BUCKET, *_PAIR, fn.when(is_whole, fn.col("lag")).alias("lag_messages")
    )


def _looks(samples: DataFrame) -> DataFrame:
    """Return the lag on each broker at each sample, and until when it holds."""
    low, high, committed = fn.col("min_offset"), fn.col("max_offset"), fn.col("committed_offset")
    lag = fn.when(committed.isNull() & (low == high), fn.lit(0)).when(
        committed <= high, high - fn.greatest(committed, low)
    )
    held = fn.col("sampled_at") + fn.expr(_HELD_FOR)
    following = Window.partitionBy(*_PAIR, "broker").orderBy("sampled_at").rowsBetween(1, 1)
    return (
        samples.where(fn.col("group").isNotNull() & high.isNotNull())
        .withColumn("queue_lag", lag)
        .groupBy(*_PAIR, "broker", "sampled_at")
        .agg(fn.when(fn.count("queue_lag") == fn.count(fn.lit(1)), fn.sum("queue_lag")).alias("lag"))
        .withColumn("until_at", fn.least(held, fn.lead("sampled_at").over(following)))
    )


def _at_ends(frame: DataFrame, last: DataFrame, units: Collection[str]) -> DataFrame:
    """Return each row once for each bucket whose last moment lies between sampled_at and until_at, both included.

    Adds unit, bucket_at and moment.
    """
    buckets = fn.flatten(fn.array(*[_buckets(unit) for unit in units]))
    return (
        frame.join(last, how="cross")
        .select(*frame.columns, fn.inline(buckets))
        .where(fn.col("moment").between(fn.col("sampled_at"), fn.col("until_at")))
    )


def _buckets(unit: str) -> Column:
    """Return the buckets of a unit that overlap with a row, as array<struct<unit, bucket_at, moment>>."""
    starts = fn.sequence(
        fn.date_trunc(unit, "sampled_at"), fn.date_trunc(unit, "until_at"), fn.expr(f"INTERVAL 1 {unit}")
    )
    to_end = fn.expr(f"INTERVAL 1 {unit} - INTERVAL 1 MICROSECOND")
    return fn.transform(
        starts,
        lambda at: fn.struct(
            fn.lit(unit).alias("unit"), at.alias("bucket_at"), fn.least(at + to_end, fn.col("last_at")).alias("moment")
        ),
    )


def _away(spark: SparkSession, outages: Sequence[Outage], last: DataFrame, units: Collection[str]) -> DataFrame:
    """Return unit, bucket_at and `away`: the brokers without numbers at the bucket's last moment → their outage's end."""
    frame = spark.createDataFrame(
        [tuple(one) for one in outages], "broker string, sampled_at timestamp, ended_at timestamp"
    ).withColumn("until_at", fn.col("ended_at") + fn.expr(f"INTERVAL {STEPS[0].total_seconds():.0f} SECONDS"))
    # Outages of a broker may be a round apart, so that two of them include a moment.
    return (
        _at_ends(frame, last, units)
        .groupBy(*_BUCKET, "broker")
        .agg(fn.max("ended_at").alias("ended_at"))
        .groupBy(*_BUCKET)
        .agg(fn.map_from_entries(fn.collect_list(fn.struct("broker", "ended_at"))).alias("away"))
    )


def _brokers(samples: DataFrame, looks: DataFrame, homes: Mapping[str, Collection[str]]) -> DataFrame:
    """Return the brokers of each group and topic, as array<struct<broker, first_at, gone_at>>.

    `first_at` is null for a broker without samples of them, and `gone_at` if they are not gone there.
    """
    active = samples.groupBy("broker").agg(fn.max("sampled_at").alias("active_at"))
    gone_at = fn.max("sampled_at") + fn.expr(_HELD_FOR)
    seen = (
        looks.groupBy(*_PAIR, "broker")
        .agg(fn.min("sampled_at").alias("first_at"), gone_at.alias("gone_at"))
        .join(fn.broadcast(active), on="broker")
        .select(
            *_PAIR,
            "broker",
            "first_at",
            fn.when(fn.col("gone_at") < fn.col("active_at"), fn.col("gone_at")).alias("gone_at"),
        )
    )
    rows = [(topic, broker) for topic, brokers in homes.items() for broker in brokers]
    if rows:
        have = samples.sparkSession.createDataFrame(rows, "topic string, broker string")
        never = fn.lit(None).cast("timestamp")
        unseen = looks.select(*_PAIR).distinct().join(have, on="topic").join(seen, [*_PAIR, "broker"], "left_anti")
        seen = seen.unionByName(unseen.select(*_PAIR, "broker", never.alias("first_at"), never.alias("gone_at")))
    return seen.groupBy(*_PAIR).agg(fn.collect_list(fn.struct("broker", "first_at", "gone_at")).alias("brokers"))


def _expected() -> Column:
    """Return the number of brokers whose numbers are needed at a moment."""
    moment = fn.col("moment")
    return fn.size(
        fn.filter(
            "brokers",
            lambda one: (one["first_at"] <= moment) & fn.coalesce(moment < one["gone_at"], fn.lit(True)),
        )
    )


def _is_new_one_away() -> Column:
    """Return whether a broker has an outage at a moment, and no sample before."""
    moment, away = fn.col("moment"), fn.coalesce("away", fn.create_map().cast("map<string, timestamp>"))
    return fn.exists(
        "brokers",
        lambda one: fn.coalesce(one["first_at"] > moment, fn.lit(True)) & fn.map_contains_key(away, one["broker"]),
    )
