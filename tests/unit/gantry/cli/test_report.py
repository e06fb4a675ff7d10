"""`gantry report`: its requests to the gateway, its output while it waits, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantry.cli import reportwait
from tests.unit.gantry.cli.conftest import Answers, problem

Gantry = Callable[..., Any]

RUNS = "/v1/reports/lag_report/runs"
ROWS = "GET /v1/reports/lag_report/rows"
RUN = {
    "id": "r-1", "job": "lag_report", "window": None, "trigger": "manual", "status": "queued", "progress": None,
    "attempt": 0, "rows": None, "error": None, "created_at": "2026-11-22T09:30:00.000Z", "started_at": None,
    "finished_at": None, "duration_ms": None, "files": None,
}  # fmt: skip
RUNNING = {**RUN, "status": "running", "attempt": 1, "progress": {"percent": 40, "step": "reads offsets"}}
DONE = {
    **RUN, "status": "succeeded", "attempt": 1, "rows": 3, "duration_ms": 4_210,
    "files": {"html": "DIR/reports/lag_report/r-1.html", "parquet": None},
}  # fmt: skip
FAILED = {**RUN, "status": "failed", "attempt": 1, "error": "no Java:\ninstall Java 17"}


def row(group: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {
        "level": "topic", "group": group, "topic": "T", "broker": None, "queue_id": None, "as_of": "", "lag_messages": 0,
        "lag_seconds": 0.0, "oldest_unconsumed_at": None, "in_rate": 1.0, "out_rate": 1.0, "drain_eta_s": None,
        "drain_eta_low_s": None, "drain_eta_high_s": None, "retention_left_s": None, "skew": None, "top_tags": None,
        "clients": 1, "verdict": verdict, "cause": "because", "next_step": "do it", "evidence": {}, **more,
    }  # fmt: skip


# fmt: off
LAG = [
    row("fine", "OK"),
    row("slow", "LAGGING", lag_messages=1_234, lag_seconds=31.0, drain_eta_s=75.0, drain_eta_low_s=60.0, drain_eta_high_s=90.0,
        retention_left_s=7_200.0, behind_since="2026-11-22T09:29:29.000Z",
        owners=[{"client_id": "c1", "host": "10.0.0.1", "queues": 3}, {"client_id": "c2", "host": "::1", "queues": None}]),
    row("lost", "UNKNOWN", lag_messages=None, lag_seconds=None, in_rate=None, out_rate=None, clients=None),
    row("dead", "STOPPED", lag_messages=9, lag_seconds=3_600.0, out_rate=0.0, clients=0,
        evidence={"behind_at_latest": "2026-11-21T09:00:00+00:00"}, behind_since=None, owners=None),
    row("dead", "STOPPED", level="queue", broker="broker-a", queue_id=3, lag_messages=9, lag_seconds=3_600.0),
]
# fmt: on


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reportwait, "POLL_S", 0)
    monkeypatch.setattr(reportwait, "SECOND_LOOK_S", 0)


def in_turn(*given: Any) -> Callable[[httpx.Request], Any]:
    left = list(given)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def lag_rows(request: httpx.Request) -> Any:
    level = request.url.params.get("level")
    return {
        "run": "r-1",
        "as_of": "",
        "items": [item for item in LAG if level in (None, item["level"])],
        "next_cursor": None,
    }


def test_a_run_is_started_and_named(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"POST {RUNS}"] = httpx.Response(202, json=RUN)
    done = gantry("report", "run", "lag_report")
    assert done.exit_code == 0, done.output
    assert answers.body() == {}
    assert "r-1" in done.stdout
    assert done.stderr == ""
    named = gantry("report", "run", "lag_report", "--from", "2026-11-21T00:00:00Z", "--to", "2026-11-22T00:00:00Z")
    assert answers.body() == {"window": {"from": "2026-11-21T00:00:00Z", "to": "2026-11-22T00:00:00Z"}}
    assert "lag_report always measures the present" in named.stderr
    assert json.loads(gantry("report", "run", "lag_report", "--json").stdout) == RUN


def test_waiting_shows_progress_then_the_worst_first_and_the_page(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"POST {RUNS}"] = httpx.Response(202, json=RUN)
    answers.by_call[f"GET {RUNS}/r-1"] = in_turn(RUN, RUNNING, RUNNING, DONE)
    answers.by_call[ROWS] = lag_rows
    done = gantry("report", "run", "lag_report", "--wait")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == ["lag_report: queued", "lag_report: running 40 % reads offsets"]
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:5]] == ["dead", "slow", "lost", "fine"]
    assert lines[2].split() == [
        *("LAGGING", "slow", "T", "1,234", "31", "s", "2026-11-22", "09:29"),
        *("1", "min", "to", "1", "min", "30", "s", "2", "h"),
    ]  # fmt: skip
    assert "before 2026-11-21 09:00" in lines[1]
    # A row from an older gateway, which lacks this field.
    assert lines[3].split()[3:] == ["unknown"] * 5
    assert "  clients (queues): c1 at 10.0.0.1 (3), c2 at ::1 (queues unknown)" in lines
    assert "STOPPED dead on T: because" in lines
    assert lines[-1].split() == ["page", "DIR/reports/lag_report/r-1.html"]
    assert answers.asked[-1].url.params["run"] == "r-1"


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        # 20 messages a second in and out: the mean of the noise is no forecast.
        ({"drain_eta_s": 100_800.0, "drain_eta_low_s": 30_000.0}, "no end in sight"),
        ({"drain_eta_s": 100_800.0}, "unknown"),
        ({"in_rate": 1.0, "out_rate": 2.0}, "no end in sight"),
        ({"in_rate": 1.0, "out_rate": 2.0, "evidence": {"moved_s": 5.0}}, "unknown"),
        ({"out_rate": None}, "unknown"),
        ({}, "never"),
    ],
)
def test_a_drain_forecast_is_shown_with_its_interval_or_not_at_all(
    answers: Answers, gantry: Gantry, facts: dict[str, Any], shown: str
) -> None:
    rows = [row("late", "LAGGING", lag_messages=7, lag_seconds=31.0, retention_left_s=1.0, **facts)]
    answers.by_call[ROWS] = {"run": "r-1", "as_of": "", "items": rows, "next_cursor": None}
    line = gantry("report", "show", "lag_report").stdout.splitlines()[1]
    assert f"  {shown}  " in line
    assert "1 d 4 h" not in line


def test_json_is_the_rows_of_both_levels(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"POST {RUNS}"] = DONE
    answers.by_call[ROWS] = lag_rows
    assert json.loads(gantry("report", "run", "lag_report", "--wait", "--json").stdout) == LAG


def test_other_jobs_have_a_page_only(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["POST /v1/reports/backlog_profile/runs"] = {**DONE, "job": "backlog_profile"}
    done = gantry("report", "run", "backlog_profile", "--wait")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].split() == ["page", "DIR/reports/lag_report/r-1.html"]


def test_a_run_that_failed_ends_with_1_and_its_reason(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"POST {RUNS}"] = RUN
    answers.by_call[f"GET {RUNS}/r-1"] = FAILED
    done = gantry("report", "run", "lag_report", "--wait")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "gantry: run r-1 of lag_report: failed: no Java: install Java 17"


def test_a_run_that_is_tried_again_is_waited_for(answers: Answers, gantry: Gantry) -> None:
    again = {**FAILED, "status": "queued"}
    answers.by_call[f"POST {RUNS}"] = RUN
    answers.by_call[f"GET {RUNS}/r-1"] = in_turn(FAILED, again, again, DONE)
    answers.by_call[ROWS] = lag_rows
    done = gantry("report", "run", "lag_report", "--wait")
    assert done.exit_code == 0, done.stderr
    assert "lag_report: queued after attempt 1: no Java: install Java 17" in done.stderr


def test_waiting_ends_at_the_timeout(answers: Answers, gantry: Gantry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reportwait, "QUEUED_HINT_S", 0)
    moments = iter(range(1_000))
    monkeypatch.setattr(reportwait.time, "monotonic", lambda: next(moments))
    answers.by_call[f"POST {RUNS}"] = RUN
    answers.by_call[f"GET {RUNS}/r-1"] = RUN
    answers.by_call[f"GET {RUNS}"] = {"items": [RUN], "next_cursor": None}
    done = gantry("report", "run", "lag_report", "--wait", "--timeout", "30")
    assert done.exit_code == 1
    assert "no scheduler has started it yet" in done.stderr
    assert "run r-1 is still queued after 30 s" in done.stderr


def test_a_run_that_waits_for_another_names_it_and_its_start(
    answers: Answers, gantry: Gantry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUEUED_HINT_S", "BEHIND_AFTER_S", "BEHIND_EVERY_S"):
        monkeypatch.setattr(reportwait, name, 0)
    # While a scheduler is busy, the command asks for no other; once that run is over, the scheduler is late again.
    monkeypatch.setattr(reportwait, "QUEUED_HINT_S", 2.5)
    moments = iter(range(1_000))
    monkeypatch.setattr(reportwait.time, "monotonic", lambda: next(moments))
    other = {**RUNNING, "id": "r-0", "trigger": "schedule", "started_at": "2026-11-22T09:29:00.000Z"}
    ended = {**other, "status": "succeeded"}
    waiting = {**RUN, "id": "r-2"}
    answers.by_call[f"POST {RUNS}"] = RUN
    answers.by_call[f"GET {RUNS}"] = in_turn(
        *[{"items": [waiting, RUN, last], "next_cursor": None} for last in (other, other, ended)]
    )
    answers.by_call[f"GET {RUNS}/r-1"] = in_turn(RUN, RUN, RUN, RUN, RUNNING, DONE)
    answers.by_call[ROWS] = lag_rows
    done = gantry("report", "run", "lag_report", "--wait")
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    assert said[0] == "lag_report: queued behind run r-0, which has been running since 2026-11-22T09:29:00.000Z"
    assert said[1].startswith("lag_report: queued (no scheduler has started it yet")
    assert said[2:] == ["lag_report: running 40 % reads offsets"]


def test_jobs_and_runs_are_listed(answers: Answers, gantry: Gantry) -> None:
    jobs = [
        {"job": "lag_report", "schedule": "*/5 * * * *", "next_run_at": "2026-11-22T09:35:00.000Z", "last_run": DONE},
        {"job": "throughput_rollup", "schedule": None, "next_run_at": None, "last_run": None},
    ]
    answers.by_call["GET /v1/reports"] = {"items": jobs}
    assert json.loads(gantry("report", "list", "--json").stdout) == jobs
    assert "succeeded" in gantry("report", "list").stdout
    window = {"from": "2026-11-21T00:00:00.000Z", "to": "2026-11-22T00:00:00.000Z"}
    answers.by_call[f"GET {RUNS}"] = {"items": [{**FAILED, "window": window}, DONE], "next_cursor": "more"}
    shown = gantry("report", "runs", "lag_report", "--limit", "2").stdout
    assert answers.asked[-1].url.params["limit"] == "2"
    assert "2026-11-21T00:00:00.000Z to 2026-11-22T00:00:00.000Z" in shown
    assert "4.2 s" in shown


def test_a_schedule_is_shown_and_changed(answers: Answers, gantry: Gantry) -> None:
    path = "/v1/reports/lag_report/schedule"
    found = {
        "job": "lag_report",
        "schedule": "*/15 * * * *",
        "time_zone": "UTC",
        "next_run_at": "2026-11-22T09:45:00.000Z",
        "schedule_set": None,
        "last_run": None,
    }
    change = {"cron": "0 8 * * *", "time_zone": "Asia/Tokyo", "set_by": "ann", "set_at": "2026-11-22T09:35:00.000Z"}
    answers.by_call["GET /v1/reports"] = {"items": [found]}
    answers.by_call[f"PUT {path}"] = {**found, "schedule_set": change}
    answers.by_call[f"DELETE {path}"] = found
    assert "the scheduler's settings count" in gantry("report", "schedule", "lag_report").stdout
    shown = gantry("report", "schedule", "lag_report", "--cron", "0 8 * * *", "--time-zone", "Asia/Tokyo").stdout
    assert json.loads(answers.asked[-1].content) == {"cron": "0 8 * * *", "time_zone": "Asia/Tokyo"}
    assert "0 8 * * * (Asia/Tokyo) by ann at 2026-11-22T09:35:00.000Z" in shown
    gantry("report", "schedule", "lag_report", "--on-demand")
    assert json.loads(answers.asked[-1].content)["cron"] is None
    assert json.loads(gantry("report", "schedule", "lag_report", "--default", "--json").stdout) == found
    assert gantry("report", "schedule", "lag_report", "--default", "--on-demand").exit_code == 2
    unknown = gantry("report", "schedule", "other")
    assert (unknown.exit_code, "'other'" in unknown.stderr) == (1, True)


def test_rows_are_shown_as_the_options_ask(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[ROWS] = lag_rows
    shown = gantry("report", "show", "lag_report", "--group", "dead").stdout
    assert dict(answers.asked[-1].url.params) == {"run": "latest", "limit": "1000", "group": "dead", "level": "topic"}
    assert "broker-a/3" not in shown
    assert "broker-a/3" in gantry("report", "show", "lag_report", "--level", "queue", "--run", "r-1").stdout
    assert json.loads(gantry("report", "show", "lag_report", "--json").stdout) == LAG
    assert gantry("report", "show", "lag_report", "--level", "broker").exit_code == 2


def test_rows_of_the_other_reports_are_tables_too(answers: Answers, gantry: Gantry) -> None:
    bucket = {"group": "G", "topic": "T", "section": "age", "bucket": "1-5 min", "lower_bound": 60.0, "upper_bound": 300.0,
              "messages": 1_234, "bytes": None}  # fmt: skip
    answers.by_call["GET /v1/reports/backlog_profile/rows"] = {"run": "r-1", "items": [bucket], "next_cursor": None}
    shown = gantry("report", "show", "backlog_profile", "--section", "age").stdout
    assert dict(answers.asked[-1].url.params) == {"run": "latest", "limit": "1000", "section": "age"}
    assert [line.split() for line in shown.splitlines()][1][:5] == ["G", "T", "age", "1-5", "min"]

    hour = {"bucket_at": "2026-11-21T12:00:00.000Z", "topic": "T", "group": None, "messages": 5, "rate_max": 1.5,
            "lag_messages": None, "covered_s": 3_600.0}  # fmt: skip
    answer = {"unit": "day", "from": "A", "to": "B", "time_zone": "UTC", "items": [hour], "next_cursor": None}
    answers.by_call["GET /v1/reports/throughput_rollup/rows"] = in_turn({**answer, "next_cursor": "2"}, answer)
    done = gantry("report", "show", "throughput_rollup", "--unit", "day", "--time-zone", "Asia/Kolkata", "--json")
    assert json.loads(done.stdout) == [hour, hour]
    first, second = (dict(request.url.params) for request in answers.asked[-2:])
    assert first == {"limit": "1000", "unit": "day", "time_zone": "Asia/Kolkata"}
    assert second == {**first, "from": "A", "to": "B", "cursor": "2"}


@pytest.mark.parametrize(
    ("job", "option"),
    [
        ("backlog_profile", ("--level", "topic")),
        ("lag_report", ("--unit", "day")),
        ("throughput_rollup", ("--run", "r-1")),
        ("lag_report", ("--from", "2026-11-21T12:00:00Z")),
    ],
)
def test_an_option_of_another_report_is_refused(
    answers: Answers, gantry: Gantry, job: str, option: tuple[str, str]
) -> None:
    done = gantry("report", "show", job, *option)
    assert done.exit_code == 2
    assert option[0] in done.output
    assert not answers.asked


def test_hundreds_of_healthy_groups_do_not_scroll_the_late_ones_away(answers: Answers, gantry: Gantry) -> None:
    rows = [*LAG[:4], *(row(f"fine-{number}", "OK") for number in range(300))]
    answers.by_call[ROWS] = {"run": "r-1", "as_of": "", "items": rows, "next_cursor": None}
    lines = gantry("report", "show", "lag_report").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["STOPPED", "LAGGING", "UNKNOWN"]
    assert "and 281 more rows are OK: the page and --json show all rows" in lines
    assert len([line for line in lines if line.startswith("OK")]) == 20


def test_later_pages_are_of_the_same_run(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[ROWS] = in_turn(
        {"run": "r-1", "as_of": "", "items": LAG[:1], "next_cursor": "2"},
        {"run": "r-1", "as_of": "", "items": LAG[1:], "next_cursor": None},
    )
    assert json.loads(gantry("report", "show", "lag_report", "--json").stdout) == LAG
    assert [request.url.params["run"] for request in answers.asked] == ["latest", "r-1"]


def test_the_page_is_named_or_fetched(answers: Answers, gantry: Gantry, tmp_path: Path) -> None:
    answers.by_call[f"GET {RUNS}/latest"] = DONE
    assert gantry("report", "page", "lag_report").stdout == "DIR/reports/lag_report/r-1.html\n"
    assert gantry("report", "open", "lag_report").stdout == "DIR/reports/lag_report/r-1.html\n"
    answers.by_call[f"GET {RUNS}/latest/html"] = httpx.Response(200, text="<!DOCTYPE html>é")
    target = tmp_path / "page.html"
    assert gantry("report", "page", "lag_report", "--save", str(target)).exit_code == 0
    assert target.read_text(encoding="utf-8") == "<!DOCTYPE html>é"
    assert gantry("report", "page", "lag_report", "--save", str(tmp_path)).exit_code == 1
    answers.by_call[f"GET {RUNS}/r-1"] = RUNNING
    done = gantry("report", "page", "lag_report", "--run", "r-1")
    assert (done.exit_code, done.stderr) == (1, "gantry: run r-1 of lag_report is running and has no page\n")


def test_a_page_that_this_machine_can_not_read_is_reported(answers: Answers, gantry: Gantry, tmp_path: Path) -> None:
    here = tmp_path / "r-1.html"
    here.write_text("<!DOCTYPE html>")
    for where in (str(here), f"file:{here}", f"file://{here}"):
        answers.by_call[f"GET {RUNS}/latest"] = {**DONE, "files": {"html": where, "parquet": ""}}
        done = gantry("report", "page", "lag_report")
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"{where}\n", "")
    for where in (
        "s3a://bucket/reports/r-1.html",
        "hdfs:///reports/r-1.html",
        "/elsewhere/r-1.html",
        "file:/else.html",
    ):
        answers.by_call[f"GET {RUNS}/latest"] = {**DONE, "files": {"html": where, "parquet": ""}}
        done = gantry("report", "page", "lag_report")
        assert (done.exit_code, done.stdout) == (0, f"{where}\n")
        assert (
            done.stderr == f"gantry: this machine can't read {where}; --save FILE downloads the page from the gateway\n"
        )


def test_refusals_and_wrong_usage(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["POST /v1/reports/no/runs"] = problem(
        404, "There is no such report", "job: 'no' is not one of them"
    )
    done = gantry("report", "run", "no")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "gantry: There is no such report: job: 'no' is not one of them\n"
    assert gantry("report", "run", "lag_report", "--from", "2026-11-21T00:00:00Z").exit_code == 2
    assert gantry("report", "run").exit_code == 2
    assert len(answers.asked) == 1


def test_control_characters_in_a_row_are_escaped(answers: Answers, gantry: Gantry) -> None:
    evil = row("g", "LAGGING", cause="\x1b[31mred", next_step="[bold]x")
    answers.by_call[ROWS] = {"run": "r-1", "as_of": "", "items": [evil], "next_cursor": None}
    shown = gantry("report", "show", "lag_report").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown


HISTORY = {
    "group": "slow", "topic": "%RETRY%slow", "from": "2026-11-22T08:00:00.000Z", "to": "2026-11-22T09:00:00.000Z",
    "step_s": 300,
    "items": [
        {"at": "2026-11-22T08:04:59.123Z", "lag_messages": 0, "lag_seconds": 0.0},
        {"at": "2026-11-22T08:09:59.123Z", "lag_messages": 12_345, "lag_seconds": 75.5},
        {"at": "2026-11-22T08:14:59.123Z", "lag_messages": None, "lag_seconds": None},
    ],
}  # fmt: skip


def test_a_history_is_points_of_one_group_on_one_topic(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/reports/lag_report/history"] = HISTORY
    done = gantry(
        "report", "history", "slow", "%RETRY%slow", "--from", "2026-11-22T08:00:00Z", "--to", "2026-11-22T09:00:00Z"
    )
    assert done.exit_code == 0, done.output
    assert dict(answers.asked[-1].url.params) == {
        "group": "slow", "topic": "%RETRY%slow", "from": "2026-11-22T08:00:00Z", "to": "2026-11-22T09:00:00Z",
    }  # fmt: skip
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["at", "messages", "behind"],
        ["2026-11-22T08:04:59.123Z", "0", "0", "s"],
        ["2026-11-22T08:09:59.123Z", "12,345", "1", "min", "15", "s"],
        ["2026-11-22T08:14:59.123Z", "unknown", "unknown"],
        ["points", "are", "5", "min", "apart"],
    ]
    assert json.loads(gantry("report", "history", "slow", "%RETRY%slow", "--json").stdout) == HISTORY
    assert dict(answers.asked[-1].url.params) == {"group": "slow", "topic": "%RETRY%slow"}
    without = {"at": "2026-11-22T08:19:59.123Z", "lag_messages": None, "lag_seconds": None}
    without |= {"missing_brokers": ["broker-a", "broker-b"], "late_brokers": ["broker-c"]}
    answers.by_call["GET /v1/reports/lag_report/history"] = {**HISTORY, "items": [*HISTORY["items"], without]}
    lines = gantry("report", "history", "slow", "%RETRY%slow").stdout.splitlines()
    assert lines[0].split() == ["at", "messages", "behind", "without"]
    assert lines[4].endswith("broker-a, broker-b, broker-c (late)")
    answers.by_call["GET /v1/reports/lag_report/history"] = {**HISTORY, "items": []}
    done = gantry("report", "history", "slow", "%RETRY%slow")
    assert (
        done.stdout
        == "there are no samples of slow on %RETRY%slow from 2026-11-22T08:00:00.000Z to 2026-11-22T09:00:00.000Z\n"
    )
