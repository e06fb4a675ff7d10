"""The verdict: one word for the problem of a group, the worst problem first.

1. If no message is unconsumed, the verdict is OK, whatever the clients and the age of the commit. Exception: a retry
   topic that fills is a RETRY_LOOP even if it is empty for a moment, because the failed messages wait in the delay
   topic.
2. If numbers are unknown, the verdict is UNKNOWN. Exception: if they are unknown only because nothing was ever
   committed, and no client is connected, the reason is known: NO_CONSUMER or STOPPED. If the known numbers alone are
   over the group's objective, it is OVER_OBJECTIVE.
3. Otherwise it is the first verdict of RANKED_VERDICTS whose condition holds. The evidence (`also`) has all of them.
4. If no condition holds, the verdict is UNKNOWN if commits don't move and it is unknown whether a consumer is connected.
   Otherwise it is OK: the group keeps up.

The verdict of an ignored group is IGNORED. `found` has the verdict that it would have otherwise.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark.transforms.lagsettings import LagSettings

OK: Final = "OK"
LAGGING: Final = "LAGGING"
STALLED: Final = "STALLED"
STOPPED: Final = "STOPPED"
NO_CONSUMER: Final = "NO_CONSUMER"
REWOUND: Final = "REWOUND"
PAUSED: Final = "PAUSED"
HOT_QUEUE: Final = "HOT_QUEUE"
RETRY_LOOP: Final = "RETRY_LOOP"
RETENTION_RISK: Final = "RETENTION_RISK"
OVER_OBJECTIVE: Final = "OVER_OBJECTIVE"
UNKNOWN: Final = "UNKNOWN"
IGNORED: Final = "IGNORED"

RANKED_VERDICTS: Final = (
    # Messages are about to be lost, which is more urgent than everything else.
    RETENTION_RISK,
    # A person did this on purpose, and it explains the verdicts below.
    PAUSED,
    REWOUND,
    # No messages are consumed, and the consumers are missing or stuck.
    NO_CONSUMER,
    STOPPED,
    STALLED,
    # Messages are consumed, but the lag is above the group's objective.
    OVER_OBJECTIVE,
    # Messages are consumed, and these are reasons why it is too slow.
    RETRY_LOOP,
    HOT_QUEUE,
    LAGGING,
)
"""The possible problems of a group with known numbers, the worst first."""


def flags(settings: LagSettings) -> Column:
    """Return the array of the RANKED_VERDICTS whose conditions hold, in their order."""
    waits = fn.col("has_head_queues") > 0
    is_unserved = fn.col("is_unserved_queues") > 0
    rewound = (fn.col("is_rewound_queues") > 0) & (fn.col("back_messages") >= settings.rewind_messages_min)
    hot = (
        waits
        & (fn.col("topic_queues") >= 2)
        & (fn.col("topic_lag") >= settings.hot_messages_min)
        & (fn.col("hot_share") >= settings.hot_share_min)
    )
    conditions = {
        RETENTION_RISK: fn.col("is_at_risk_queues") > 0,
        PAUSED: fn.col("is_paused_queues") > 0,
        REWOUND: rewound,
        NO_CONSUMER: is_unserved & ~fn.col("was_consumed"),
        STOPPED: is_unserved & fn.col("was_consumed"),
        STALLED: fn.col("is_stalled_queues") > 0,
        OVER_OBJECTIVE: fn.col("is_over_seconds") | fn.col("is_over_messages"),
        RETRY_LOOP: _retries(settings) & (waits | fn.col("is_retry")),
        HOT_QUEUE: hot,
        # The group's own limit replaces the general one.
        LAGGING: (fn.col("lag_seconds") >= fn.coalesce("max_lag_seconds", fn.lit(settings.lagging_s)))
        | _grows(settings),
    }
    assert tuple(conditions) == RANKED_VERDICTS, conditions
    return fn.array_compact(fn.array(*[fn.when(condition, fn.lit(name)) for name, condition in conditions.items()]))


def found() -> Column:
    """Return the verdict of a row with `flags`, as if the group were not ignored."""
    is_unknown = fn.col("unknown_queues") > fn.col("never_committed_queues")
    is_done = (fn.col("unknown_queues") == 0) & (fn.col("has_head_queues") == 0)
    has_nobody = _holds(NO_CONSUMER) | _holds(STOPPED)
    first = fn.get(fn.col("flags"), fn.lit(0))
    # The unknown part can only add to the lag.
    is_over = _holds(OVER_OBJECTIVE)
    return (
        fn.when(is_unknown & is_over, fn.lit(OVER_OBJECTIVE))
        .when(is_unknown, fn.lit(UNKNOWN))
        .when(is_done & fn.col("is_retry") & _holds(RETRY_LOOP), fn.lit(RETRY_LOOP))
        .when(is_done, fn.lit(OK))
        .when((fn.col("never_committed_queues") > 0) & ~has_nobody & is_over, fn.lit(OVER_OBJECTIVE))
        .when((fn.col("never_committed_queues") > 0) & ~has_nobody, fn.lit(UNKNOWN))
        .when((fn.col("never_committed_queues") > 0) & _holds(NO_CONSUMER), fn.lit(NO_CONSUMER))
        .when((fn.col("never_committed_queues") > 0), fn.lit(STOPPED))
        .when(first.isNotNull(), first)
        .when(fn.col("clients").isNull() & ~fn.coalesce(fn.col("out_rate") > 0, fn.lit(False)), fn.lit(UNKNOWN))
        .otherwise(fn.lit(OK))
    )


def verdict() -> Column:
    """Return the verdict of a row with `found`."""
    return fn.when(fn.col("is_ignored"), fn.lit(IGNORED)).otherwise(fn.col("found"))


def _holds(name: str) -> Column:
    return fn.array_contains("flags", name)


def _retries(settings: LagSettings) -> Column:
    enough = fn.col("retry_messages") >= settings.retry_messages_min
    share = fn.col("retry_rate") >= settings.retry_share_min * fn.coalesce("consumed_rate", fn.lit(0.0))
    return enough & share


def _grows(settings: LagSettings) -> Column:
    """Return whether the lag grew in every piece of the window."""
    return (
        (fn.col("lag_messages") >= settings.growing_messages_min)
        & (fn.col("covered_s") >= settings.stall_min_s)
        & (fn.array_max("net_rates") < 0)
    )
