"""The numbers that led to a verdict, as a JSON object. Unknown numbers, and numbers without meaning here, are left out.

Users see the keys (docs/internals/lag.md lists them), so keys may be added but never renamed.
"""

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark.transforms.lagsettings import LagSettings
from spark.transforms.sqltext import Sql, choose, quoted

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"}


def evidence(settings: LagSettings) -> Column:
    """Return the evidence of a row with `flags` and `verdict`."""
    entries = {
        "unknown": Sql("`unknown`"),
        "also": _some("filter(flags, name -> name != found)"),
        "objective": choose(
            (
                "max_lag_seconds IS NOT NULL OR max_lag_messages IS NOT NULL",
                Sql("named_struct('max_lag_seconds', max_lag_seconds, 'max_lag_messages', max_lag_messages)"),
            )
        ),
        "ignored": choose(
            (
                "is_ignored",
                Sql("named_struct('verdict', found, 'reason', ignore_reason, 'until', ignore_until)"),
            )
        ),
        "queues": _of_topic("queues"),
        "unknown_queues": _of_topic(_above_zero("unknown_queues")),
        "late_brokers": _of_topic(_some("late_brokers")),
        "late_s": Sql("late_s"),
        "known_lag_messages": _of_topic(choose(("unknown_queues > 0", Sql("known_lag_messages")))),
        "known_lag_seconds": _of_topic(choose(("unknown_queues > 0", Sql("known_lag_seconds")))),
        "min_offset": Sql("min_offset"),
        "max_offset": Sql("max_offset"),
        "committed_offset": Sql("committed_offset"),
        "deleted_unconsumed": _above_zero("trimmed"),
        "filter": Sql("`filter`"),
        "first_offset": Sql("first_offset"),
        "queues_with_messages": _of_topic("has_head_queues"),
        "clock": choose(("is_broker_clock_queues > 0", "broker")),
        "broker_now": choose(("is_broker_clock_queues > 0", Sql("broker_now"))),
        "readings": Sql("coalesce(readings, 0)"),
        "covered_s": Sql("covered_s"),
        "window_s": Sql(f"double('{settings.window_s}')"),
        "net_rates": _some("net_rates"),
        "drain_unknown": Sql("drain_unknown"),
        "commits_stood_s": Sql("stood_s"),
        "stalled_queues": _of_topic(_above_zero("is_stalled_queues")),
        "stalled_s": Sql("stalled_s"),
        "went_back_messages": _above_zero("back_messages"),
        "went_back_from": Sql("back_from"),
        "moved_messages": _above_zero("moved_messages"),
        "moved_s": Sql("moved_s"),
        "recreated_queues": _above_zero("recreated_queues"),
        "retry_messages": choose(("retry_messages > 0", Sql("retry_messages"))),
        "retry_rate": choose(("retry_messages > 0", Sql("retry_rate"))),
        "consumed_rate": choose(("retry_messages > 0", Sql("consumed_rate"))),
        "hottest": _of_topic(choose(("lag_messages_max > 0", Sql("hottest")))),
        "hottest_lag_messages": _of_topic(_above_zero("lag_messages_max")),
        "share_of_topic": Sql("hot_share"),
        "through_s": Sql("risk.through_s"),
        "expires_at": Sql("retention.expires_at"),
        "retention_is_lower_bound": choose(("retention.expires_at_is_earliest", Sql("true"))),
        "consume_enabled": Sql("consume_enabled"),
        "ever_seen": Sql("ever_seen"),
        "clients_unknown": choose(("clients IS NULL", Sql("coalesce(group_error, 'no broker said who is connected')"))),
        "tags_examined": Sql("tags_examined"),
    }
    named = ", ".join(f"{quoted(name)}, {value}" for name, value in entries.items())
    return fn.to_json(fn.expr(f"named_struct({named})"), _TIMES)


def _of_topic(value: str) -> Sql:
    return choose(("level = 'topic'", Sql(value)))


def _above_zero(name: str) -> Sql:
    return choose((f"{name} > 0", Sql(name)))


def _some(array: str) -> Sql:
    return choose((f"size({array}) > 0", Sql(array)))
