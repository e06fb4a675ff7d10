"""The numbers that led to a verdict, as a JSON object; what is not known, or says nothing, is left out.

The keys are part of what users see (docs/internals/lag.md lists them): added to, never renamed.
"""

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark.transforms.lagsettings import LagSettings

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"}


def evidence(settings: LagSettings) -> Column:
    """Return the evidence of a row with `flags` and `verdict`."""
    is_topic = fn.col("level") == "topic"
    has_unknown = fn.col("unknown_queues") > 0
    loop = fn.col("retry_messages") > 0
    entries = {
        "unknown": fn.col("unknown"),
        "also": _some(fn.filter("flags", lambda name: name != fn.col("verdict"))),
        "queues": fn.when(is_topic, fn.col("queues")),
        "unknown_queues": fn.when(is_topic, _above_zero("unknown_queues")),
        "late_brokers": fn.when(is_topic, _some(fn.col("late_brokers"))),
        "late_s": fn.col("late_s"),
        "known_lag_messages": fn.when(is_topic & has_unknown, fn.col("known_lag_messages")),
        "known_lag_seconds": fn.when(is_topic & has_unknown, fn.col("known_lag_seconds")),
        "min_offset": fn.col("min_offset"),
        "max_offset": fn.col("max_offset"),
        "committed_offset": fn.col("committed_offset"),
        "deleted_unconsumed": _above_zero("trimmed"),
        "filter": fn.col("filter"),
        "first_offset": fn.col("first_offset"),
        "queues_with_messages": fn.when(is_topic, fn.col("has_head_queues")),
        "clock": fn.when(fn.col("is_broker_clock_queues") > 0, fn.lit("broker")),
        "broker_now": fn.when(fn.col("is_broker_clock_queues") > 0, fn.col("broker_now")),
        "readings": fn.coalesce("readings", fn.lit(0)),
        "covered_s": fn.col("covered_s"),
        "window_s": fn.lit(settings.window_s),
        "net_rates": _some(fn.col("net_rates")),
        "commits_stood_s": fn.col("stood_s"),
        "stalled_queues": fn.when(is_topic, _above_zero("is_stalled_queues")),
        "stalled_s": fn.col("stalled_s"),
        "went_back_messages": _above_zero("back_messages"),
        "went_back_from": fn.col("back_from"),
        "moved_messages": _above_zero("moved_messages"),
        "recreated_queues": _above_zero("recreated_queues"),
        "retry_messages": fn.when(loop, fn.col("retry_messages")),
        "retry_rate": fn.when(loop, fn.col("retry_rate")),
        "consumed_rate": fn.when(loop, fn.col("consumed_rate")),
        "hottest": fn.when(is_topic & (fn.col("lag_messages_max") > 0), fn.col("hottest")),
        "hottest_lag_messages": fn.when(is_topic, _above_zero("lag_messages_max")),
        "share_of_topic": fn.col("hot_share"),
        "through_s": fn.col("risk.through_s"),
        "expires_at": fn.col("retention.expires_at"),
        "retention_is_lower_bound": fn.when(fn.col("retention.expires_at_is_earliest"), fn.lit(True)),
        "consume_enabled": fn.col("consume_enabled"),
        "ever_seen": fn.col("ever_seen"),
        "clients_unknown": fn.when(
            fn.col("clients").isNull(), fn.coalesce("group_error", fn.lit("no broker said who is connected"))
        ),
        "tags_examined": fn.col("tags_examined"),
    }
    return fn.to_json(fn.struct(*[value.alias(name) for name, value in entries.items()]), _TIMES)


def _above_zero(name: str) -> Column:
    return fn.when(fn.col(name) > 0, fn.col(name))


def _some(array: Column) -> Column:
    return fn.when(fn.size(array) > 0, array)
