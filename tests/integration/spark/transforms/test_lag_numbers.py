"""Every number of the lag report, and every null with its reason, on hand-built frames: one Spark job, a group a case."""

from datetime import datetime, timedelta

import pytest

from spark.transforms.lag import lag_report
from spark.transforms.lagsettings import LagSettings
from tests.integration.spark.transforms.lagworld import AS_OF, DAY, HOUR, World, ago, steady

RATES = ("in_rate", "out_rate", "drain_eta_s", "drain_eta_low_s", "drain_eta_high_s")
STEP = 240 / 24**0.5
"""The standard deviation of a place after steps of up to 240."""
K10 = 1.7 * (1 + (1.7**2 + 1) / 4 / 9)
"""The width of an interval from ten values, in standard deviations."""
NUMBERS = ("lag_messages", "lag_seconds", "oldest_unconsumed_at", "retention_left_s", "skew")


def some(row, names):
    return tuple(row[name] for name in names)


def flow(world):
    even = steady(high=10_000, committed=4_000, rate_in=2, rate_out=6)
    world.group("even").queue("even", high=10_000, committed=4_000, head={"age": 60}, samples=even)
    # Out: 1, 2, 3, 4, 5 a second in the five pieces of 2 min; in: 1/s.
    out = [(600, 0, 0), (480, 120, 120), (360, 240, 360), (240, 360, 720), (120, 480, 1_200)]
    uneven = [(at, high + 2_000, committed) for at, high, committed in out]
    world.group("uneven").queue("uneven", high=2_600, committed=1_800, head={"age": 60}, samples=uneven)
    none = [(at, 0, None) for at in range(600, 0, -60)]
    world.group("sparse").queue("sparse", high=10_000, committed=4_000, head={"age": 60}, samples=even)
    world.queue("sparse", 1, high=0, committed=None, head={}, samples=none)
    # A queue that stands still on another broker is sampled every few minutes only.
    world.group("rests").queue("rests", high=10_000, committed=4_000, head={"age": 60}, samples=even)
    rests = [(600, 500, 500), (360, 500, 500), (120, 500, 500)]
    world.queue("rests", broker="b1", high=500, committed=500, head={}, samples=rests)
    late = [(600, 1_000, 0), (480, 1_000, 120)]
    world.group("stops").queue("stops", high=1_000, committed=120, head={"age": 60}, samples=late)
    world.group("one").queue("one", high=100, committed=40, head={"age": 60})
    world.group("two").queue("two", high=100, committed=40, head={"age": 60}, samples=[(100, 50, 20)])
    world.group("fresh").queue("fresh", high=100, committed=40, head={"age": 60}, samples=[(5, 50, 20)])
    world.group("old").queue("old", high=100, committed=40, head={"age": 60}, samples=[(601, 50, 20), (-5, 200, 90)])
    rewind = [(400, 100, 100), (200, 140, 120), (100, 150, 10)]
    world.group("rewind").queue("rewind", high=160, committed=30, head={"age": 60}, samples=rewind)
    anew = [(400, 9_000, 9_000, 500), (300, 9_100, 9_100, 500), (100, 10, 5)]
    world.group("anew").queue("anew", high=30, committed=15, head={"age": 60}, samples=anew)
    first = [(200, 100, None), (100, 120, 10)]
    world.group("first").queue("first", high=140, committed=30, head={"age": 60}, samples=first)
    # 20 messages a second in, as many out: the offsets of two readings differ by what was under way.
    noise = [(at, 20 * (600 - at) + at % 7, 20 * (600 - at)) for at in range(600, 0, -15)]
    world.group("noise").queue("noise", high=12_400, committed=12_000, head={"age": 60}, samples=noise)
    # In ten minutes the lag shrinks by less than one message; or by one, which takes months.
    stood = steady(high=10_000, committed=4_000, rate_in=2, rate_out=2)
    world.group("stands").queue("stands", high=10_000, committed=4_000, head={"age": 60}, samples=stood)
    slow = steady(high=10_000_000, committed=1_000, rate_in=0, rate_out=0.1)
    world.group("slowly").queue("slowly", high=10_000_000, committed=1_000, head={"age": 60}, samples=slow)
    world.group("gone", clients=0).queue("gone", high=10_000, committed=4_000, head={"age": 60}, samples=even)


@pytest.mark.parametrize(
    ("group", "rates"),
    [
        # 4 a second, and it may be anywhere within a step of 240.
        ("even", (2.0, 6.0, 1_500.0, (6_000 - K10 * STEP) / 4, (6_000 + K10 * STEP) / 4)),
        # A queue without a message was never committed: nothing was consumed there, which is known.
        ("sparse", (2.0, 6.0, 1_500.0, (6_000 - K10 * STEP) / 4, (6_000 + K10 * STEP) / 4)),
        # Net 0, 1, 2, 3, 4 a second, from five intervals of 120 s: D is 120 * (2.5 + 2 * 1) * 5 / 2, Q is 480 * 480 / 24, k is 2.113. The
        # rate lasts so long that it may be 0 just as well.
        ("uneven", (1.0, 3.0, 400.0, 62.1665906, None)),
        # In 2 min of 10 at 1/s, then nothing: it may never end. Two intervals are two halves, at 0.4/s and 0: D is 300 * 0.08 * 2, k is 3.353.
        ("stops", (0.0, 0.2, 4_400.0, 559.3173022, None)),
        ("one", (None, None, None, None, None)),
        # One interval gives a rate and every piece of it the same.
        ("two", (0.5, 0.2, None, None, None)),
        # The last sample is so fresh that the report's own reading says nothing of a rate.
        ("fresh", (None, None, None, None, None)),
        # The last sample before the window says how things were at its beginning.
        ("old", (50 / 601, 20 / 601, None, None, None)),
        # The interval with the rewind counts for neither: 40 + 10 in 300 s came in, 20 + 20 were consumed.
        # When 130 messages are gone says what came behind it, 10 in and 20 out in 100 s.
        ("rewind", (50 / 300, 40 / 300, 1_300.0, None, None)),
        ("anew", (120 / 200, 110 / 200, None, None, None)),
        # Without an earlier commit, the number of consumed messages is unknown.
        ("first", (0.2, 0.2, None, None, None)),
        # No client is connected that could continue at this rate.
        ("gone", (2.0, 6.0, None, None, None)),
    ],
)
def test_rates_and_when_it_is_over(report, group, rates):
    for row in (report.topic(group), report.queue(group)):
        assert some(row, RATES) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("noise", "the lag does not shrink at the present rates"),
        ("stands", "the lag does not shrink at the present rates"),
        ("slowly", "at the present rates it takes more than 30 days"),
        ("two", "the lag does not shrink at the present rates"),
        ("one", "the rates are not known yet"),
        ("gone", "nothing is consumed from at least one queue"),
    ],
)
def test_without_a_net_drain_there_is_no_forecast_and_no_end_of_its_interval(report, group, reason):
    for row in (report.topic(group), report.queue(group)):
        assert some(row, RATES[2:]) == (None, None, None)
        assert row["evidence"]["drain_unknown"] == reason
    assert "drain_unknown" not in report.topic("even")["evidence"]


def test_what_stands_still_elsewhere_makes_no_forecast_less_certain(report):
    assert some(report.topic("rests"), RATES) == pytest.approx(some(report.topic("even"), RATES))


def test_what_happened_to_offsets_is_in_the_evidence(report):
    rewind = report.queue("rewind")
    assert (rewind["verdict"], rewind["evidence"]["went_back_messages"]) == ("REWOUND", 110)
    assert rewind["evidence"]["went_back_from"] == 120
    anew = report.queue("anew")["evidence"]
    assert (anew["recreated_queues"], "went_back_messages" in anew) == (1, False)
    assert report.queue("uneven")["evidence"]["net_rates"] == pytest.approx([0, 1, 2, 3, 4])
    assert report.queue("one")["evidence"]["readings"] == 1


def ages(world):
    behind = {"high": 100, "committed": 40}
    world.group("plain").queue("plain", **behind, head={"age": 90.25, "left": 2 * DAY, "offset": 42})
    world.group("earliest").queue("earliest", **behind, head={"age": 90, "left": 3 * DAY, "earliest": True})
    world.group("overdue").queue("overdue", **behind, head={"age": 90, "left": -60})
    world.group("forever").queue("forever", **behind, head={"age": 90, "left": None})
    # The broker's clock is two hours ahead: by it the message is 90 s old, and has 3 days less 2 hours.
    world.group("ahead").queue("ahead", **behind, head={"age": -2 * HOUR + 90, "clock": 2 * HOUR, "left": 3 * DAY})
    world.group("behind").queue("behind", **behind, head={"age": 2 * HOUR + 90, "clock": -2 * HOUR})
    # Stored while the report was made: no skew, and no negative age.
    world.group("new").queue("new", **behind, head={"age": -3, "clock": 4})
    world.group("newer").queue("newer", **behind, head={"age": -3, "clock": 2})
    world.group("no-clock").queue("no-clock", **behind, head={"age": -3, "clock": None})
    world.group("trimmed").queue("trimmed", low=70, **behind, head={"age": 90}, error="30 messages were deleted")


@pytest.mark.parametrize(
    ("group", "numbers"),
    [
        ("plain", (60, 90.25, ago(90.25), 2 * DAY, 1.0)),
        ("earliest", (60, 90.0, ago(90), 3 * DAY, 1.0)),
        ("overdue", (60, 90.0, ago(90), 0.0, 1.0)),
        ("forever", (60, 90.0, ago(90), None, 1.0)),
        ("ahead", (60, 90.0, ago(90 - 2 * HOUR), 3 * DAY - 2 * HOUR, 1.0)),
        ("behind", (60, 90.0, ago(90 + 2 * HOUR), 3 * DAY + 2 * HOUR, 1.0)),
        ("new", (60, 1.0, ago(-3), 3 * DAY - 4, 1.0)),
        ("newer", (60, 0.0, ago(-3), 3 * DAY - 2, 1.0)),
        ("no-clock", (60, None, None, None, 1.0)),
        ("trimmed", (30, 90.0, ago(90), 3 * DAY, 1.0)),
    ],
)
def test_how_many_how_old_and_for_how_long(report, group, numbers):
    for row in (report.topic(group), report.queue(group)):
        assert some(row, NUMBERS) == numbers


def test_the_evidence_says_whose_clock_and_which_bound(report):
    assert report.queue("ahead")["evidence"]["clock"] == "broker"
    assert report.queue("ahead")["evidence"]["broker_now"] == "2026-11-21T11:30:00.000Z"
    assert "clock" not in report.queue("plain")["evidence"]
    assert report.topic("earliest")["evidence"]["retention_is_lower_bound"] is True
    assert "retention_is_lower_bound" not in report.topic("plain")["evidence"]
    assert report.queue("plain")["evidence"]["first_offset"] == 42
    assert report.topic("trimmed")["evidence"]["deleted_unconsumed"] == 30
    assert report.queue("plain")["as_of"] == AS_OF


def unknowns(world):
    behind = {"high": 100, "committed": 40}
    nothing = {"low": None, "high": None, "committed": None}
    world.group("broken").group("broken", broker="b1", clients=None, enabled=None, error="broker b1: no answer")
    world.queue("broken", **behind, head={"age": 90})
    world.queue("broken", broker="b1", **nothing, error="broker b1: no answer", head={"error": "broker b1: no answer"})
    world.group("silent").queue("silent", **nothing)
    # It was sampled until a minute ago.
    flow = steady(high=10_000, committed=4_000, rate_in=1, rate_out=2)
    for broker in ("b0", "b1", "b2"):
        world.group("went", broker=broker)
    world.queue("went", high=10_000, committed=4_000, head={"age": 9}, samples=flow)
    for broker in ("b1", "b2"):
        why = {"error": f"broker {broker}: no answer", "head": {"error": f"broker {broker}: no answer"}}
        world.queue("went", broker=broker, **nothing, **why, samples=flow)
    world.group("six")
    for queue_id in range(7):
        world.queue("six", queue_id, **nothing, error=f"reason {queue_id}")
    world.group("uncommitted").queue("uncommitted", committed=None, head={"error": "never committed"})
    world.group("beyond").queue("beyond", high=10, committed=1_000, error="beyond", head={"error": "beyond"})
    world.group("headless").queue("headless", **behind, head={"error": "broker b0 does not know request 900002"})
    world.group("unasked").queue("unasked", **behind)
    world.group("unreadable").queue("unreadable", **behind, head={"age": None})
    late = {"age": None, "clock": 2 * HOUR}
    world.group("unreadable-skewed").queue("unreadable-skewed", **behind, head=late)
    world.group("no-start").queue("no-start", low=None, **behind, head={"age": 5})
    world.group("unseen", clients=0, seen=None).queue("unseen", committed=None)
    world.group("forgotten", clients=0, seen=True).queue("forgotten", committed=None)
    world.group("who", clients=None, error="broker b0: refused").queue("who", **behind, head={"age": 5})
    world.queue("no-group-row", **behind, head={"age": 5})
    moves = steady(high=100, committed=40, rate_in=0, rate_out=0.05)
    world.group("who-moves", clients=None).queue("who-moves", **behind, head={"age": 5}, samples=moves)


@pytest.mark.parametrize(
    ("group", "lag", "seconds", "reason"),
    [
        ("silent", None, None, "the broker gave no offsets"),
        ("uncommitted", None, None, "the group has never committed an offset here"),
        ("beyond", None, None, "the committed offset 1000 is beyond the end of the queue, 10"),
        ("headless", 60, None, "broker b0 does not know request 900002"),
        ("unasked", 60, None, "the first unconsumed message was not looked up"),
        ("unreadable", 60, None, "the first message can't be read"),
        ("unreadable-skewed", 60, None, "the first message can't be read"),
        ("no-start", None, None, "the broker gave no offsets"),
        ("no-clock", 60, None, "the first message was stored after the time of this report"),
    ],
)
def test_what_is_not_known_is_null_with_its_reason(report, group, lag, seconds, reason):
    for row in (report.topic(group), report.queue(group)):
        assert (row["verdict"], row["lag_messages"], row["lag_seconds"]) == ("UNKNOWN", lag, seconds)
        assert row["evidence"]["unknown"].startswith(reason)
        assert reason in row["cause"]
        assert some(row, ("oldest_unconsumed_at", "drain_eta_s", "retention_left_s")) == (None, None, None)


def test_a_topic_is_unknown_where_a_queue_is_and_says_what_is_known(report):
    row = report.topic("broken")
    assert (row["verdict"], *some(row, NUMBERS)) == ("UNKNOWN", None, None, None, None, None)
    assert row["cause"] == "1 of 2 queues can't be judged: broker b1: no answer."
    known = {name: row["evidence"][name] for name in ("known_lag_messages", "known_lag_seconds", "unknown_queues")}
    assert known == {"known_lag_messages": 60, "known_lag_seconds": 90.0, "unknown_queues": 1}
    assert row["clients"] == 2
    assert (report.queue("broken")["verdict"], report.queue("broken")["lag_messages"]) == ("OK", 60)
    dark = report.queue("broken", broker="b1")
    assert (dark["verdict"], dark["clients"], dark["cause"]) == ("UNKNOWN", None, "broker b1: no answer.")


def test_a_silent_broker_has_no_rates(report):
    for row in (report.topic("went"), report.queue("went", broker="b1")):
        assert some(row, RATES) == (None,) * 5
        assert "net_rates" not in row["evidence"]
    assert "commits_stood_s" not in report.queue("went", broker="b1")["evidence"]
    assert some(report.queue("went"), RATES[:2]) == (1.0, 2.0)


def test_all_reasons_of_unknown_queues_are_named(report):
    both = "broker b1: no answer; broker b2: no answer"
    assert report.topic("went")["evidence"]["unknown"] == both
    assert report.topic("went")["cause"] == f"2 of 3 queues can't be judged: {both}."
    six = report.topic("six")["evidence"]["unknown"]
    assert six == "reason 0; reason 1; reason 2; reason 3; reason 4; and 2 more reasons"


def test_without_any_commit_it_matters_who_is_and_was_there(report):
    unseen = report.topic("unseen")
    assert (unseen["verdict"], unseen["lag_messages"], unseen["clients"]) == ("UNKNOWN", None, 0)
    assert unseen["cause"].endswith("no consumer is connected, and it is unknown whether there ever was one.")
    forgotten = report.topic("forgotten")
    assert (forgotten["verdict"], forgotten["lag_messages"]) == ("STOPPED", None)
    assert forgotten["evidence"]["unknown"].startswith("the group has never committed")


def test_who_is_connected_may_be_unknown_if_commits_move(report):
    row = report.topic("who")
    assert (row["verdict"], row["clients"], row["lag_messages"]) == ("UNKNOWN", None, 60)
    assert row["cause"] == (
        "60 messages wait, the oldest for 5 s, and it is unknown whether a consumer is connected: broker b0: refused."
    )
    assert report.topic("no-group-row")["evidence"]["clients_unknown"] == "no broker said who is connected"
    assert report.topic("who-moves")["verdict"] == "OK"


def many(world):
    world.group("sum", clients=1).group("sum", broker="b1", clients=3)
    tags = {"a": 5, None: 5, "b": 4, "c": 3, "d": 2, "e": 1}
    half = steady(high=2_500, committed=2_300, rate_in=1, rate_out=2)
    world.queue("sum", 0, high=2_500, committed=2_300, head={"age": 30, "left": DAY, "tags": tags}, samples=half)
    even = steady(high=1_100, committed=1_100, rate_in=0.5, rate_out=0.5)
    world.queue("sum", 1, high=1_100, committed=1_100, head={"tags": {}}, samples=even)
    third = steady(high=1_500, committed=1_400, rate_in=1, rate_out=1)
    late = {"age": 50, "left": 2 * DAY, "tags": {"e": 9}}
    world.queue("sum", 0, broker="b1", high=1_500, committed=1_400, head=late, samples=third)


def test_a_topic_adds_up_its_queues(report):
    row = report.topic("sum")
    assert some(row, NUMBERS) == (300, 50.0, ago(50), DAY, 2.0)
    assert some(row, RATES) == pytest.approx((2.5, 3.5, 300.0, 300 - K10 * STEP / 4, 300 + K10 * STEP / 4))
    assert row["clients"] == 3
    assert row["top_tags"] == [
        {"tag": "e", "messages": 10},
        {"tag": None, "messages": 5},
        {"tag": "a", "messages": 5},
        {"tag": "b", "messages": 4},
        {"tag": "c", "messages": 3},
    ]
    assert row["evidence"]["tags_examined"] == 29
    assert row["evidence"]["hottest"] == {"broker": "b0", "queue_id": 0}
    assert report.queue("sum", 1)["top_tags"] == []
    assert report.queue("plain")["top_tags"] is None
    assert [report.queue("sum", 0)["clients"], report.queue("sum", 0, broker="b1")["clients"]] == [1, 3]


def by_themselves(world):
    """A topic's own samples of a queue that all groups have, and of a topic that none has."""
    world.topic("t", [(590, 0, None), (310, 9, None, 5), (20, 1_000_000, None)]).topic("unread", [(60, 1, None)])


def test_a_topics_own_samples_are_no_groups(report):
    assert None not in {row["group"] for row in report.rows}
    assert "unread" not in {row["topic"] for row in report.rows}
    assert report.topic("even")["evidence"]["readings"] == 11


def moments(world):
    """Broker b7 gave its numbers 8 s after the report was begun, b30 30 s after it; b0 at once."""
    world.read_after = {"b7": 8, "b30": 30}
    late = [(40, 1_000, 500), (25, 1_030, 560), (-5, 1_090, 620)]
    behind = {"high": 1_120, "committed": 650}
    world.group("read", broker="b30").queue("read", broker="b30", **behind, head={"age": -20}, samples=late)
    world.group("near").group("near", broker="b7")
    world.queue("near", **behind, head={"age": 60}).queue("near", broker="b7", **behind, head={"age": 5})
    world.group("apart").group("apart", broker="b30")
    world.queue("apart", high=100, committed=40, head={"age": 90})
    world.queue("apart", broker="b30", **behind, head={"age": 60}, samples=late)
    # 20 s after its answer the first message was 10 s old, whatever the look at others took; the clock is right.
    world.group("slow", broker="b30").queue("slow", broker="b30", **behind, head={"age": 30, "clock": 0})


def test_numbers_are_of_the_moment_at_which_the_broker_gave_them(report):
    row = report.queue("read", broker="b30")
    assert (row["as_of"], report.topic("read")["as_of"]) == (ago(-30), ago(-30))
    # Stored 20 s after the report was begun, read 10 s later.
    assert (row["lag_messages"], row["lag_seconds"]) == (470, 10.0)
    # 120 messages came within 70 s, 150 were consumed: the sample that was taken meanwhile counts, too.
    assert some(row, ("in_rate", "out_rate")) == pytest.approx((120 / 70, 150 / 70))
    assert (row["evidence"]["readings"], row["evidence"]["covered_s"]) == (4, 70.0)
    slow = report.queue("slow", broker="b30")
    assert (slow["lag_seconds"], "clock" in slow["evidence"]) == (60.0, False)


def test_a_topic_is_of_the_moment_of_its_last_broker(report):
    row = report.topic("near")
    assert (row["as_of"], row["lag_messages"], row["lag_seconds"]) == (ago(-8), 940, 60.0)
    assert report.queue("near")["as_of"] == AS_OF


def test_a_broker_that_answers_late_is_named_and_not_added_up(report):
    row = report.topic("apart")
    assert (row["as_of"], row["verdict"]) == (AS_OF, "UNKNOWN")
    assert some(row, (*NUMBERS, "in_rate", "out_rate")) == (None,) * 7
    assert row["cause"].endswith(
        "broker b30 answered 30 s after the first one, so its numbers are not added to the others'."
    )
    evidence = row["evidence"]
    assert (evidence["late_brokers"], evidence["late_s"], evidence["known_lag_messages"]) == (["b30"], 30.0, 60)
    queue = report.queue("apart", broker="b30")
    assert (queue["as_of"], queue["lag_messages"], queue["evidence"]["late_s"]) == (ago(-30), 470, 30.0)
    assert queue["verdict"] == "OK"


def beginnings(world):
    # Nothing moved from 700 s ago to 475 s ago: in the window are 600 s, of which the first 125 were quiet.
    quiet = [(700, 1_000, 1_000), (460, 1_240, 1_000)]
    world.group("quiet").queue("quiet", high=1_240, committed=1_000, head={"age": 60}, samples=quiet, looked={460: 475})
    world.group("unlooked").queue("unlooked", high=1_240, committed=1_000, head={"age": 60}, samples=quiet)
    gone = {"high": 500, "committed": 100, "head": {"age": 900}}
    for name, rewind in (("before-window", (600.96, 500, 100)), ("at-window", (599.04, 500, 100))):
        world.group(name, clients=0).queue(name, **gone, samples=[(620, 500, 500), rewind])
    long_ago = [(1_500, 500, 500), (1_400, 500, 100), (1_160, 500, 100), (920, 500, 100), (680, 500, 100)]
    world.group("long-ago", clients=0).queue("long-ago", **gone, samples=long_ago)
    # 600 messages are consumed at once at the end of four quiet minutes.
    burst = [(600, 1_000, 0), (300, 1_000, 0), (60, 1_000, 600)]
    world.group("burst").queue("burst", high=1_000, committed=600, head={"age": 60}, samples=burst, looked={60: 75})
    # The same within the last twelve seconds, of which there is no sample yet.
    world.looked["b12"] = 12
    recent = {"high": 1_000, "committed": 600, "head": {"age": 60}, "samples": burst[:2]}
    world.group("last", broker="b12").queue("last", broker="b12", **recent)
    world.group("unseen-last").queue("unseen-last", **recent)


def test_a_window_begins_with_the_state_before_it(report):
    quiet, unlooked = report.queue("quiet"), report.queue("unlooked")
    assert (quiet["in_rate"], quiet["evidence"]["covered_s"]) == pytest.approx((240 / 600, 600.0))
    assert quiet["evidence"]["readings"] == 3
    # If the time is unknown, the messages came at some time within the interval.
    assert (unlooked["in_rate"], unlooked["evidence"]["covered_s"]) == pytest.approx((240 / 700, 700.0))


@pytest.mark.parametrize(
    ("group", "verdict"), [("before-window", "REWOUND"), ("at-window", "REWOUND"), ("long-ago", "STOPPED")]
)
def test_a_rewind_is_seen_between_two_reports(report, group, verdict):
    assert report.topic(group)["verdict"] == verdict


def test_what_went_at_once_is_not_spread_over_the_quiet_time_before(report):
    row = report.queue("burst")
    assert row["evidence"]["net_rates"] == pytest.approx([0, 0, 0, 0, 5])
    assert row["out_rate"] == pytest.approx(1.0)
    last = report.topic("last")
    assert last["evidence"]["net_rates"] == pytest.approx([0, 0, 0, 0, 5])
    assert last["out_rate"] == pytest.approx(1.0)
    # If the broker was not looked at meanwhile, the time is unknown.
    assert report.topic("unseen-last")["evidence"]["net_rates"] == pytest.approx([0, 0, 1, 2, 2])


def moves(world):
    # 90 were consumed, then retention took the rest away, and the consumer went on at the new beginning.
    trim = [(300, 1_000_000, 90), (240, 1_000_000, 1_000_000, 1_000_000)]
    end = {"low": 1_000_000, "high": 1_000_060, "committed": 1_000_060, "head": {}}
    world.group("trim").queue("trim", **end, samples=trim)
    # A topic was filled and trimmed; the group never committed.
    filled = [(300, 0, None), (150, 78_600, None, 78_600)]
    world.group("no-commit", clients=0, seen=False)
    world.queue("no-commit", low=78_600, high=78_600, committed=None, head={}, samples=filled)
    # A reset to the end, of a group that never connected.
    reset = [(600, 78_600, 0), (300, 78_600, 0), (60, 78_600, 78_600)]
    world.group("reset", clients=0, seen=False).queue("reset", high=78_600, committed=78_600, head={}, samples=reset)
    # The consumers were stopped for a reset, and are back; nobody was connected when it was seen.
    world.group("stopped-reset").queue(
        "stopped-reset", high=78_600, committed=78_600, head={}, samples=reset, served={60: False}
    )
    # The client that consumed all of it at once has disconnected since.
    world.group("left", clients=0).queue("left", high=6_000, committed=6_000, head={}, served={60: True},
                                         samples=[(600, 6_000, 0), (60, 6_000, 6_000)])  # fmt: skip
    # A client that consumes over HTTP is not connected, and commits more than once.
    steps = [(600, 9_000, 0), (400, 9_000, 3_000), (200, 9_000, 6_000)]
    world.group("http", clients=0, seen=False).queue("http", high=9_000, committed=9_000, head={}, samples=steps)
    world.group("http-beside").queue(
        "http-beside", high=9_000, committed=9_000, head={}, samples=steps, served={400: False, 200: False}
    )
    skip = [(600, 3_000_100, 0), (300, 3_000_100, 100), (60, 3_000_100, 3_000_100)]
    world.group("skip").queue("skip", high=3_000_100, committed=3_000_100, head={}, samples=skip, looked={60: 75})


@pytest.mark.parametrize(
    ("group", "out_rate", "moved"),
    [
        ("trim", 60 / 300, 999_910),
        ("no-commit", 0.0, 78_600),
        ("reset", 0.0, 78_600),
        ("http", 15.0, None),
        ("http-beside", 15.0, None),
        ("stopped-reset", 0.0, 78_600),
        ("left", 10.0, None),
        ("skip", 100 / 600, 3_000_000),
    ],
)
def test_what_moved_was_not_consumed(report, group, out_rate, moved):
    for row in (report.queue(group), report.topic(group)):
        assert row["out_rate"] == pytest.approx(out_rate)
        assert row["evidence"].get("moved_messages") == moved


def restarts(world):
    """Groups that were set forward, or whose messages were trimmed, three minutes ago, and go on at another speed."""
    after = [(180 - 15 * step, 2_000_000, 1_500_000 + 150 * step) for step in range(12)]
    end = {"high": 2_000_000, "committed": 1_501_800, "head": {"age": 60}}
    slow = [(at, 2_000_000, 100 + round((600 - at) / 5)) for at in range(600, 180, -15)]
    world.group("skips").queue("skips", **end, samples=[*slow, *after])
    trimmed = [(at, high, committed, 1_500_000) for at, high, committed in after]
    world.group("trims").queue("trims", low=1_500_000, **end, samples=[*slow, *trimmed])
    # Five queues that were not touched, and one that was.
    world.group("sixth").queue("sixth", 0, **end, samples=[*slow, *after])
    steady = [(15 * step, 2_000_000, 1_990_000 - 75 * step) for step in range(40, 0, -1)]
    rest = {"high": 2_000_000, "committed": 1_990_000, "head": {"age": 60}}
    for queue_id in range(1, 6):
        world.queue("sixth", queue_id, **rest, samples=steady)
    # A rebalance makes a consumer repeat a few messages.
    repeats = [(at, 2_000_000, 1_990_000 - 5 * at + (20 if at > 300 else 0)) for at in range(600, 0, -15)]
    world.group("repeats").queue("repeats", **rest, samples=repeats)


@pytest.mark.parametrize(
    ("group", "eta_s", "moved_s"),
    [
        ("skips", 49_820.0, 180.0),
        ("trims", 49_820.0, 180.0),
        ("sixth", 548_200 / 35, 180.0),
        ("repeats", 2_000.0, None),
    ],
)
def test_a_forecast_begins_behind_the_last_move(report, group, eta_s, moved_s):
    row = report.topic(group)
    assert row["drain_eta_s"] == pytest.approx(eta_s, rel=0.01)
    assert (row["drain_eta_low_s"], row["drain_eta_high_s"]) == pytest.approx((eta_s, eta_s), rel=0.03)
    assert row["evidence"].get("moved_s") == moved_s


def resets(world):
    """The broker reported resets of groups whose consumers go on."""
    high = 100_000
    flow = steady(high=high, committed=50_000, rate_in=0, rate_out=2, every=15, count=40)
    end = {"high": high, "committed": 50_000, "head": {"age": 60}}
    # Forward by 500, which is less than any jump; and backward by 20 while 30 were consumed.
    ahead = [(at, top, done - (500 if at > 300 else 0)) for at, top, done in flow]
    world.group("set-ahead").queue("set-ahead", **end, samples=ahead, resets={300: 500})
    back = [(at, top, done + (20 if at > 300 else 0)) for at, top, done in flow]
    world.group("set-back").queue("set-back", **end, samples=back, resets={300: -20})
    far_back = [(at, top, done + (900 if at > 300 else 0)) for at, top, done in flow]
    world.group("far-back").queue("far-back", **end, samples=far_back, resets={300: -900})
    # After the last sample; the report's own look shows it first.
    last = [(at, top, done - 700) for at, top, done in flow]
    world.group("set-last").queue("set-last", **end, samples=last, resets={0: 700})
    # 700 s ago, so that the whole window is later.
    early = [(700, high, 0), *flow]
    world.group("set-early").queue("set-early", **end, samples=early, resets={700: 40})


@pytest.mark.parametrize(
    ("group", "moved", "back", "moved_s"),
    [
        ("set-ahead", 500, None, 300.0),
        ("set-back", None, 20, 300.0),
        ("far-back", None, 900, 300.0),
        ("set-last", 700, None, 0.0),
    ],
)
def test_a_reported_reset_never_counts_as_consumed(report, group, moved, back, moved_s):
    for row in (report.queue(group), report.topic(group)):
        assert some(row, RATES[:2]) == pytest.approx((0.0, 2.0))
        evidence = row["evidence"]
        assert (evidence.get("moved_messages"), evidence.get("went_back_messages")) == (moved, back)
        assert evidence["moved_s"] == moved_s
    assert report.topic("set-early")["out_rate"] == pytest.approx(2.0, rel=0.01)


def behind_a_late_broker(world):
    """A queue of a broker that answered 8 s later was moved; for the other broker that is in the future."""
    world.group("later").group("later", broker="b7")
    flow = steady(high=10_000, committed=4_000, rate_in=1, rate_out=2)
    world.queue("later", high=10_000, committed=4_000, head={"age": 5}, samples=flow)
    moved = {"high": 10_000, "committed": 9_000, "head": {"age": 5}, "samples": flow, "resets": {0: 5_000}}
    world.queue("later", broker="b7", **moved)


def test_no_move_is_in_the_future(report):
    for row in (report.topic("later"), report.queue("later"), report.queue("later", broker="b7")):
        assert row["evidence"]["moved_s"] == 0.0


@pytest.fixture(scope="module")
def report(spark):
    world = World()
    for add in (
        flow,
        ages,
        unknowns,
        many,
        by_themselves,
        moments,
        beginnings,
        moves,
        restarts,
        resets,
        behind_a_late_broker,
    ):
        add(world)
    return world.report(spark)


def test_nothing_gives_an_empty_report(spark):
    assert World().report(spark).rows == []


def test_settings_are_thresholds(spark):
    world = World().group("late").queue("late", high=100, committed=40, head={"age": 20})
    assert world.report(spark, LagSettings(lagging_s=20.0)).topic("late")["verdict"] == "LAGGING"


def test_a_moment_without_zone_and_settings_that_can_not_be_meant_are_refused():
    with pytest.raises(ValueError, match="has no time zone"):
        lag_report(None, None, as_of=datetime(2026, 11, 21))  # noqa: DTZ001
    with pytest.raises(ValueError, match="stall_min_s: 700"):
        lag_report(None, None, as_of=AS_OF + timedelta(1), settings=LagSettings(stall_min_s=700))
