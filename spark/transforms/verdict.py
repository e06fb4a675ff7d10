"""The verdict: one word for what is wrong, the worst first.

1. Nothing is unconsumed: OK, whatever the clients and however old the commit. But a retry topic that fills is a
   RETRY_LOOP even while it is empty for a moment: what comes back waits elsewhere (in the delay topic).
2. Numbers are unknown: UNKNOWN. But where they are only unknown because nothing was ever committed, and nobody is
   connected, the reason is known: NO_CONSUMER or STOPPED.
3. Of the claims that hold the first in the order of CLAIMS. All that hold are in the evidence (`also`).
4. Nobody can say whether a consumer is connected, and commits don't move: UNKNOWN. Else OK: it keeps up.

An ignored group keeps the result as `found`, and its verdict is IGNORED.
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

CLAIMS: Final = (
    # Messages are about to be lost: nothing else is as urgent.
    RETENTION_RISK,
    # Somebody did this on purpose, and it explains everything below.
    PAUSED,
    REWOUND,
    # Nothing moves, and nobody is there to move it.
    NO_CONSUMER,
    STOPPED,
    STALLED,
    # Something moves, and it is not enough for what was agreed.
    OVER_OBJECTIVE,
    # Something moves, and this is why not enough.
    RETRY_LOOP,
    HOT_QUEUE,
    LAGGING,
)
"""What can be wrong where the numbers are known, the worst first."""


def flags(settings: LagSettings) -> Column:
    """Return the array of CLAIMS that hold, in their order."""
    waits = fn.col("has_head_queues") > 0
    nobody = fn.col("is_unserved_queues") > 0
    rewound = (fn.col("is_rewound_queues") > 0) & (fn.col("back_messages") >= settings.rewind_messages_min)
    hot = (
        waits
        & (fn.col("topic_queues") >= 2)
        & (fn.col("topic_lag") >= settings.hot_messages_min)
        & (fn.col("hot_share") >= settings.hot_share_min)
    )
    claims = {
        RETENTION_RISK: fn.col("is_at_risk_queues") > 0,
        PAUSED: fn.col("is_paused_queues") > 0,
        REWOUND: rewound,
        NO_CONSUMER: nobody & ~fn.col("was_consumed"),
        STOPPED: nobody & fn.col("was_consumed"),
        STALLED: fn.col("is_stalled_queues") > 0,
        OVER_OBJECTIVE: fn.col("is_over_seconds") | fn.col("is_over_messages"),
        RETRY_LOOP: _retries(settings) & (waits | fn.col("is_retry")),
        HOT_QUEUE: hot,
        # The group's own limit stands for the general one.
        LAGGING: (fn.col("lag_seconds") >= fn.coalesce("max_lag_seconds", fn.lit(settings.lagging_s)))
        | _grows(settings),
    }
    assert tuple(claims) == CLAIMS, claims
    return fn.array_compact(fn.array(*[fn.when(claim, fn.lit(name)) for name, claim in claims.items()]))


def found() -> Column:
    """Return what is found of a row with `flags`: its verdict, unless the group is ignored."""
    is_unknown = fn.col("unknown_queues") > fn.col("never_committed_queues")
    is_done = (fn.col("unknown_queues") == 0) & (fn.col("has_head_queues") == 0)
    has_nobody = _holds(NO_CONSUMER) | _holds(STOPPED)
    first = fn.get(fn.col("flags"), fn.lit(0))
    return (
        fn.when(is_unknown, fn.lit(UNKNOWN))
        .when(is_done & fn.col("is_retry") & _holds(RETRY_LOOP), fn.lit(RETRY_LOOP))
        .when(is_done, fn.lit(OK))
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
    """Say whether the lag grew in every piece of the window."""
    return (
        (fn.col("lag_messages") >= settings.growing_messages_min)
        & (fn.col("covered_s") >= settings.stall_min_s)
        & (fn.array_max("net_rates") < 0)
    )
