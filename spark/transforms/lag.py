"""The lag report: how far behind each group is, since when and why, and when it will have caught up.

The report needs one pass: each queue's row is counted twice, once for itself and once for its topic. Then the same
expressions sum, judge and describe both levels. So the numbers of a topic are those of its queues, from the same look
at the brokers.

Definitions, formulas, the order of verdicts: docs/internals/lag.md.
"""

from datetime import datetime
from itertools import zip_longest
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from spark.transforms.drain import drain_steps
from spark.transforms.evidence import evidence
from spark.transforms.lagsettings import LagSettings
from spark.transforms.lagtexts import cause, next_step
from spark.transforms.queuelag import queue_lag
from spark.transforms.rates import queue_rates
from spark.transforms.verdict import flags, found, verdict

QUEUE_LEVEL: Final = "queue"
TOPIC_LEVEL: Final = "topic"
TAG_CANDIDATES_MAX: Final = 64
"""The limit for the tags that are added up over a topic's queues: those most frequent in a single queue. The time grows
with the square of this number, and rarer tags can hardly be among the first five."""
REASONS_MAX: Final = 5
"""The limit for the reasons of unknown queues that a topic's row names. Several queues often have the same reason."""

OBJECTIVE: Final = {
    "max_lag_seconds": "double",
    "max_lag_messages": "long",
    "is_ignored": "boolean",
    "ignore_reason": "string",
    "ignore_until": "timestamp",
}
"""The objective of a group, or of a group on a topic. Null values are not set."""

LAG_REPORT_COLUMNS: Final = (
    "level",
    "group",
    "topic",
    "broker",
    "queue_id",
    "as_of",
    "lag_messages",
    "lag_seconds",
    "oldest_unconsumed_at",
    "in_rate",
    "out_rate",
    "drain_eta_s",
    "drain_eta_low_s",
    "drain_eta_high_s",
    "retention_left_s",
    "skew",
    "top_tags",
    "clients",
    "verdict",
    "cause",
    "next_step",
    "evidence",
)


def lag_report(
    survey: DataFrame,
    samples: DataFrame,
    *,
    as_of: datetime | Column,
    since: datetime | Column | None = None,
    settings: LagSettings | None = None,
) -> DataFrame:
    """Return a row for each (group, topic, queue) of `survey` and one for each (group, topic).

    Args:
        survey: Rows of kind `survey`, with the columns of OBJECTIVE if groups have objectives. Persist it, because it
            is read twice: for the numbers, and as the last reading for rates.
        samples: sampled_at, group?, topic, broker, queue_id, min_offset, max_offset, committed_offset?, looked_at?.
            Rows without a group, and rows that are too old to matter, are ignored.
        as_of: The time when the report began, with a time zone. The time of a row is `read_at` of its broker, or
            `as_of` if the broker gave no numbers. It may be a column, which all rows of both frames have with the same
            value. Then the frame can be used for any time.
        since: The time from which events of offsets count, with a time zone: the time of the previous report. At least
            the last `events_s` count. It may be a column as well.
        settings: The thresholds; None for the defaults.

    Returns:
        LAG_REPORT_COLUMNS. `as_of` of a topic is the latest of its brokers, without late ones. `broker` and `queue_id`
        are null at level "topic". Times are timestamps, lengths of time are in seconds, rates in messages per second
        (doubles). `lag_messages` is long, `clients` int, `top_tags` an array<struct<tag, messages>>, and `evidence` a
        JSON object. Unknown values are null.

    Raises:
        ValueError: `as_of` has no time zone, or a setting is invalid.
    """
    settings = LagSettings() if settings is None else settings
    settings.check()
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        raise ValueError(f"as_of: {as_of} has no time zone")
    missing = {name: fn.lit(None).cast(kind) for name, kind in OBJECTIVE.items() if name not in survey.columns}
    survey = survey.withColumns(missing) if missing else survey
    rates = queue_rates(samples, survey, as_of=as_of, since=since, settings=settings)
    queues = queue_lag(survey, rates, as_of=as_of, settings=settings)
    judging: list[dict[str, Column]] = [
        {**_skewed(), **_against_objectives()},
        {"flags": flags(settings)},
        {"found": found()},
        {"verdict": verdict()},
    ]
    draining = [{name: fn.expr(text) for name, text in step.items()} for step in drain_steps(settings)]
    judged = _levels(queues, settings)
    # Spark analyses the plan at each step, so both run at once: neither needs a column of the other.
    for one, other in zip_longest(judging, draining):
        judged = judged.withColumns({**(one or {}), **(other or {})})
    computed = {
        "top_tags": _top_tags(settings.top_tags_max),
        "cause": cause(),
        "next_step": next_step(),
        "evidence": evidence(settings),
    }
    return judged.select(*[computed[name].alias(name) if name in computed else name for name in LAG_REPORT_COLUMNS])


def _levels(queues: DataFrame, settings: LagSettings) -> DataFrame:
    """Sum each queue's row for itself and for its topic. If a sum needs all rows, one unknown makes it null."""
    levels = fn.explode(fn.array(fn.lit(QUEUE_LEVEL), fn.lit(TOPIC_LEVEL)))
    both = _at_level(queues.withColumns({"place": fn.struct("broker", "queue_id"), "level": levels}))
    return both.groupBy("level", "group", "topic", "broker", "queue_id").agg(
        fn.count(fn.lit(1)).alias("queues"),
        fn.coalesce(fn.max(fn.when(~fn.col("is_late"), fn.col("as_of"))), fn.max("as_of")).alias("as_of"),
        fn.max(fn.when(fn.col("is_late"), fn.col("late_s"))).alias("late_s"),
        fn.sort_array(fn.collect_set(fn.when(fn.col("is_late"), fn.col("place.broker")))).alias("late_brokers"),
        *_sums(settings),
        *_counts(),
        *_maxima(),
        fn.flatten(fn.collect_list("tags")).alias("tags"),
        _reasons().alias("unknown"),
        fn.max_by("place", "lag_messages").alias("hottest"),
        _whole("lag_seconds", fn.max("lag_seconds")).alias("lag_seconds"),
        fn.when(fn.count("unknown") == 0, fn.min("oldest_unconsumed_at")).alias("oldest_unconsumed_at"),
        fn.when(
            (fn.count("unknown") == 0) & (fn.count("retention_left_s") == _count_true("has_head")),
            fn.min_by(fn.struct("retention_left_s", "expires_at", "expires_at_is_earliest"), "retention_left_s"),
        ).alias("retention"),
        # Clients connect to every broker of a topic, so the numbers of brokers are not added up. 0 is certain only if
        # all brokers report 0.
        fn.when(fn.max("clients") > 0, fn.max("clients"))
        .when(fn.count("clients") == fn.count(fn.lit(1)), fn.max("clients"))
        .alias("clients"),
        fn.min("stood_s").alias("stood_s"),
        fn.min("readings").alias("readings"),
        fn.min("covered_s").alias("covered_s"),
        # The gateway writes a sample of an idle broker every few minutes only, although it looks at it in each round.
        fn.max("intervals").alias("intervals"),
        fn.max("forecast_s").alias("forecast_s"),
        fn.min("moved_s").alias("moved_s"),
    )


def _at_level(both: DataFrame) -> DataFrame:
    """Remove broker and queue_id at level "topic", and there the numbers of late brokers.

    Late numbers belong to another moment than the others.
    """
    is_queue = fn.col("level") == QUEUE_LEVEL
    late = (fn.col("level") == TOPIC_LEVEL) & fn.col("is_late")
    why = fn.concat(
        fn.lit("broker "),
        fn.col("place.broker"),
        fn.lit(" answered "),
        fn.format_number(fn.floor("late_s"), 0),
        fn.lit(" s after the first one, so its numbers are not added to the others'"),
    )
    rates = ("in_rate", "out_rate", "net_rate", "net_rates", "net_quarters")
    names = ("lag_messages", "lag_seconds", *rates, "retention_left_s")
    return both.withColumns(
        {
            **{name: fn.when(is_queue, fn.col(name)) for name in ("broker", "queue_id")},
            **{name: fn.when(~late, fn.col(name)) for name in names},
            "unknown": fn.when(late, why).otherwise(fn.col("unknown")),
        }
    )


def _sums(settings: LagSettings) -> list[Column]:
    return [
        *[_whole(name, fn.sum(name)).alias(name) for name in ("lag_messages", "in_rate", "out_rate", "net_rate")],
        _each_summed("net_rates", settings.pieces),
        _each_summed("net_quarters", 4 * settings.pieces),
        fn.sum("step_messages").alias("step_messages"),
        fn.sum("lag_messages").alias("known_lag_messages"),
        fn.sum("trimmed").alias("trimmed"),
        fn.coalesce(fn.sum("back_messages"), fn.lit(0)).alias("back_messages"),
        fn.coalesce(fn.sum("moved_messages"), fn.lit(0)).alias("moved_messages"),
        fn.sum("tags_examined").alias("tags_examined"),
    ]


def _reasons() -> Column:
    """Return all reasons for unknown numbers, as one text; null if there is none."""
    found = fn.sort_array(fn.collect_set("unknown"))
    more = fn.size(found) - REASONS_MAX
    rest = fn.when(more > 0, fn.concat(fn.lit("; and "), more, fn.lit(" more reasons"))).otherwise("")
    return fn.when(fn.size(found) > 0, fn.concat(fn.concat_ws("; ", fn.slice(found, 1, REASONS_MAX)), rest))


def _each_summed(name: str, count: int) -> Column:
    """Add up arrays, item by item."""
    items = [f"sum({name}[{item}])" for item in range(count)]
    known = [f"CASE WHEN count({name}[{item}]) = count(1) THEN {items[item]} END" for item in range(count)]
    return fn.expr(f"array({', '.join(known)}) AS {name}")


def _counts() -> list[Column]:
    return [
        fn.count("unknown").alias("unknown_queues"),
        *[
            _count_true(name).alias(f"{name}_queues")
            for name in (
                "never_committed",
                "has_head",
                "stands",
                "is_paused",
                "is_unserved",
                "is_stalled",
                "is_rewound",
                "is_at_risk",
                "is_broker_clock",
                "recreated",
            )
        ],
    ]


def _maxima() -> list[Column]:
    """Aggregate columns that are equal in all rows of a group or topic, or of which the worst row counts."""
    same = (
        "is_retry",
        "was_consumed",
        "retry_messages",
        "retry_rate",
        "consumed_rate",
        "topic_queues",
        "topic_lag",
        "filter",
        "consume_enabled",
        "ever_seen",
        "group_error",
        *OBJECTIVE,
    )
    single = ("min_offset", "max_offset", "committed_offset", "first_offset", "broker_now", "back_from")
    is_queue = fn.first("level") == QUEUE_LEVEL
    return [
        *[fn.max(name).alias(name) for name in same],
        *[fn.when(is_queue, fn.max(name)).alias(name) for name in single],
        fn.max("lag_messages").alias("lag_messages_max"),
        fn.max("lag_seconds").alias("known_lag_seconds"),
        fn.max(fn.when(fn.col("is_stalled"), fn.col("stood_s"))).alias("stalled_s"),
        fn.min_by(
            fn.when(fn.col("is_at_risk"), fn.struct("through_s", "retention_left_s", "lag_messages")),
            fn.when(fn.col("is_at_risk"), fn.col("retention_left_s")),
        ).alias("risk"),
    ]


def _skewed() -> dict[str, Column]:
    """Return retention_left_s, skew and hot_share, and net_rates without unknown values."""
    mean = fn.col("topic_lag") / fn.col("topic_queues")
    topic_lag, largest = fn.col("topic_lag"), fn.col("lag_messages_max")
    return {
        "net_rates": fn.filter("net_rates", lambda rate: rate.isNotNull()),
        "retention_left_s": fn.col("retention.retention_left_s"),
        "skew": fn.when(topic_lag > 0, largest / mean),
        "hot_share": fn.when(topic_lag > 0, largest / topic_lag),
    }


def _against_objectives() -> dict[str, Column]:
    """Return the comparison with the group's objective. The limit of messages holds for a topic, that of seconds for each queue, too.

    If a part of a topic is unknown, the known part alone may be over the objective.
    """
    waits = fn.col("has_head_queues") > 0
    seconds = fn.coalesce("lag_seconds", "known_lag_seconds")
    messages = fn.when(fn.col("level") == TOPIC_LEVEL, fn.coalesce("lag_messages", "known_lag_messages"))
    over = {"seconds": seconds > fn.col("max_lag_seconds"), "messages": messages > fn.col("max_lag_messages")}
    return {
        "over_seconds": fn.ceil(seconds),
        "over_messages": messages,
        "is_ignored": fn.coalesce("is_ignored", fn.lit(False)),
        **{f"is_over_{name}": fn.coalesce(waits & condition, fn.lit(False)) for name, condition in over.items()},
    }


def _top_tags(count: int) -> Column:
    """Return the most frequent of the examined tags; null if none was examined.

    Equally frequent tags are sorted by name.
    """
    by_count = fn.array_sort(
        fn.transform("tags", lambda entry: fn.struct((-entry["messages"]).alias("n"), entry["tag"]))
    )
    names = fn.slice(fn.array_distinct(fn.transform(by_count, lambda entry: entry["tag"])), 1, TAG_CANDIDATES_MAX)

    def messages_of(name: Column) -> Column:
        same = fn.filter("tags", lambda entry: entry["tag"].eqNullSafe(name))
        return fn.aggregate(same, fn.lit(0).cast("long"), lambda total, entry: total + entry["messages"])

    added = fn.transform(names, lambda name: fn.struct((-messages_of(name)).alias("n"), name.alias("tag")))
    first = fn.slice(fn.array_sort(added), 1, count)
    messages = fn.transform(first, lambda entry: fn.struct(entry["tag"].alias("tag"), (-entry["n"]).alias("messages")))
    return fn.when(fn.col("tags_examined").isNotNull(), messages)


def _whole(name: str | Column, total: Column) -> Column:
    """Return the total if every row has a value."""
    return fn.when(fn.count(name) == fn.count(fn.lit(1)), total)


def _count_true(name: str) -> Column:
    return fn.count(fn.when(fn.col(name), 1))
