"""A job's way from its command line to rows, Parquet and page, on a real Postgres; and every way to fail."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.java import JavaNotFoundError
from spark.jobs import ledger, running
from spark.jobs.job import JobContext
from spark.jobs.lag_report import JOB
from spark.jobs.running import main
from spark.postgres import Connection
from spark.runs import Runs
from spark.transforms.lag import LAG_REPORT_COLUMNS
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SCHEMA = (
    "level string, group string, topic string, broker string, queue_id int, as_of timestamp, lag_messages long,"
    "lag_seconds double, oldest_unconsumed_at timestamp, in_rate double, out_rate double, drain_eta_s double,"
    "drain_eta_low_s double, drain_eta_high_s double, retention_left_s double, skew double,"
    "top_tags array<struct<tag:string,messages:long>>, clients int, verdict string, cause string, next_step string,"
    "evidence string"
)
ROW: dict[str, Any] = {
    "level": "topic", "group": "PRICING", "topic": "FLIGHTS", "as_of": NOON, "lag_messages": 42, "lag_seconds": 61.5,
    "oldest_unconsumed_at": NOON - timedelta(seconds=61.5), "top_tags": [{"tag": "A\0A", "messages": 42}], "clients": 0,
    "verdict": "STOPPED", "cause": "Nobody is there.", "next_step": "Start one.", "evidence": '{"lag": 42}',
}  # fmt: skip


class Quiet:
    def info(self, event: str, **more: Any) -> None:
        """Do nothing: a job's log is for people."""


class Shared:
    """The tests' session, which a job must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Others need it."""


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with report_tables(postgres) as connected:
        yield connected


@pytest.fixture
def run(
    spark: SparkSession,
    postgres: PostgresServer,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., int]:
    """Run a job's command line in this process, with rows that a test chose."""
    monkeypatch.setattr(running, "configure_logging", lambda **rest: None)
    monkeypatch.setattr(ledger, "log", Quiet())
    monkeypatch.setattr(running, "open_session", lambda app, *, master, settings: Shared(spark))
    # This process has other tests to run.
    monkeypatch.setattr(running, "lower_priority", lambda niceness: None)

    def start(
        *given: str, rows: list[dict[str, Any]] | None = None, during: Callable[[JobContext], None] | None = None
    ) -> int:
        def compute(work: JobContext) -> DataFrame:
            if during is not None:
                during(work)
            found = [{**dict.fromkeys(LAG_REPORT_COLUMNS), **row} for row in ([ROW] if rows is None else rows)]
            return work.spark.createDataFrame(
                [tuple(row[name] for name in LAG_REPORT_COLUMNS) for row in found], SCHEMA
            )

        told = ["--database", postgres.url, "--output", str(tmp_path), *given]
        return main(replace(JOB, compute=compute, surveys=False, finish=None), told)

    return start


def last_run(connection: Connection) -> dict[str, Any]:
    row = connection.execute(
        "SELECT to_jsonb(report_runs) FROM report_runs ORDER BY created_at DESC LIMIT 1"
    ).fetchone()
    assert row is not None
    return dict(row[0])


def kept(connection: Connection) -> list[tuple[Any, ...]]:
    """The rows of reports, by run."""
    return connection.execute("SELECT run_id::text, lag_messages FROM report_lag_rows").fetchall()


def test_a_report_is_rows_a_page_and_a_parquet_file(
    spark: SparkSession, run: Callable[..., int], connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json") == 0
    done = last_run(connection)
    assert (done["status"], done["attempt"], done["rows"], done["progress_percent"]) == ("succeeded", 1, 1, 100)
    assert (done["trigger"], done["requested_by"]) == ("manual", "command line")
    row = connection.execute("SELECT * FROM report_lag_rows").fetchone()
    assert row is not None
    assert row[1:8] == ("topic", "PRICING", "FLIGHTS", None, None, NOON, 42)
    evidence = connection.execute("SELECT evidence, top_tags FROM report_lag_rows").fetchone()
    assert evidence == ({"lag": 42}, [{"tag": "A\N{SYMBOL FOR NULL}A", "messages": 42}])
    page = Path(done["files"]["html"]).read_text()
    assert connection.execute("SELECT html FROM report_pages").fetchone() == (page,)
    assert "PRICING" in page
    folder = Path(done["files"]["parquet"])
    assert folder.parent.name == f"day={datetime.now(UTC):%Y-%m-%d}"
    job = folder.parent.parent
    (written,) = spark.read.option("basePath", str(job)).parquet(f"{job}/day=*").toArrow().to_pylist()
    assert (written["group"], written["as_of"], written["run"]) == ("PRICING", NOON, done["id"])
    said = json.loads(capsys.readouterr().out)
    assert (said["run"], said["items"][0]["evidence"]) == (done["id"], {"lag": 42})
    assert said["items"][0]["as_of"] == "2026-11-21T12:00:00.000Z"


def test_the_page_and_the_number_of_rows_are_said(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rows=[]) == 0
    assert capsys.readouterr().out.startswith("lag_report: 0 rows; /")


def test_a_failure_leaves_the_report_before_it_in_place(
    run: Callable[..., int], connection: Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    before = last_run(connection)["id"]
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())

    def fail(work: JobContext) -> None:
        raise OSError(28, "No space left on device", "/out")

    assert run(during=fail) == 1
    failed = last_run(connection)
    assert (failed["status"], failed["error"], failed["files"]) == ("failed", "/out: No space left on device", None)
    assert capsys.readouterr().err.splitlines()[-1] == "lag_report: /out: No space left on device"
    assert kept(connection) == [(before, 42)]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files


def test_results_that_postgres_refuses_are_not_kept_in_part(
    run: Callable[..., int], connection: Connection, tmp_path: Path
) -> None:
    assert run() == 0
    before = last_run(connection)["id"]
    assert run(rows=[ROW, {**ROW, "topic": "OTHER", "level": "planet"}]) == 1
    failed = last_run(connection)
    assert failed["status"] == "failed"
    assert "23514" in failed["error"], "the check of levels"
    assert kept(connection) == [(before, 42)]
    assert not list(tmp_path.rglob(f"*{failed['id']}*.html"))
    assert not list(tmp_path.rglob(f"run={failed['id']}"))


def test_a_run_that_was_given_up_keeps_nothing(
    run: Callable[..., int], connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    def give_up(work: JobContext) -> None:
        assert Runs(connection).fail(work.run.id, work.run.attempt, "its process was lost", requeue=True)

    assert run(during=give_up) == 3
    assert "was given to another process" in capsys.readouterr().err
    assert kept(connection) == []
    assert (last_run(connection)["status"], last_run(connection)["error"]) == ("queued", "its process was lost")


def test_without_java_the_reason_says_what_to_install(
    run: Callable[..., int], connection: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(app: str, *, master: str, settings: Any) -> SparkSession:
        raise JavaNotFoundError("Spark needs Java: install a full Java 17")

    monkeypatch.setattr(running, "open_session", none)
    assert run() == 3
    assert capsys.readouterr().err.endswith("lag_report: Spark needs Java: install a full Java 17\n")
    assert last_run(connection)["error"] == "Spark needs Java: install a full Java 17"


def test_a_window_is_done_once(
    run: Callable[..., int], connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    window = ("--from", "2026-11-21T09:00:00Z", "--to", "2026-11-21T10:00:00Z")

    def fail(work: JobContext) -> None:
        raise OSError(5, "Input/output error")

    assert run(*window, during=fail) == 1
    assert run(*window) == 0
    assert run(*window) == 0
    assert "has done this window already" in capsys.readouterr().out
    assert last_run(connection)["attempt"] == 2
    assert len(kept(connection)) == 1


def test_a_run_of_the_scheduler_is_the_one_it_claimed(
    run: Callable[..., int], connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(connection)
    broker_queries, _ = runs.request("lag_report", window_start=None, window_end=NOON, trigger="schedule")
    assert run("--run", str(broker_queries.id), "--attempt", "1") == 3
    assert "is queued in attempt 0" in capsys.readouterr().err
    runs.claim(broker_queries.id)
    assert run() == 3, "one run of a job at a time"
    assert "another run of lag_report is running" in capsys.readouterr().err
    assert run("--run", str(broker_queries.id), "--attempt", "1") == 0
    assert last_run(connection)["trigger"] == "schedule"
    other, _ = runs.request("backlog_profile", window_start=None, window_end=NOON, trigger="manual")
    assert run("--run", str(other.id)) == 3
    assert run("--run", "00000000-0000-0000-0000-000000000009") == 3


def test_a_report_on_some_groups_is_not_the_clusters(
    run: Callable[..., int], connection: Connection, tmp_path: Path
) -> None:
    assert run("--group", "PRICING") == 0
    assert connection.execute("SELECT 1 FROM report_runs").fetchone() is None
    assert len(list(tmp_path.rglob("*.html"))) == 1


def test_its_progress_is_seen_while_it_works(run: Callable[..., int], connection: Connection) -> None:
    seen: list[tuple[Any, ...]] = []

    def look(work: JobContext) -> None:
        work.step(55, "reading something")
        deadline = datetime.now(UTC) + timedelta(seconds=20)
        while datetime.now(UTC) < deadline and (not seen or seen[-1][0] != 55):
            seen.extend(
                connection.execute("SELECT progress_percent, progress, heartbeat_at FROM report_runs").fetchall()
            )

    assert run(during=look) == 0
    assert seen[-1][:2] == (55, "reading something")
