"""The sentences of a verdict: the cause and the next step, in English, for a person who is called at night.

The Chinese console translates these sentences, those of drain.py and the reasons in `unknown` (queuelag.py, lag.py) by
patterns: web-console/src/i18n/en/verdicts.json has a pattern for each part, zh/verdicts.json its Chinese text. If you
change a sentence, change both; until then, the Chinese console shows the sentence in English.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

from spark.transforms import verdict as verdicts
from spark.transforms.sqltext import Sql, choose, quoted, text

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_SOLVE: Final = "Solve the problem that the cause names, then run the report again."


def cause() -> Column:
    """Return the cause of the verdict."""
    waiting = _waiting()
    found = _by(
        "found",
        {
            verdicts.OK: _ok(waiting),
            verdicts.UNKNOWN: _unknown(waiting),
            verdicts.RETENTION_RISK: _retention_risk(waiting),
            verdicts.PAUSED: text("Consuming is switched off for the group; ", waiting, "."),
            verdicts.REWOUND: text(
                "The committed offset went back by ",
                _counted("back_messages", "message"),
                " a short time ago; ",
                waiting,
                ".",
            ),
            verdicts.NO_CONSUMER: text("No consumer of the group was ever connected; ", waiting, "."),
            verdicts.STOPPED: text(
                "No consumer is connected",
                choose(("ever_seen", ", though there was one"), otherwise=""),
                "; ",
                waiting,
                ".",
            ),
            verdicts.STALLED: _stalled(waiting),
            verdicts.RETRY_LOOP: text(
                _counted("retry_messages", "message"),
                " came back for another try in the last ",
                _duration_text("covered_s"),
                ", ",
                _per_second("retry_rate"),
                choose(
                    (
                        "consumed_rate IS NOT NULL",
                        text(" while ", _per_second("consumed_rate"), " are consumed for the first time"),
                    ),
                    otherwise="",
                ),
                ": the consumers fail on them.",
            ),
            verdicts.HOT_QUEUE: _hot_queue(),
            verdicts.OVER_OBJECTIVE: choose(
                ("unknown_queues > 0", _unknown(waiting)),
                otherwise=text(_capital(waiting), "; ", _rates_text(), "."),
            ),
            verdicts.LAGGING: text(_capital(waiting), "; ", _rates_text(), "."),
        },
    )
    return fn.expr(text(_ignored(), found, _missed_objective()))


def next_step() -> Column:
    """Return the next step; null if there is nothing to do."""
    sentences = _by(
        "verdict",
        {
            verdicts.UNKNOWN: choose(
                ("unknown_queues > never_committed_queues", _SOLVE),
                otherwise="Run the report again in a minute; if it says the same, look at the logs of the group's consumers.",
            ),
            verdicts.RETENTION_RISK: quoted(
                "Get these messages consumed first: start the consumers or add some; if that takes longer, "
                "raise fileReservedTime on the brokers before the messages are deleted."
            ),
            verdicts.PAUSED: quoted("Switch consuming on again (consumeEnable) as soon as the reason for it is gone."),
            verdicts.REWOUND: quoted(
                "If the offsets were reset on purpose, wait: these messages are delivered again. If not, find in the audit "
                "log who did it."
            ),
            verdicts.NO_CONSUMER: quoted("Start a consumer of this group, or delete the group if nobody needs it."),
            verdicts.STOPPED: quoted("Start the group's consumers again; their logs say why they ended."),
            verdicts.STALLED: quoted(
                "Find out what the consumers do: most often a call to a database or service that hangs, or one message "
                "that they never finish. A thread dump shows it."
            ),
            verdicts.RETRY_LOOP: quoted(
                "Look for the consumers' errors and fix what fails: after its last try a message goes to the dead letters."
            ),
            verdicts.HOT_QUEUE: quoted(
                "Find out why producers send most messages to this queue: often many messages have the same key, or the "
                "producer names the queue or sends large batches, each to one queue. More consumers don't help, since one "
                "queue has one consumer."
            ),
            verdicts.OVER_OBJECTIVE: choose(("unknown_queues > 0", _SOLVE), otherwise=_speed_up()),
            verdicts.LAGGING: _speed_up(),
        },
    )
    return fn.expr(sentences)


def _ok(waiting: Sql) -> Sql:
    return choose(
        ("has_head_queues > 0", text(_capital(waiting), ": the group keeps up.")),
        ("lag_messages = 0", "Everything that is there has been consumed."),
        (
            "`filter` IS NOT NULL",
            text(
                "The group's filter accepts none of the ",
                _counted("lag_messages", "message"),
                " behind the commit.",
            ),
        ),
        otherwise=text(
            "The ",
            _counted("lag_messages", "message"),
            " behind the commit were consumed while the report was made.",
        ),
    )


def _unknown(waiting: Sql) -> Sql:
    part = choose(
        (
            "level = 'topic' AND unknown_queues > 0",
            text(_number("unknown_queues"), " of ", _counted("queues", "queue"), " can't be judged: "),
        ),
        otherwise="",
    )
    no_consumer = choose(
        (
            "is_unserved_queues > 0",
            "; no consumer is connected, and it is unknown whether there ever was one",
        ),
        otherwise="",
    )
    reason = choose(("group_error IS NOT NULL", text(": ", Sql("group_error"))), otherwise="")
    return choose(
        ("unknown_queues > 0", text(part, Sql("`unknown`"), no_consumer, ".")),
        otherwise=text(_capital(waiting), ", and it is unknown whether a consumer is connected", reason, "."),
    )


def _retention_risk(waiting: Sql) -> Sql:
    when = choose(
        ("risk.retention_left_s > 0", text("is deleted in ", _duration_text("risk.retention_left_s"))),
        otherwise="may be deleted at any moment",
    )
    why = choose(
        ("risk.through_s IS NOT NULL", text("but to get through its queue takes ", _duration_text("risk.through_s"))),
        otherwise="and nothing of its queue is being consumed",
    )
    return text("The oldest message that waits ", when, ", ", why, "; ", waiting, ".")


def _stalled(waiting: Sql) -> Sql:
    where = choose(
        ("level = 'topic'", text(" in ", _number("is_stalled_queues"), " of ", _counted("queues", "queue"))),
        otherwise="",
    )
    connected = choose(
        ("clients = 1", "1 consumer is connected"), otherwise=text(_number("clients"), " consumers are connected")
    )
    return text(
        connected, ", but nothing was committed", where, " for ", _duration_text("stalled_s"), "; ", waiting, "."
    )


def _hot_queue() -> Sql:
    share = text(Sql("format_number(floor(hot_share * 100), 0)"), " % of the ", _counted("topic_lag", "message"))
    queue = text("Queue ", Sql("hottest.queue_id"), " of ", Sql("hottest.broker"))
    return text(queue, " holds ", share, " that wait in ", _counted("topic_queues", "queue"), ".")


def _waiting() -> Sql:
    """Return how much waits and for how long, as a clause."""
    oldest = choose(("lag_seconds IS NOT NULL", text(", the oldest for ", _duration_text("lag_seconds"))), otherwise="")
    partly = text(
        _messages_wait("known_lag_messages"),
        " where it has committed, and how many more is unknown, since nothing was ever committed in ",
        _number("never_committed_queues"),
        " of ",
        _counted("queues", "queue"),
    )
    return choose(
        ("lag_messages IS NOT NULL", text(_messages_wait("lag_messages"), oldest)),
        ("known_lag_messages IS NOT NULL AND never_committed_queues < queues", partly),
        otherwise="how many messages wait is unknown, since nothing was ever committed",
    )


def _messages_wait(name: str) -> Sql:
    """Return "1 message waits", "1,234 messages wait". The offsets count what a filter of the group rejects as well."""
    count = choose((f"{name} = 1", "1 message waits"), otherwise=text(_number(name), " messages wait"))
    return choose(
        ("`filter` IS NOT NULL", text("at most ", count, " (the group's filter accepts only some)")), otherwise=count
    )


def _rates_text() -> Sql:
    both = text(_per_second("in_rate"), " come in, ", _per_second("out_rate"), " are consumed")
    return choose(("in_rate IS NOT NULL AND out_rate IS NOT NULL", both), otherwise="the rates are not known yet")


def _speed_up() -> Sql:
    shorten = "Shorten what one message takes first (calls to databases and services), then "
    more = choose(
        (
            "clients >= topic_queues",
            text(
                shorten,
                "add threads or queues: with ",
                _counted("topic_queues", "queue"),
                " a further consumer would stand idle.",
            ),
        ),
        otherwise=text(shorten, "add threads or consumers, up to one a queue (", _number("topic_queues"), ")."),
    )
    return choose(
        (
            "drain_eta_high_s IS NOT NULL",
            text("Wait: at this pace it is over in ", _duration_text("drain_eta_s"), "."),
        ),
        otherwise=more,
    )


def _ignored() -> Sql:
    """Return the sentence before the cause, with the end and the reason if the group is ignored; else an empty text."""
    until = choose(
        ("ignore_until IS NOT NULL", text(" until ", Sql("date_format(ignore_until, 'yyyy-MM-dd HH:mm')"), " UTC")),
        otherwise="",
    )
    why = choose(("ignore_reason IS NOT NULL", text(" (", Sql("ignore_reason"), ")")), otherwise="")
    return choose(("is_ignored", text("Ignored", until, why, ", else ", Sql("found"), ". ")), otherwise="")


def _missed_objective() -> Sql:
    """Return the sentence after the cause, with the missed objective; an empty text if none is missed."""
    limit_s = choose(
        ("max_lag_seconds = floor(max_lag_seconds)", _number("max_lag_seconds")),
        otherwise=Sql("CAST(max_lag_seconds AS STRING)"),
    )
    seconds = text(_number("over_seconds"), " s behind, ", limit_s, " s allowed")
    messages = text(_number("over_messages"), " messages behind, ", _number("max_lag_messages"), " allowed")
    missed = choose(
        ("is_over_seconds AND is_over_messages", text(seconds, "; ", messages)),
        ("is_over_seconds", seconds),
        otherwise=messages,
    )
    return choose(
        ("is_over_seconds OR is_over_messages", text(" It is over its objective: ", missed, ".")), otherwise=""
    )


def _by(column: str, texts: dict[str, Sql]) -> Sql:
    return choose(*[(f"{column} = {quoted(name)}", sentence) for name, sentence in texts.items()])


def _capital(sentence: Sql) -> Sql:
    return Sql(f"concat(upper(substring({sentence}, 1, 1)), substring({sentence}, 2, 10000))")


def _number(name: str) -> Sql:
    return Sql(f"format_number({name}, 0)")


def _counted(name: str, noun: str) -> Sql:
    """Return "1 queue", "1,234 queues"."""
    return choose((f"{name} = 1", f"1 {noun}"), otherwise=text(_number(name), f" {noun}s"))


def _per_second(name: str) -> Sql:
    number_text = choose(
        (f"{name} >= 10", Sql(f"format_number({name}, 0)")), otherwise=Sql(f"format_number({name}, 1)")
    )
    return text(number_text, "/s")


def _duration_text(name: str) -> Sql:
    """Return a time in seconds in its largest unit: "48 s", "3 min", "5 h", "2 days"."""

    def units(length_s: int, unit: str) -> Sql:
        return text(Sql(f"format_number(floor({name} / {length_s}), 0)"), f" {unit}")

    return choose(
        (f"{name} < 1", "less than 1 s"),
        (f"{name} < {2 * MINUTE_S}", units(1, "s")),
        (f"{name} < {2 * HOUR_S}", units(MINUTE_S, "min")),
        (f"{name} < {2 * DAY_S}", units(HOUR_S, "h")),
        otherwise=units(DAY_S, "days"),
    )
