"""A verdict in a sentence: what it is, and what to do about it. English, for the person who is called at night."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark.transforms import verdict as verdicts

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


def cause() -> Column:
    """Return why the verdict is what it is."""
    return _by_verdict(
        {
            verdicts.OK: _ok(),
            verdicts.UNKNOWN: _unknown(),
            verdicts.RETENTION_RISK: _retention_risk(),
            verdicts.PAUSED: _text("Consuming is switched off for the group; ", _waiting(), "."),
            verdicts.REWOUND: _text(
                "The committed offset went back by ",
                _counted("back_messages", "message"),
                " a short time ago; ",
                _waiting(),
                ".",
            ),
            verdicts.NO_CONSUMER: _text("No consumer of the group was ever connected; ", _waiting(), "."),
            verdicts.STOPPED: _text(
                "No consumer is connected",
                fn.when(fn.col("ever_seen"), fn.lit(", though there was one")).otherwise(fn.lit("")),
                "; ",
                _waiting(),
                ".",
            ),
            verdicts.STALLED: _stalled(),
            verdicts.RETRY_LOOP: _text(
                _counted("retry_messages", "message"),
                " came back for another try in the last ",
                _spoken(fn.col("covered_s")),
                ", ",
                _per_second("retry_rate"),
                fn.when(
                    fn.col("consumed_rate").isNotNull(),
                    _text(" while ", _per_second("consumed_rate"), " are consumed for the first time"),
                ).otherwise(fn.lit("")),
                ": the consumers fail on them.",
            ),
            verdicts.HOT_QUEUE: _hot_queue(),
            verdicts.LAGGING: _text(_capital(_waiting()), "; ", _pace(), "."),
        }
    )


def next_step() -> Column:
    """Return what to do; null where there is nothing to do."""
    return _by_verdict(
        {
            verdicts.UNKNOWN: fn.when(
                fn.col("unknown_queues") > fn.col("never_committed_queues"),
                fn.lit("Mend what the cause names, then run the report again."),
            ).otherwise(
                fn.lit(
                    "Run the report again in a minute; if it says the same, look at the logs of the group's consumers."
                )
            ),
            verdicts.RETENTION_RISK: fn.lit(
                "Get these messages consumed first: start the consumers or add some; if that takes longer, "
                "raise fileReservedTime on the brokers before the messages are deleted."
            ),
            verdicts.PAUSED: fn.lit("Switch consuming on again (consumeEnable) as soon as the reason for it is gone."),
            verdicts.REWOUND: fn.lit(
                "If the offsets were reset on purpose, wait: these messages are delivered again. If not, find in the audit "
                "log who did it."
            ),
            verdicts.NO_CONSUMER: fn.lit("Start a consumer of this group, or delete the group if nobody needs it."),
            verdicts.STOPPED: fn.lit("Start the group's consumers again; their logs say why they ended."),
            verdicts.STALLED: fn.lit(
                "Find out what the consumers do: most often a call to a database or service that hangs, or one message "
                "that they never get done with. A thread dump shows it."
            ),
            verdicts.RETRY_LOOP: fn.lit(
                "Look for the consumers' errors and mend what fails: after its last try a message goes to the dead letters."
            ),
            verdicts.HOT_QUEUE: fn.lit(
                "Look at what the producers choose the queue by: one key has most of the messages. More consumers don't "
                "help, since one queue has one consumer."
            ),
            verdicts.LAGGING: _speed_up(),
        }
    )


def _ok() -> Column:
    lag = fn.col("lag_messages")
    return (
        fn.when(fn.col("has_head_queues") > 0, _text(_capital(_waiting()), ": the group keeps up."))
        .when(lag == 0, fn.lit("Everything that is there has been consumed."))
        .when(
            fn.col("filter").isNotNull(),
            _text(
                "Of the ",
                _counted("lag_messages", "message"),
                " behind the commit the group's filter lets none through.",
            ),
        )
        .otherwise(
            _text(
                "The ",
                _counted("lag_messages", "message"),
                " behind the commit were consumed while the report was made.",
            )
        )
    )


def _unknown() -> Column:
    part = fn.when(
        (fn.col("level") == "topic") & (fn.col("unknown_queues") > 0),
        _text(_number("unknown_queues"), " of ", _counted("queues", "queue"), " can't be judged: "),
    ).otherwise(fn.lit(""))
    nobody = fn.when(
        fn.col("is_unserved_queues") > 0,
        fn.lit("; no consumer is connected, and whether there ever was one nobody can say"),
    ).otherwise(fn.lit(""))
    no_clients = _text(_capital(_waiting()), ", and who is connected is not known")
    reason = fn.when(fn.col("group_error").isNotNull(), _text(": ", fn.col("group_error"))).otherwise(fn.lit(""))
    return fn.when(fn.col("unknown_queues") > 0, _text(part, fn.col("unknown"), nobody, ".")).otherwise(
        _text(no_clients, reason, ".")
    )


def _retention_risk() -> Column:
    when = fn.when(
        fn.col("risk.retention_left_s") > 0, _text("is deleted in ", _spoken(fn.col("risk.retention_left_s")))
    ).otherwise(fn.lit("may be deleted at any moment"))
    why = fn.when(
        fn.col("risk.through_s").isNotNull(),
        _text("but to get through its queue takes ", _spoken(fn.col("risk.through_s"))),
    ).otherwise(fn.lit("and nothing of its queue is being consumed"))
    return _text("The oldest message that waits ", when, ", ", why, "; ", _waiting(), ".")


def _stalled() -> Column:
    where = fn.when(
        fn.col("level") == "topic",
        _text(" in ", _number("is_stalled_queues"), " of ", _counted("queues", "queue")),
    ).otherwise(fn.lit(""))
    connected = fn.when(fn.col("clients") == 1, fn.lit("1 consumer is connected")).otherwise(
        _text(_number("clients"), " consumers are connected")
    )
    return _text(
        connected, ", but nothing was committed", where, " for ", _spoken(fn.col("stalled_s")), "; ", _waiting(), "."
    )


def _hot_queue() -> Column:
    share = _text(
        fn.format_number(fn.floor(fn.col("hot_share") * 100), 0), " % of the ", _counted("topic_lag", "message")
    )
    queue = _text("Queue ", fn.col("hottest.queue_id"), " of ", fn.col("hottest.broker"))
    return _text(queue, " holds ", share, " that wait in ", _counted("topic_queues", "queue"), ".")


def _waiting() -> Column:
    """Return how much waits and for how long, as a clause."""
    lag = fn.col("lag_messages")
    messages = fn.when(lag == 1, fn.lit("1 message waits")).otherwise(_text(_number("lag_messages"), " messages wait"))
    oldest = fn.when(
        fn.col("lag_seconds").isNotNull(), _text(", the oldest for ", _spoken(fn.col("lag_seconds")))
    ).otherwise(fn.lit(""))
    return fn.when(lag.isNotNull(), _text(messages, oldest)).otherwise(
        fn.lit("how many messages wait is not known, since nothing was ever committed")
    )


def _pace() -> Column:
    both = _text(_per_second("in_rate"), " come in, ", _per_second("out_rate"), " are consumed")
    return fn.when(fn.col("in_rate").isNotNull() & fn.col("out_rate").isNotNull(), both).otherwise(
        fn.lit("how fast they come and go is not known yet")
    )


def _speed_up() -> Column:
    shorten = "Shorten what one message takes first (calls to databases and services), then "
    more = fn.when(
        fn.col("clients") >= fn.col("topic_queues"),
        _text(
            shorten,
            "add threads or queues: with ",
            _counted("topic_queues", "queue"),
            " a further consumer would stand idle.",
        ),
    ).otherwise(_text(shorten, "add threads or consumers, up to one a queue (", _number("topic_queues"), ")."))
    return fn.when(
        fn.col("drain_eta_s").isNotNull(),
        _text("Wait: at this pace it is over in ", _spoken(fn.col("drain_eta_s")), "."),
    ).otherwise(more)


def _by_verdict(texts: dict[str, Column]) -> Column:
    (first, first_text), *others = texts.items()
    chosen = fn.when(fn.col("verdict") == first, first_text)
    for name, text in others:
        chosen = chosen.when(fn.col("verdict") == name, text)
    return chosen


def _text(*parts: str | Column) -> Column:
    """Join texts and columns; a null among them makes all null, so what may be null is decided before."""
    return fn.concat(*[fn.lit(part) if isinstance(part, str) else part for part in parts])


def _capital(text: Column) -> Column:
    return fn.concat(fn.upper(fn.substring(text, 1, 1)), fn.substring(text, 2, 10_000))


def _number(name: str) -> Column:
    return fn.format_number(name, 0)


def _counted(name: str, noun: str) -> Column:
    """Return "1 queue", "1,234 queues"."""
    return fn.when(fn.col(name) == 1, fn.lit(f"1 {noun}")).otherwise(_text(_number(name), f" {noun}s"))


def _per_second(name: str) -> Column:
    rate = fn.col(name)
    shown = fn.when(rate >= 10, fn.format_number(rate, 0)).otherwise(fn.format_number(rate, 1))
    return fn.concat(shown, fn.lit("/s"))


def _spoken(seconds: Column) -> Column:
    """Return a length of time by its largest unit: "48 s", "3 min", "5 h", "2 days"."""
    return (
        fn.when(seconds < 1, fn.lit("less than 1 s"))
        .when(seconds < 2 * MINUTE_S, _text(fn.format_number(fn.floor(seconds), 0), " s"))
        .when(seconds < 2 * HOUR_S, _text(fn.format_number(fn.floor(seconds / MINUTE_S), 0), " min"))
        .when(seconds < 2 * DAY_S, _text(fn.format_number(fn.floor(seconds / HOUR_S), 0), " h"))
        .otherwise(_text(fn.format_number(fn.floor(seconds / DAY_S), 0), " days"))
    )
