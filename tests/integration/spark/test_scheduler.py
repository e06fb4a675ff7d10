"""The scheduler as a real process on a real Postgres, with a job of a second: fails, hangs, kills, and who takes over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gantry.cli.stack.processes import die_with_parent, is_alive
from spark.postgres import Connection
from spark.runs import Run, Runs, Schedule
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables
from tests.support.stack import environment

ROOT = Path(__file__).resolve().parents[3]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
WAIT_S = 30.0


class SchedulerProcess:
    def __init__(self, url: str, directory: Path, *changes: str, name: str = "one") -> None:
        self.output = directory
        self._log = directory / f"scheduler-{name}.log"
        self._ready = directory / f"ready-{name}.json"
        self._command = [
            str(Path(__file__).with_name("fakescheduler.py")),
            url,
            str(directory),
            str(self._ready),
            *changes,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), "PYTHONPATH": str(ROOT)},
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it only asks the kernel.
            )
        wait_for(self._ready.exists, "the scheduler to be ready", self)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def wait_for(condition: Callable[[], object], what: str, scheduler: SchedulerProcess | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}: {scheduler.log if scheduler else ''}"
        time.sleep(0.02)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with report_tables(postgres) as connected:
        yield connected


@contextmanager
def scheduler(postgres: PostgresServer, directory: Path, *changes: str, **orders: str) -> Iterator[SchedulerProcess]:
    give(directory, **orders)
    process = SchedulerProcess(postgres.url, directory, *changes)
    try:
        process.start()
        yield process
    finally:
        process.kill()


def give(directory: Path, **orders: str) -> None:
    """Say what attempts do: first="fail", …."""
    numbers = {"first": "1", "second": "2", "third": "3"}
    (directory / "orders.json").write_text(json.dumps({numbers[name]: order for name, order in orders.items()}))


def ask(connection: Connection, job: str = "lag_report", *, minutes: int = 0) -> Run:
    end = NOON + timedelta(minutes=minutes)
    run, _ = Runs(connection).request(job, window_start=None, window_end=end, trigger="manual")
    return run


def row(connection: Connection, run: Run) -> dict[str, Any]:
    found = connection.execute("SELECT to_jsonb(report_runs) FROM report_runs WHERE id = %s", (run.id,)).fetchone()
    assert found is not None
    return dict(found[0])


def ends(connection: Connection, run: Run, status: str, process: SchedulerProcess) -> dict[str, Any]:
    wait_for(lambda: row(connection, run)["status"] == status, f"the run to be {status}", process)
    return row(connection, run)


def start_a_worker(connection: Connection, process: SchedulerProcess) -> None:
    """Let a run end whose worker is kept: the time-out of the next run includes no start of a worker."""
    ends(connection, ask(connection, "backlog_profile"), "succeeded", process)
    wait_for(lambda: '"ended"' in process.log, "the worker to be kept", process)


def test_a_run_that_is_asked_for_starts_within_a_second(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path) as process:
        wait_for(lambda: "this is the scheduler now" in process.log, "it to lead", process)
        run = ask(connection)
        done = ends(connection, run, "succeeded", process)
        took = datetime.fromisoformat(done["started_at"]) - datetime.fromisoformat(done["created_at"])
        assert took < timedelta(seconds=1 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        assert (done["attempt"], done["rows"], done["error"]) == (1, 0, None)
        assert (tmp_path / "lag_report" / f"{run.id}.log").exists()


def test_a_failure_is_tried_again_after_a_pause(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, first="fail", second="fail") as process:
        done = ends(connection, ask(connection), "succeeded", process)
        assert done["attempt"] == 3
        assert connection.execute("SELECT html FROM report_pages").fetchall() == [("lag_report 3",)]


def test_what_fails_again_and_again_leaves_the_report_before_in_place(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path) as process:
        before = ends(connection, ask(connection), "succeeded", process)
        give(tmp_path, first="fail", second="silent", third="fail")
        failed = ends(connection, ask(connection, minutes=1), "failed", process)
        assert (failed["attempt"], failed["error"]) == (3, "lag_report: no broker answers in attempt 3")
        # The next attempt replaces the run's log and its error, so only the scheduler's log has the first reason.
        assert '"reason": "lag_report: no broker answers in attempt 1"' in process.log
        assert connection.execute("SELECT run_id::text, html FROM report_pages").fetchall() == [
            (before["id"], "lag_report 1")
        ]


def test_a_permanent_failure_is_not_retried(postgres: PostgresServer, connection: Connection, tmp_path: Path) -> None:
    with scheduler(postgres, tmp_path, first="permanent") as process:
        run = ask(connection)
        failed = ends(connection, run, "failed", process)
        assert (failed["attempt"], failed["error"]) == (1, "there is no Java")
        # Others are not disturbed.
        give(tmp_path)
        ends(connection, ask(connection, "backlog_profile"), "succeeded", process)
        assert row(connection, run)["attempt"] == 1


def test_what_hangs_holds_up_nobody_and_is_tried_again(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, "lag_report_timeout_ms=6000") as process:
        start_a_worker(connection, process)
        give(tmp_path, first="hang")
        run = ask(connection)
        wait_for((tmp_path / "child.pid").exists, "the job to start something", process)
        wait_for(lambda: row(connection, run)["progress"] == "hanging", "the job to say what it does", process)
        child = int((tmp_path / "child.pid").read_text())
        give(tmp_path)
        ends(connection, ask(connection, "backlog_profile", minutes=1), "succeeded", process)
        assert (row(connection, run)["status"], row(connection, run)["progress"]) == ("running", "hanging")
        assert ends(connection, run, "succeeded", process)["attempt"] == 2
        assert not is_alive(child)


def test_what_always_hangs_has_timed_out(postgres: PostgresServer, connection: Connection, tmp_path: Path) -> None:
    with scheduler(postgres, tmp_path, "lag_report_timeout_ms=3000", "attempts_max=1") as process:
        start_a_worker(connection, process)
        give(tmp_path, first="hang")
        failed = ends(connection, ask(connection), "timed_out", process)
        assert failed["error"] == "not done after 3 s, and killed"
        assert not is_alive(int((tmp_path / "child.pid").read_text()))


def test_a_stop_ends_jobs_and_the_next_start_runs_them_again(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, first="hang") as process:
        run = ask(connection)
        wait_for((tmp_path / "child.pid").exists, "the job to start something", process)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        released = row(connection, run)
        assert (released["status"], released["attempt"], released["error"]) == ("queued", 0, None)
        assert not is_alive(int((tmp_path / "child.pid").read_text()))
        give(tmp_path)
        process.start()
        assert ends(connection, run, "succeeded", process)["attempt"] == 1


def worker_of(process: SchedulerProcess, run: Run) -> int:
    """Return the process that did a run, as the run's log says."""
    first, *_ = (process.output / run.job / f"{run.id}.log").read_text().splitlines()
    return int(first.removeprefix("worker "))


def test_a_worker_is_kept_for_the_next_run_whatever_its_job(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path) as process:
        runs = [
            ask(connection, job, minutes=minute) for minute in range(3) for job in ("lag_report", "backlog_profile")
        ]
        workers = set()
        for run in runs:
            ends(connection, run, "succeeded", process)
            workers.add(worker_of(process, run))
        # Two runs may be under way at once; only one worker stays.
        assert len(workers) < len(runs)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert not any(map(is_alive, workers))


def test_a_worker_does_no_run_after_one_that_failed(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, second="fail") as process:
        good = ask(connection)
        ends(connection, good, "succeeded", process)
        give(tmp_path, first="fail")
        bad = ask(connection, minutes=1)
        wait_for(lambda: row(connection, bad)["attempt"] == 1, "the first attempt", process)
        give(tmp_path)
        done = ends(connection, bad, "succeeded", process)
        assert done["attempt"] == 2
        assert worker_of(process, good) != worker_of(process, bad)
        wait_for(lambda: not is_alive(worker_of(process, good)), "the worker of the run that failed to end", process)


def test_a_worker_that_ends_without_a_word_has_not_done_its_run(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, "attempts_max=1", first="die") as process:
        failed = ends(connection, ask(connection), "failed", process)
        assert failed["error"].startswith("its process ended with code 0; the last line of its log: worker ")
        give(tmp_path)
        ends(connection, ask(connection, minutes=1), "succeeded", process)


def test_an_idle_worker_that_was_killed_costs_no_attempt(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path) as process:
        first = ask(connection)
        ends(connection, first, "succeeded", process)
        os.kill(worker_of(process, first), signal.SIGKILL)
        wait_for(lambda: not is_alive(worker_of(process, first)), "the worker to die", process)
        assert ends(connection, ask(connection, minutes=1), "succeeded", process)["attempt"] == 1


@pytest.mark.parametrize("change", ["worker_idle_ms=0", "worker_idle_ms=200", "master=spark://127.0.0.1:1"])
def test_an_idle_worker_ends_after_a_while_and_at_once_where_it_would_hold_a_cluster(
    change: str, postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, change) as process:
        run = ask(connection)
        ends(connection, run, "succeeded", process)
        wait_for(lambda: not is_alive(worker_of(process, run)), "the worker to end", process)


def test_one_scheduler_works_at_a_time_and_the_other_takes_over(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path) as first:
        wait_for(lambda: "this is the scheduler now" in first.log, "it to lead", first)
        second = SchedulerProcess(postgres.url, tmp_path, name="two")
        try:
            second.start()
            for minute in range(5):
                ends(connection, ask(connection, minutes=minute), "succeeded", first)
            assert "started" not in second.log
            first.kill()
            ends(connection, ask(connection, minutes=9), "succeeded", second)
            assert "this is the scheduler now" in second.log
        finally:
            second.kill()


def test_jobs_die_with_a_killed_scheduler(postgres: PostgresServer, connection: Connection, tmp_path: Path) -> None:
    with scheduler(postgres, tmp_path, first="hang") as process:
        run = ask(connection)
        wait_for((tmp_path / "child.pid").exists, "the job to start something", process)
        process.kill()
        # Otherwise two processes would do one run, once it is queued again (test_turns.py).
        wait_for(lambda: beats_stop(connection, run), "the job to die")


def beats_stop(connection: Connection, run: Run) -> bool:
    before = row(connection, run)["heartbeat_at"]
    time.sleep(0.6)
    return bool(row(connection, run)["heartbeat_at"] == before)


def test_what_was_due_meanwhile_is_made_up_once(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    missed = datetime.now(UTC) - timedelta(days=2)
    Runs(connection).write_schedules([Schedule("throughput_rollup", "0 * * * *", "UTC", missed)])
    with scheduler(postgres, tmp_path, "throughput_rollup_cron=0 * * * *") as process:
        wait_for(
            lambda: connection.execute("SELECT 1 FROM report_runs WHERE status = 'succeeded'").fetchone(),
            "a run",
            process,
        )
        found = connection.execute("SELECT window_start, window_end, trigger FROM report_runs").fetchall()
        ((start, end, trigger),) = found
        assert (end - start, trigger) == (timedelta(hours=1), "schedule")
        assert timedelta(0) <= datetime.now(UTC) - end < timedelta(hours=1)
        (planned,) = Runs(connection).schedules().values()
        assert planned.next_run_at == end + timedelta(hours=1)


def test_postgres_may_be_away_at_any_time(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = own_postgres.url
    own_postgres.stop()
    with scheduler(own_postgres, tmp_path, "stale_after_ms=20000") as process:
        wait_for(lambda: "Postgres can't be used" in process.log, "it to say so", process)
        own_postgres.start()
        for minute, disturb in enumerate((own_postgres.kill, None)):
            with report_connection(url) as connection:
                ends(connection, ask(connection, minutes=minute), "succeeded", process)
            if disturb is not None:
                disturb()
                own_postgres.start()
        process.send(signal.SIGTERM)
        assert process.wait() == 0


@contextmanager
def report_connection(url: str) -> Iterator[Connection]:
    from spark.postgres import connect

    with connect(url, application="gantry-test") as connection:
        yield connection


def test_a_stop_does_not_wait_for_a_postgres_that_hangs(own_postgres: PostgresServer, tmp_path: Path) -> None:
    with scheduler(own_postgres, tmp_path) as process:
        wait_for(lambda: "this is the scheduler now" in process.log, "it to lead", process)
        own_postgres.pause()
        try:
            time.sleep(0.5)
            began = time.monotonic()
            process.send(signal.SIGTERM)
            assert process.wait() == 0
            assert time.monotonic() - began < 8, "gantry up kills after that"
        finally:
            own_postgres.resume()
