"""Objectives in the lag report, on hand-built frames: one Spark job, a group a case."""

from datetime import timedelta

import pytest

from tests.integration.spark.transforms.lagworld import AS_OF, World, steady

BEHIND = {"high": 100, "committed": 40}
FLOW = steady(high=100, committed=40, rate_in=1, rate_out=1)


@pytest.fixture(scope="module")
def report(spark):
    world = World()
    world.group("late").queue("late", **BEHIND, head={"age": 90.2}, samples=FLOW).objective("late", seconds=60)
    world.group("many").queue("many", **BEHIND, head={"age": 5}, samples=FLOW).objective("many", messages=59)
    both = steady(high=5_000, committed=0, rate_in=1, rate_out=1)
    world.group("both").queue("both", high=5_000, committed=0, head={"age": 0.7}, samples=both)
    world.objective("both", seconds=0.5, messages=1_000)
    # As far behind as is allowed, and no further.
    world.group("just").queue("just", **BEHIND, head={"age": 60}, samples=FLOW).objective(
        "just", seconds=61, messages=60
    )
    # Later than the report's own threshold, and that is what was agreed.
    world.group("slow").queue("slow", **BEHIND, head={"age": 900}, samples=FLOW).objective("slow", seconds=3_600)
    world.group("stopped", clients=0).queue("stopped", **BEHIND, head={"age": 90}).objective("stopped", seconds=60)
    # Two queues that together are over what each of them is below.
    world.group("sum").queue("sum", 0, **BEHIND, head={"age": 5}, samples=FLOW)
    world.queue("sum", 1, **BEHIND, head={"age": 5}, samples=FLOW).objective("sum", messages=100)
    # A part is unknown, and the rest is over already.
    world.group("part").queue("part", 0, **BEHIND, head={"age": 90}, samples=FLOW).objective("part", seconds=60)
    world.queue("part", 1, low=None, high=None, committed=None, error="broker b0: no answer")
    silent = {"low": None, "high": None, "committed": None, "error": "broker b0: no answer"}
    world.group("below").queue("below", 0, **BEHIND, head={"age": 50}, samples=FLOW).objective("below", seconds=60)
    world.queue("below", 1, **silent)
    world.group("ignored-part").queue("ignored-part", 0, **BEHIND, head={"age": 90}, samples=FLOW)
    world.queue("ignored-part", 1, **silent).objective("ignored-part", seconds=60, ignored=True)
    world.group("uncommitted").queue("uncommitted", 0, **BEHIND, head={"age": 90}, samples=FLOW)
    world.queue("uncommitted", 1, high=5, committed=None).objective("uncommitted", messages=50)
    # Behind the commit is only what the filter keeps out.
    world.group("filtered").queue("filtered", **BEHIND, head={"filter": "a"}).objective("filtered", messages=1)
    until = AS_OF + timedelta(hours=2)
    world.group("ignored", clients=0).queue("ignored", **BEHIND, head={"age": 90})
    world.objective("ignored", seconds=60, ignored=True, reason="moves to b1", until=until)
    world.group("calm").queue("calm", head={}).objective("calm", ignored=True)
    world.group("free").queue("free", **BEHIND, head={"age": 400})
    return world.report(spark)


@pytest.mark.parametrize(
    ("group", "missed"),
    [
        ("late", "91 s behind, 60 s allowed"),
        ("many", "60 messages behind, 59 allowed"),
        ("both", "1 s behind, 0.5 s allowed; 5,000 messages behind, 1,000 allowed"),
        ("sum", "120 messages behind, 100 allowed"),
    ],
)
def test_a_group_over_its_objective_says_by_how_much(report, group, missed):
    row = report.topic(group)
    assert row["verdict"] == "OVER_OBJECTIVE"
    assert row["cause"].endswith(f"/s are consumed. It is over its objective: {missed}.")
    assert row["next_step"].startswith("Shorten what one message takes first")
    assert row["evidence"]["objective"]


def test_seconds_are_allowed_to_each_queue_and_messages_to_the_topic(report):
    assert report.queue("late")["verdict"] == "OVER_OBJECTIVE"
    assert report.queue("sum")["verdict"] == "OK"


@pytest.mark.parametrize("group", ["just", "slow", "filtered"])
def test_who_keeps_the_objective_is_ok(report, group):
    row = report.topic(group)
    assert (row["verdict"], row["next_step"]) == ("OK", None)
    assert "objective:" not in row["cause"]


def test_a_worse_verdict_stays_and_names_the_objective(report):
    row = report.topic("stopped")
    assert row["verdict"] == "STOPPED"
    assert row["cause"].endswith(
        "60 messages wait, the oldest for 90 s. It is over its objective: 90 s behind, 60 s allowed."
    )
    assert row["evidence"]["also"] == ["OVER_OBJECTIVE", "LAGGING"]
    assert row["evidence"]["objective"] == {"max_lag_seconds": 60.0}


def test_what_is_known_of_a_part_may_be_over_already(report):
    row = report.topic("part")
    assert row["verdict"] == "OVER_OBJECTIVE"
    assert row["cause"] == (
        "1 of 2 queues can't be judged: broker b0: no answer. It is over its objective: 90 s behind, 60 s allowed."
    )
    assert row["next_step"] == "Solve the problem that the cause names, then run the report again."
    assert report.queue("part", 1)["verdict"] == "UNKNOWN"
    assert (report.topic("below")["verdict"], report.topic("uncommitted")["verdict"]) == ("UNKNOWN", "OVER_OBJECTIVE")
    ignored = report.topic("ignored-part")
    assert (ignored["verdict"], ignored["evidence"]["ignored"]["verdict"]) == ("IGNORED", "OVER_OBJECTIVE")


def test_an_ignored_group_says_so_and_what_it_would_be(report):
    row = report.topic("ignored")
    assert (row["verdict"], row["next_step"]) == ("IGNORED", None)
    assert row["cause"].startswith("Ignored until 2026-11-21 11:30 UTC (moves to b1), else STOPPED. No consumer")
    assert row["evidence"]["ignored"] == {
        "verdict": "STOPPED",
        "reason": "moves to b1",
        "until": "2026-11-21T11:30:00.000Z",
    }
    calm = report.topic("calm")
    assert (calm["verdict"], calm["cause"]) == (
        "IGNORED",
        "Ignored, else OK. Everything that is there has been consumed.",
    )


def test_where_nobody_has_said_anything_the_reports_own_thresholds_hold(report):
    row = report.topic("free")
    assert row["verdict"] == "LAGGING"
    assert {"objective", "ignored"} & row["evidence"].keys() == set()
