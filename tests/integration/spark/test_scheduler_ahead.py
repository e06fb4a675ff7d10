"""Workers that are made ready before a time of the schedule, and the archive of classes: the scheduler as a real process."""

import os
import signal
from pathlib import Path

import pytest

from gantry.cli.stack.processes import is_alive
from spark.postgres import Connection
from tests.integration.spark.test_scheduler import (
    SchedulerProcess,
    ask,
    connection,
    ends,
    scheduler,
    wait_for,
    worker_of,
)
from tests.support.postgres import PostgresServer

__all__ = ["connection"]

# Its time is a year away at most, and the lead is longer: so it is always soon.
SOON = ("lag_report_cron=0 0 1 1 *", f"worker_lead_ms={400 * 86_400_000}")


def ready_worker(process: SchedulerProcess) -> int:
    """Wait until a worker has been made ready; return its process id."""
    said = process.output / "lag_report" / "ready.log"
    wait_for(lambda: "prepared a worker" in process.log, "a worker to be ready", process)
    word, pid, *rest = said.read_text().split()
    assert (word, rest[:3]) == ("worker", ["ready", "for", "lag_report"])
    assert "--run" not in rest
    return int(pid)


def test_a_run_finds_the_worker_that_was_made_ready_however_short_workers_wait(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    with scheduler(postgres, tmp_path, *SOON, "worker_idle_ms=1") as process:
        worker = ready_worker(process)
        run = ask(connection)
        ends(connection, run, "succeeded", process)
        assert worker_of(process, run) == worker
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert not is_alive(worker)


def test_a_run_waits_for_the_worker_that_is_being_made_ready(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    orders = tmp_path / "ready.json"
    orders.write_text("null")
    said = tmp_path / "lag_report" / "ready.log"
    with scheduler(postgres, tmp_path, *SOON) as process:
        wait_for(lambda: said.exists() and "ready for" in said.read_text(), "the worker to begin", process)
        run = ask(connection)
        ends(connection, run, "running", process)
        orders.unlink()
        ends(connection, run, "succeeded", process)
        assert worker_of(process, run) == ready_worker(process)


def test_a_stop_ends_a_worker_that_is_being_made_ready(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "ready.json").write_text("null")
    said = tmp_path / "lag_report" / "ready.log"
    with scheduler(postgres, tmp_path, *SOON) as process:
        wait_for(lambda: said.exists() and "ready for" in said.read_text(), "the worker to begin", process)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert not is_alive(int(said.read_text().split()[1]))


@pytest.mark.parametrize("dies", [False, True])
def test_a_worker_that_can_not_be_made_ready_is_tried_once_and_costs_no_run(
    postgres: PostgresServer, connection: Connection, tmp_path: Path, *, dies: bool
) -> None:
    (tmp_path / "ready.json").write_text("null" if dies else "3")
    said = tmp_path / "lag_report" / "ready.log"
    with scheduler(postgres, tmp_path, *SOON) as process:
        wait_for(lambda: said.exists() and "ready for" in said.read_text(), "the worker to begin", process)
        failed = int(said.read_text().split()[1])
        if dies:
            os.kill(failed, signal.SIGKILL)
        wait_for(lambda: "background work failed" in process.log, "the failure to be said", process)
        run = ask(connection)
        assert ends(connection, run, "succeeded", process)["attempt"] == 1
        assert worker_of(process, run) != failed
        assert said.read_text().split()[1] == str(failed)


@pytest.mark.parametrize("change", ["worker_lead_ms=0", "worker_idle_ms=0", "master=spark://127.0.0.1:1"])
def test_no_worker_is_made_ready_where_none_waits(
    postgres: PostgresServer, connection: Connection, tmp_path: Path, change: str
) -> None:
    with scheduler(postgres, tmp_path, *SOON, change) as process:
        ends(connection, ask(connection), "succeeded", process)
        assert not (tmp_path / "lag_report" / "ready.log").exists()


def test_classes_are_recorded_once_behind_the_first_run(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    archives = tmp_path / "archives"
    with scheduler(postgres, tmp_path, f"class_archive={archives}") as process:
        first = ask(connection)
        ends(connection, first, "succeeded", process)
        wait_for(lambda: "classes is ready" in process.log, "the classes to be recorded", process)
        recorder = int((archives / "recorded").read_text())
        second = ask(connection, minutes=1)
        ends(connection, second, "succeeded", process)
        assert recorder != worker_of(process, first) == worker_of(process, second)
        wait_for(lambda: not is_alive(recorder), "the process that recorded to end", process)
        assert (archives / "recorded").read_text() == f"{recorder}\n"


def test_without_an_archive_or_on_a_cluster_nothing_is_recorded(
    postgres: PostgresServer, connection: Connection, tmp_path: Path
) -> None:
    changes = (f"class_archive={tmp_path / 'archives'}", "master=spark://127.0.0.1:1")
    with scheduler(postgres, tmp_path, *changes) as process:
        ends(connection, ask(connection), "succeeded", process)
        ends(connection, ask(connection, minutes=1), "succeeded", process)
        assert not (tmp_path / "class-archive.log").exists()
