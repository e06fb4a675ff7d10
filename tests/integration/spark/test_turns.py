"""Turns of the scheduler on a real Postgres, with a clock that the test moves."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from spark.jobs.worker import job_named
from spark.postgres import Connection, lock_key
from spark.results import publish
from spark.runs import Run, Runs, Schedule
from spark.scheduler import jobs, turns
from spark.scheduler.decide import EndedRun, RunEnding
from spark.scheduler.leadership import LOCK, Leadership
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.turns import PIECE_MAX, WINDOW_MAX, TurnResult, Turns
from tests.support.postgres import PostgresServer, until_free
from tests.support.reports import report_tables
from tests.support.virtualtime import FakeClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURLY = "0 * * * *"


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with report_tables(postgres) as connected:
        yield connected


@pytest.fixture
def runs(connection: Connection) -> Runs:
    return Runs(connection)


class Scheduler:
    """A scheduler without processes: a test says how what it claimed has ended."""

    def __init__(self, url: str, **changed: Any) -> None:
        off: dict[str, Any] = {"lag_report_cron": None, "throughput_rollup_cron": None, "backlog_profile_cron": None}
        self.settings = SchedulerSettings(database_url=url, **(off | changed))
        self.clock = FakeClock(int(NOON.timestamp() * 1_000))
        self.leadership = Leadership(url)
        self._turns = Turns(self.settings, self.leadership, self.clock)
        self.own: dict[Any, Run] = {}

    def turn(self, *ended: EndedRun, may_claim: bool = True) -> TurnResult:
        for one in ended:
            self.own.pop(one.run.id, None)
        result = self._turns.take(ended, own=self.own, may_claim=may_claim)
        self.own.update({run.id: run for run in result.claimed})
        return result


@pytest.fixture
def make(postgres: PostgresServer, connection: Connection) -> Iterator[Any]:
    made: list[Scheduler] = []
    until_free(postgres.url, lock_key(LOCK))

    def start(**changed: Any) -> Scheduler:
        made.append(Scheduler(postgres.url, **changed))
        return made[-1]

    yield start
    for one in made:
        one.leadership.drop()


def windows(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT window_start, window_end, status FROM report_runs ORDER BY window_end").fetchall()


def silence(connection: Connection) -> None:
    connection.execute("UPDATE report_runs SET heartbeat_at = heartbeat_at - interval '1 hour'")


def succeed(connection: Connection, run: Run) -> EndedRun:
    publish(connection, job_named(run.job).table, run_id=run.id, attempt=run.attempt, rows=[], page="", files={})
    return EndedRun(run, RunEnding.DONE, "")


def test_a_report_on_the_moment_has_no_beginning(make: Any, connection: Connection) -> None:
    scheduler = make(lag_report_cron="*/15 * * * *")
    assert scheduler.turn().claimed == []
    scheduler.clock.advance(15 * 60_000)
    (run,) = scheduler.turn().claimed
    assert (run.job, run.window_start, run.window_end) == ("lag_report", None, NOON + timedelta(minutes=15))
    assert scheduler.turn().claimed == []


def test_a_rollup_begins_where_the_last_success_ended(make: Any, connection: Connection) -> None:
    scheduler = make(throughput_rollup_cron=HOURLY, attempts_max=1)
    scheduler.turn()
    ends: list[EndedRun] = []
    for succeeds in (True, False, True):
        scheduler.clock.advance(3_600_000)
        (run,) = scheduler.turn(*ends).claimed
        ends = [succeed(connection, run) if succeeds else EndedRun(run, RunEnding.FAILED, "no")]
    scheduler.turn(*ends)
    assert windows(connection) == [
        (NOON, NOON + HOUR, "succeeded"),
        (NOON + HOUR, NOON + 2 * HOUR, "failed"),
        (NOON + HOUR, NOON + 3 * HOUR, "succeeded"),
    ]


def rolled_up_until(runs: Runs, connection: Connection, until: datetime) -> None:
    """Have a rollup that has done its work up to a moment, and was due an hour later."""
    run, _ = runs.request("throughput_rollup", window_start=until - HOUR, window_end=until, trigger="schedule")
    claimed = runs.claim(run.id)
    assert claimed is not None
    succeed(connection, claimed)
    runs.write_schedules([Schedule("throughput_rollup", HOURLY, "UTC", until + HOUR)])


def test_a_long_absence_is_made_up_in_pieces(make: Any, runs: Runs, connection: Connection) -> None:
    begin = NOON - 2 * PIECE_MAX - HOUR
    rolled_up_until(runs, connection, begin)
    scheduler = make(throughput_rollup_cron=HOURLY)
    made, ends = [], []
    for _ in range(3):
        (run,) = scheduler.turn(*ends).claimed
        made.append((run.window_start, run.window_end))
        ends = [succeed(connection, run)]
    assert scheduler.turn(*ends).claimed == []
    assert made == [
        (begin, begin + PIECE_MAX),
        (begin + PIECE_MAX, begin + 2 * PIECE_MAX),
        (begin + 2 * PIECE_MAX, NOON),
    ]


def test_a_piece_that_fails_is_tried_again_at_the_next_time(make: Any, runs: Runs, connection: Connection) -> None:
    begin = NOON - PIECE_MAX - HOUR
    rolled_up_until(runs, connection, begin)
    scheduler = make(throughput_rollup_cron=HOURLY, attempts_max=1)
    (first,) = scheduler.turn().claimed
    assert scheduler.turn(EndedRun(first, RunEnding.FAILED, "no")).claimed == []
    scheduler.clock.advance(3_600_000)
    (again,) = scheduler.turn().claimed
    assert (again.id, again.window_end) == (first.id, begin + PIECE_MAX)
    (rest,) = scheduler.turn(succeed(connection, again)).claimed
    assert (rest.window_start, rest.window_end) == (begin + PIECE_MAX, NOON + HOUR)


def test_a_piece_that_a_person_did_again_is_covered(make: Any, runs: Runs, connection: Connection) -> None:
    begin = NOON - PIECE_MAX - HOUR
    rolled_up_until(runs, connection, begin)
    scheduler = make(throughput_rollup_cron=HOURLY, attempts_max=1)
    (failed,) = scheduler.turn().claimed
    scheduler.turn(EndedRun(failed, RunEnding.FAILED, "no"))
    # The gateway does this if a person asks for a window whose run has failed.
    requeue = "UPDATE report_runs SET status = 'queued', trigger = 'manual', finished_at = NULL WHERE id = %s"
    connection.execute(requeue, (failed.id,))
    (by_hand,) = scheduler.turn().claimed
    assert scheduler.turn(succeed(connection, by_hand)).claimed == []
    scheduler.clock.advance(3_600_000)
    (rest,) = scheduler.turn().claimed
    assert (rest.window_start, rest.window_end) == (begin + PIECE_MAX, NOON + HOUR)


def test_who_takes_over_goes_on_with_what_is_missing(make: Any, runs: Runs, connection: Connection) -> None:
    rolled_up_until(runs, connection, NOON - 2 * HOUR)
    runs.write_schedules([Schedule("throughput_rollup", HOURLY, "UTC", NOON + HOUR)])
    (run,) = make(throughput_rollup_cron=HOURLY).turn().claimed
    assert (run.window_start, run.window_end) == (NOON - 2 * HOUR, NOON - HOUR)


def test_nothing_is_made_up_of_which_there_are_no_samples(make: Any, runs: Runs, connection: Connection) -> None:
    rolled_up_until(runs, connection, NOON - WINDOW_MAX - timedelta(days=10))
    (run,) = make(throughput_rollup_cron=HOURLY).turn().claimed
    assert run.window_start == NOON - WINDOW_MAX


def test_a_schedule_that_was_changed_makes_nothing_up(make: Any, runs: Runs) -> None:
    runs.write_schedules(
        [Schedule("lag_report", "* * * * *", "UTC", NOON - HOUR), Schedule("gone", HOURLY, "UTC", NOON)]
    )
    assert make(lag_report_cron=HOURLY).turn().claimed == []
    assert runs.schedules() == {"lag_report": Schedule("lag_report", HOURLY, "UTC", NOON + HOUR)}


def test_a_time_that_comes_while_the_last_run_runs_is_skipped(make: Any, connection: Connection) -> None:
    scheduler = make(lag_report_cron="* * * * *")
    scheduler.turn()
    scheduler.clock.advance(60_000)
    (run,) = scheduler.turn().claimed
    for _ in range(3):
        scheduler.clock.advance(60_000)
        assert scheduler.turn().claimed == []
    assert len(windows(connection)) == 1
    scheduler.turn(succeed(connection, run))
    scheduler.clock.advance(60_000)
    assert len(scheduler.turn().claimed) == 1


def test_a_run_whose_process_is_gone_is_tried_again_after_listening(
    make: Any, runs: Runs, connection: Connection
) -> None:
    run, _ = runs.request("lag_report", window_start=None, window_end=NOON, trigger="manual")
    runs.claim(run.id)
    silence(connection)
    scheduler = make()
    assert scheduler.turn().claimed == []
    scheduler.clock.advance(scheduler.settings.stale_after_ms - 1)
    assert scheduler.turn().claimed == [], "after an absence of Postgres everybody has been silent"
    scheduler.clock.advance(1)
    assert scheduler.turn().claimed == [], "the pause after a failure"
    connection.execute("UPDATE report_runs SET finished_at = finished_at - interval '1 minute'")
    (again,) = scheduler.turn().claimed
    assert (again.id, again.attempt) == (run.id, 2)


def test_a_run_that_lives_elsewhere_or_here_is_left_alone(make: Any, runs: Runs, connection: Connection) -> None:
    scheduler = make()
    elsewhere, _ = runs.request("backlog_profile", window_start=None, window_end=NOON, trigger="manual")
    runs.claim(elsewhere.id)
    here, _ = runs.request("lag_report", window_start=None, window_end=NOON, trigger="manual")
    assert [run.id for run in scheduler.turn().claimed] == [here.id]
    connection.execute(
        "UPDATE report_runs SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE id = %s", (here.id,)
    )
    scheduler.clock.advance(3_600_000)
    scheduler.turn()
    assert {row[2] for row in windows(connection)} == {"running"}


def test_a_run_that_a_person_started_by_hand_is_not_started_by_us(
    make: Any, runs: Runs, connection: Connection
) -> None:
    run, _ = runs.request(
        "lag_report", window_start=None, window_end=NOON, trigger="manual", requested_by="command line"
    )
    runs.claim(run.id)
    silence(connection)
    scheduler = make()
    scheduler.turn()
    scheduler.clock.advance(scheduler.settings.stale_after_ms)
    scheduler.turn()
    assert windows(connection) == [(None, NOON, "failed")]


def test_while_stopping_it_settles_and_begins_nothing(make: Any, runs: Runs, connection: Connection) -> None:
    scheduler = make()
    runs.request("lag_report", window_start=None, window_end=NOON, trigger="manual")
    (claimed,) = scheduler.turn().claimed
    runs.request("backlog_profile", window_start=None, window_end=NOON + HOUR, trigger="manual")
    ended = EndedRun(claimed, RunEnding.STOPPED, "the scheduler was stopped")
    result = scheduler.turn(ended, may_claim=False)
    assert (result.settled, result.claimed) == ([ended], [])
    assert [row[2] for row in windows(connection)] == ["queued", "queued"]


def test_only_the_holder_of_the_lock_does_anything(make: Any, runs: Runs, postgres: PostgresServer) -> None:
    first, second = make(), make()
    assert (first.turn().is_leader, second.turn().is_leader) == (True, False)
    run, _ = runs.request("lag_report", window_start=None, window_end=NOON, trigger="manual")
    assert second.turn().claimed == []
    first.leadership.drop()
    until_free(postgres.url, lock_key(LOCK))
    assert [claimed.id for claimed in second.turn().claimed] == [run.id]
    assert first.turn().is_leader is False


def test_a_broken_connection_is_made_anew_with_the_lock(make: Any, postgres: PostgresServer) -> None:
    scheduler = make()
    scheduler.turn()
    scheduler.leadership.cut()
    with pytest.raises(psycopg.OperationalError):
        scheduler.turn()
    until_free(postgres.url, lock_key(LOCK))
    assert scheduler.turn().is_leader


def test_old_buckets_are_removed_turn_by_turn_and_then_once_an_hour(
    make: Any, runs: Runs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ROWS_AT_ONCE", 1)

    def add() -> None:
        connection.execute(
            "INSERT INTO report_throughput (unit, bucket_at, topic) SELECT 'minute',"
            " clock_timestamp() - interval '8 days' - number * interval '1 minute', 'T' FROM generate_series(1, 3) number"
        )

    def left() -> int:
        row = connection.execute("SELECT count(*) FROM report_throughput").fetchone()
        assert row is not None
        return int(row[0])

    add()
    scheduler = make()
    counts = []
    for _ in range(5):
        scheduler.turn()
        counts.append(left())
    assert counts == [2, 1, 0, 0, 0]
    add()
    scheduler.turn()
    assert left() == 3
    scheduler.clock.advance(3_600_000)
    scheduler.turn()
    assert left() == 2


def test_old_runs_are_removed_once_an_hour(make: Any, runs: Runs, connection: Connection) -> None:
    scheduler = make()
    run, _ = runs.request("lag_report", window_start=None, window_end=NOON, trigger="manual")
    (claimed,) = scheduler.turn().claimed
    scheduler.turn(EndedRun(claimed, RunEnding.PERMANENT, "no"))
    connection.execute("UPDATE report_runs SET finished_at = finished_at - interval '31 days'")
    assert scheduler.turn().pruned == []
    scheduler.clock.advance(3_600_000)
    assert [pruned.id for pruned in scheduler.turn().pruned] == [run.id]


def test_many_old_runs_are_removed_turn_by_turn(
    make: Any, runs: Runs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "ROWS_AT_ONCE", 10)
    connection.execute(
        "INSERT INTO report_runs (job, window_end, trigger, status, attempt, finished_at, rows) SELECT 'lag_report', at,"
        " 'schedule', 'succeeded', 1, at, 10 FROM generate_series(now() - interval '40 days', now(), interval '8 days') at"
    )
    scheduler = make()
    assert [len(scheduler.turn().pruned) for _ in range(4)] == [1, 1, 0, 0]


def test_a_worker_is_made_ready_once_a_little_before_each_time(make: Any, connection: Connection) -> None:
    scheduler = make(lag_report_cron="*/15 * * * *", worker_lead_ms=30_000)
    found: list[tuple[datetime, float]] = []
    for _ in range(2 * 15 * 60 + 5):
        result = scheduler.turn()
        if result.ahead is not None:
            assert result.ahead.job == "lag_report"
            found.append((result.ahead.at, result.ahead_s))
        for run in result.claimed:
            scheduler.turn(succeed(connection, run))
        scheduler.clock.advance(1_000)
    assert found == [(NOON + timedelta(minutes=minutes), 30.0) for minutes in (15, 30)]


def test_nobody_who_stops_or_waits_for_the_duty_makes_a_worker_ready(make: Any, connection: Connection) -> None:
    soon = {"lag_report_cron": "*/15 * * * *", "worker_lead_ms": 15 * 60_000}
    leader, other = make(**soon), make(**soon)
    assert leader.turn(may_claim=False).ahead is None
    assert other.turn().ahead is None
    assert leader.turn().ahead is not None


def set_schedule(connection: Connection, job: str, cron: str | None, time_zone: str = "UTC") -> None:
    """Set a schedule as the gateway does."""
    connection.execute(
        "INSERT INTO report_schedules_set (job, cron, time_zone, set_by) VALUES (%s, %s, %s, 'a key')"
        " ON CONFLICT (job) DO UPDATE SET cron = excluded.cron, time_zone = excluded.time_zone",
        (job, cron, time_zone),
    )


def test_a_schedule_that_is_set_over_rest_is_in_force_at_the_next_turn(
    make: Any, runs: Runs, connection: Connection
) -> None:
    scheduler = make(lag_report_cron=HOURLY)
    scheduler.turn()
    set_schedule(connection, "lag_report", "*/15 * * * *")
    set_schedule(connection, "backlog_profile", "30 3 * * *", "Asia/Tokyo")
    set_schedule(connection, "a job of a later version", HOURLY)
    scheduler.turn()
    tokyo = NOON.replace(hour=18, minute=30)
    assert runs.schedules() == {
        "lag_report": Schedule("lag_report", "*/15 * * * *", "UTC", NOON + timedelta(minutes=15)),
        "backlog_profile": Schedule("backlog_profile", "30 3 * * *", "Asia/Tokyo", tokyo),
    }
    scheduler.clock.advance(15 * 60_000)
    assert [run.job for run in scheduler.turn().claimed] == ["lag_report"]


def test_a_job_without_a_schedule_runs_on_demand_only_until_the_settings_count_again(
    make: Any, runs: Runs, connection: Connection
) -> None:
    scheduler = make(lag_report_cron=HOURLY)
    scheduler.turn()
    set_schedule(connection, "lag_report", None)
    scheduler.clock.advance(2 * 3_600_000)
    assert scheduler.turn().claimed == []
    assert runs.schedules() == {}
    connection.execute("DELETE FROM report_schedules_set")
    assert scheduler.turn().claimed == []
    assert runs.schedules() == {"lag_report": Schedule("lag_report", HOURLY, "UTC", NOON + 3 * HOUR)}


def test_the_next_scheduler_takes_over_a_schedule_that_was_set(make: Any, runs: Runs, connection: Connection) -> None:
    set_schedule(connection, "lag_report", "*/15 * * * *")
    first = make(lag_report_cron=HOURLY)
    first.turn()
    first.leadership.drop()
    second = make(lag_report_cron=HOURLY)
    second.clock.advance(20 * 60_000)
    (run,) = second.turn().claimed
    assert run.window_end == NOON + timedelta(minutes=15), "the time that both schedulers missed"


def test_a_schedule_that_this_machine_does_not_understand_is_ignored(
    make: Any, runs: Runs, connection: Connection
) -> None:
    set_schedule(connection, "lag_report", HOURLY, "Mars/Base")
    make(lag_report_cron="*/15 * * * *").turn()
    assert runs.schedules()["lag_report"].cron == "*/15 * * * *"
