"""Every verdict of the lag report, with its sentence, on hand-built frames: one Spark job, a group a case."""

import pytest

from spark.transforms.lag import LAG_REPORT_COLUMNS
from tests.integration.spark.transforms.lagworld import DAY, HOUR, World, steady

QUIET = [(600, 100, 100), (300, 100, 100)]


def caught_up(world):
    world.group("quiet").queue("quiet", head={}, samples=QUIET)
    # Nothing to consume: whoever is connected, or was, and whatever can't be known of it.
    world.group("gone", clients=0).queue("gone", head={})
    world.group("off", enabled=False).queue("off", head={})
    world.group("unlooked").queue("unlooked", head={"error": "broker b0: no answer"})
    world.queue("nobody-says", head={})
    world.group("empty", clients=0, seen=False).queue("empty", high=0, committed=None, head={})
    world.group("trimmed-empty").queue("trimmed-empty", low=500, high=500, committed=20, head={})
    # Behind the commit is only what the filter keeps out.
    world.group("filtered").queue("filtered", high=150, head={"filter": "a || b"})
    world.group("just-now").queue("just-now", high=150, head={})
    flow = steady(high=100, committed=99, rate_in=1, rate_out=1)
    world.group("busy").queue("busy", committed=99, head={"age": 0.5}, samples=flow)


@pytest.mark.parametrize(
    ("group", "lag", "cause"),
    [
        ("quiet", 0, "Everything that is there has been consumed."),
        ("gone", 0, "Everything that is there has been consumed."),
        ("off", 0, "Everything that is there has been consumed."),
        ("unlooked", 0, "Everything that is there has been consumed."),
        ("nobody-says", 0, "Everything that is there has been consumed."),
        ("empty", 0, "Everything that is there has been consumed."),
        ("trimmed-empty", 0, "Everything that is there has been consumed."),
        ("filtered", 50, "The group's filter accepts none of the 50 messages behind the commit."),
        ("just-now", 50, "The 50 messages behind the commit were consumed while the report was made."),
        ("busy", 1, "1 message waits, the oldest for less than 1 s: the group keeps up."),
    ],
)
def test_who_has_nothing_to_consume_or_keeps_up_is_ok(report, group, lag, cause):
    for row in (report.topic(group), report.queue(group)):
        assert (row["verdict"], row["lag_messages"], row["cause"]) == ("OK", lag, cause)
        assert row["next_step"] is None
        assert row["lag_seconds"] == (0.5 if group == "busy" else 0.0)


def broken(world):
    behind = {"high": 100, "committed": 40}
    world.group("late").queue("late", **behind, head={"age": 300})
    grows = steady(high=9_000, committed=7_000, rate_in=8, rate_out=5)
    world.group("grows", clients=1).queue("grows", high=9_000, committed=7_000, head={"age": 250}, samples=grows)
    drains = steady(high=9_000, committed=7_000, rate_in=2, rate_out=6)
    world.group("drains").queue("drains", high=9_000, committed=7_000, head={"age": 400}, samples=drains)
    stands = [(600, 60, 40), (300, 90, 40)]
    world.group("stalled", clients=3).queue("stalled", **behind, head={"age": 450}, samples=stands)
    world.group("stopped", clients=0).queue("stopped", **behind, head={"age": 5})
    world.group("selects", clients=0).queue("selects", **behind, head={"age": 5, "filter": "a || b"})
    world.group("never", clients=0, seen=False).queue("never", high=7, committed=None)
    world.group("partly", clients=0).queue("partly", 0, **behind, head={"age": 5})
    world.queue("partly", 1, high=7, committed=None)
    world.group("rewound").queue("rewound", **behind, head={"age": 30}, samples=[(60, 95, 95)])
    world.group("paused", enabled=False).queue("paused", **behind, head={"age": 5})
    world.group("hot").queue("hot", 0, high=5_000, committed=1_000, head={"age": 60})
    world.queue("hot", 1, high=5_000, committed=4_900, head={"age": 1}).queue("hot", 2, head={})
    lose = {"age": 5 * HOUR, "left": 2 * HOUR}
    world.group("lost", clients=0).queue("lost", **behind, head=lose)
    slow = steady(high=70_000, committed=10_000, rate_in=0, rate_out=2)
    world.group("too-slow").queue("too-slow", high=70_000, committed=10_000, head=lose, samples=slow)
    world.group("overdue", clients=0).queue("overdue", **behind, head={"age": 4 * DAY, "left": -5})
    failing = steady(high=9_100, committed=9_090, rate_in=4, rate_out=4)
    again = steady(high=3_000, committed=3_000, rate_in=2, rate_out=2)
    world.group("failing").queue("failing", high=9_100, committed=9_090, head={"age": 2}, samples=failing)
    world.queue("failing", topic="%RETRY%failing", high=3_000, committed=3_000, head={}, samples=again)


@pytest.mark.parametrize(
    ("group", "verdict", "cause"),
    [
        ("late", "LAGGING", "60 messages wait, the oldest for 5 min; the rates are not known yet."),
        ("grows", "LAGGING", "2,000 messages wait, the oldest for 4 min; 8.0/s come in, 5.0/s are consumed."),
        ("drains", "LAGGING", "2,000 messages wait, the oldest for 6 min; 2.0/s come in, 6.0/s are consumed."),
        ("stopped", "STOPPED", "No consumer is connected, though there was one; 60 messages wait, the oldest for 5 s."),
        (
            "selects",
            "STOPPED",
            (
                "No consumer is connected, though there was one; at most 60 messages wait (the group's filter accepts only "
                "some), the oldest for 5 s."
            ),
        ),
        (
            "never",
            "NO_CONSUMER",
            "No consumer of the group was ever connected; how many messages wait is unknown, since nothing was ever committed.",
        ),
        (
            "rewound",
            "REWOUND",
            "The committed offset went back by 55 messages a short time ago; 60 messages wait, the oldest for 30 s.",
        ),
        ("paused", "PAUSED", "Consuming is switched off for the group; 60 messages wait, the oldest for 5 s."),
        (
            "lost",
            "RETENTION_RISK",
            (
                "The oldest message that waits is deleted in 2 h, and nothing of its queue is being consumed; "
                "60 messages wait, the oldest for 5 h."
            ),
        ),
        (
            "too-slow",
            "RETENTION_RISK",
            (
                "The oldest message that waits is deleted in 2 h, but to get through its queue takes 8 h; "
                "60,000 messages wait, the oldest for 5 h."
            ),
        ),
        (
            "overdue",
            "RETENTION_RISK",
            (
                "The oldest message that waits may be deleted at any moment, and nothing of its queue is being consumed; "
                "60 messages wait, the oldest for 4 days."
            ),
        ),
        (
            "failing",
            "RETRY_LOOP",
            (
                "1,200 messages came back for another try in the last 10 min, 2.0/s while 4.0/s are consumed for the first "
                "time: the consumers fail on them."
            ),
        ),
    ],
)
def test_what_is_wrong_in_one_word_and_one_sentence(report, group, verdict, cause):
    for row in (report.topic(group), report.queue(group)):
        assert (row["verdict"], row["cause"]) == (verdict, cause)
        assert row["next_step"].endswith(".")


def test_a_group_that_committed_in_some_queues_only_is_told_where_it_did_not(report):
    start = "No consumer is connected, though there was one; "
    whole, part = report.topic("partly"), report.queue("partly", 1)
    known = "60 messages wait where it has committed"
    missing = "how many more is unknown, since nothing was ever committed in 1 of 2 queues."
    assert (whole["verdict"], whole["lag_messages"]) == ("STOPPED", None)
    assert whole["cause"] == f"{start}{known}, and {missing}"
    assert part["cause"] == f"{start}how many messages wait is unknown, since nothing was ever committed."


def test_a_stalled_group_says_in_how_many_queues(report):
    start, end = (
        "3 consumers are connected, but nothing was committed",
        "for 10 min; 60 messages wait, the oldest for 7 min.",
    )
    assert report.queue("stalled")["cause"] == f"{start} {end}"
    assert report.topic("stalled")["cause"] == f"{start} in 1 of 1 queue {end}"
    assert {row["verdict"] for row in (report.queue("stalled"), report.topic("stalled"))} == {"STALLED"}


def test_a_hot_queue_is_hot_and_its_neighbours_are_not(report):
    for row in (report.topic("hot"), report.queue("hot", 0)):
        assert row["verdict"] == "HOT_QUEUE"
        assert row["cause"] == "Queue 0 of b0 holds 97 % of the 4,100 messages that wait in 3 queues."
    assert [report.queue("hot", queue_id)["verdict"] for queue_id in (1, 2)] == ["OK", "OK"]
    assert [report.queue("hot", queue_id)["skew"] for queue_id in (0, 1, 2)] == pytest.approx(
        [2.927, 0.073, 0.0], abs=1e-3
    )
    assert report.topic("hot")["skew"] == report.queue("hot", 0)["skew"]


def test_a_retry_topic_that_fills_is_a_loop_even_when_it_is_empty(report):
    row = report.topic("failing", "%RETRY%failing")
    assert (row["verdict"], row["lag_messages"]) == ("RETRY_LOOP", 0)


def test_what_to_do_about_lag_depends_on_where_it_goes(report):
    assert report.topic("drains")["next_step"] == "Wait: at this pace it is over in 8 min."
    assert "with 1 queue a further consumer would stand idle" in report.topic("grows")["next_step"]
    assert "with 1 queue a further consumer would stand idle" in report.topic("late")["next_step"]


def severity(world):
    """Several claims at once: the worst is the verdict, the rest are told."""
    behind = {"high": 100, "committed": 40}
    back = [(60, 95, 95)]
    world.group("stopped-and-late", clients=0).queue("stopped-and-late", **behind, head={"age": HOUR}, samples=back)
    lose = {"age": 5 * HOUR, "left": 2 * HOUR}
    world.group("all-at-once", clients=0, enabled=False).queue("all-at-once", **behind, head=lose, samples=back)
    # Half an hour is left of an hour's retention: soon, but not late.
    world.group("short", clients=0).queue("short", **behind, head={"age": 1_000, "left": 2_600})
    # One queue of two stands still.
    world.group("half").queue("half", 0, **behind, head={"age": 400}, samples=[(600, 60, 40), (300, 90, 40)])
    world.queue("half", 1, head={}, samples=QUIET)
    # One of two brokers has no consumer.
    world.group("one-broker").group("one-broker", broker="b1", clients=0)
    world.queue("one-broker", head={}).queue("one-broker", broker="b1", **behind, head={"age": 5})
    # Over HTTP one reads and commits without being connected. When that ends, it has stopped.
    ends = {"clients": 0, "seen": False}
    world.group("http", **ends).queue("http", **behind, head={"age": 5}, samples=[(60, 90, 10), (20, 95, 40)])
    world.queue("http", 1, **behind, head={"age": 5})
    world.group("http-ended", **ends).queue(
        "http-ended", **behind, head={"age": 5}, samples=[(60, 90, 10), (31, 95, 40)]
    )
    world.group("just-left", clients=0).queue(
        "just-left", **behind, head={"age": 5}, samples=[(60, 90, 10), (20, 95, 40)]
    )
    # A person created the group and set its first offset.
    world.group("prepared", **ends).queue("prepared", committed=0, head={"age": 5})
    world.group("prepared-unseen", clients=0, seen=None).queue("prepared-unseen", committed=0, head={"age": 5})
    # A step back that a consumer makes who takes over a queue; and one that has been made good.
    world.group("take-over").queue("take-over", **behind, head={"age": 5}, samples=[(60, 95, 50)])
    world.group("made-good").queue("made-good", committed=97, head={"age": 5}, samples=[(90, 95, 95), (60, 95, 40)])


@pytest.mark.parametrize(
    ("group", "verdict", "also"),
    [
        ("stopped-and-late", "REWOUND", ["STOPPED", "LAGGING"]),
        ("all-at-once", "RETENTION_RISK", ["PAUSED", "REWOUND", "STOPPED", "LAGGING"]),
        ("short", "STOPPED", ["LAGGING"]),
        ("half", "STALLED", ["LAGGING"]),
        ("one-broker", "STOPPED", None),
        ("http", "OK", None),
        ("http-ended", "STOPPED", None),
        ("just-left", "STOPPED", None),
        ("prepared", "NO_CONSUMER", None),
        ("prepared-unseen", "STOPPED", None),
        ("take-over", "OK", None),
        ("made-good", "OK", None),
    ],
)
def test_the_worst_claim_is_the_verdict_and_the_rest_are_told(report, group, verdict, also):
    row = report.topic(group)
    assert (row["verdict"], row["evidence"].get("also")) == (verdict, also)


@pytest.fixture(scope="module")
def report(spark):
    world = World()
    for add in (caught_up, broken, severity):
        add(world)
    return world.report(spark)


def test_the_columns_and_both_levels(report):
    assert tuple(report.columns) == LAG_REPORT_COLUMNS
    queues = [row for row in report.rows if row["level"] == "queue"]
    topics = [row for row in report.rows if row["level"] == "topic"]
    assert len(queues) + len(topics) == len(report.rows)
    assert {(row["group"], row["topic"]) for row in queues} == {(row["group"], row["topic"]) for row in topics}
    assert all(row["broker"] is None and row["queue_id"] is None for row in topics)
    assert all(row[name] for row in report.rows for name in ("verdict", "cause"))
    assert all((row["next_step"] is None) == (row["verdict"] == "OK") for row in report.rows)
