"""Runs a job: from its command line to rows, Parquet file, page and exit code.

Exit codes: 0 done; 1 failed (the last line on stderr is the reason); 2 the command line is invalid; 3 failed, and a
retry can't succeed until something is changed.
"""

import argparse
import json
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pyspark.sql import SparkSession

from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.environment import lower_priority, process_environment
from gantry.runtime.errors import StartupError
from gantry.runtime.telemetry import configure_logging
from spark.datasource.options import SURVEY
from spark.fedframes import plan_as_usual
from spark.jobs.arguments import Arguments, Window, make_parser, read_arguments, source_options
from spark.jobs.failures import FAILED, failure_of
from spark.jobs.job import Job, JobContext
from spark.jobs.ledger import DoneAlreadyError, Ledger, NoLedger, RunLedger, utc_of
from spark.jobs.surveying import start_survey
from spark.lagsamples import remove_samples
from spark.master import is_local_master
from spark.outputs import open_output
from spark.page import prepare_drawing, render
from spark.pagerows import page_rows
from spark.parquet import store_rows
from spark.results import Row
from spark.runs import Run
from spark.session import SessionSettings, open_session
from spark.storedrows import Finished, StoredRows, complete

REPORT_NICENESS: Final = 10
"""Spark uses all cores. Clients and brokers on the same machine have priority over a report."""


@dataclass(frozen=True, slots=True)
class RunResults:
    """The results of a run."""

    run_id: UUID
    rows: StoredRows = field(repr=False)
    """They are read from the spool folder, so they can be used until it is removed."""
    files: Mapping[str, str]


def main(
    job: Job, given: Sequence[str] | None = None, *, clock: Clock | None = None, keeps_session: bool = False
) -> int:
    """Run a job's command line; return the exit code.

    Args:
        job: The job.
        given: The arguments; None for those of this process.
        clock: The clock; by default that of the machine.
        keeps_session: Whether to leave the Spark session open for the next run of this process.
    """
    configure_logging(service=job.name)
    clock = clock or SystemClock()
    try:
        arguments = read_arguments(_parser(job), given, process_environment())
        ledger = _begin(job, arguments, _now(clock))
    except DoneAlreadyError as already:
        print(f"{job.name}: {already}")  # noqa: T201 - the result for the person at the command line.
        return 0
    except Exception as error:  # noqa: BLE001 # boundary: every failure of a job ends with one line.
        return _print_failure(job, error)
    with tempfile.TemporaryDirectory(prefix="gantry-rows-", ignore_cleanup_errors=True) as spool:
        try:
            done = run_job(job, arguments, ledger, clock, spool=Path(spool), keeps_session=keeps_session)
        except KeyboardInterrupt:
            ledger.fail("interrupted")
            return 130
        except Exception as error:  # noqa: BLE001 # boundary: every failure of a job ends with one line.
            failure = failure_of(error)
            ledger.fail(failure.reason if failure else _describe_bug(error))
            return _print_failure(job, error)
        finally:
            ledger.close()
        _print_rows(job, arguments, done)
    return 0


def run_job(
    job: Job, arguments: Arguments, ledger: Ledger, clock: Clock, *, spool: Path, keeps_session: bool
) -> RunResults:
    """Compute the rows, write the files, and publish all of it in one step.

    Memory: rows pass through this process in pieces. It only holds the rows of the page at once (spark.pagerows).

    Raises any error of its steps. Then no result is kept.
    """
    run = ledger.run
    if SparkSession.getActiveSession() is None:
        ledger.step(5, "starting Spark")
    surveyed = start_survey(source_options(arguments, SURVEY)) if job.surveys else None
    spark = _session(job, arguments)
    try:
        now = _now(clock)
        output = open_output(spark, arguments.output, job=job.name, run_id=run.id, day=now)
        is_kept = False
        try:
            ledger.step(20, "reading")
            frame = job.compute(JobContext(spark, arguments, run, now, ledger.step, surveyed))
            # This does not run while the JVM starts, because it would delay that. Now this process waits for the JVM
            # anyway.
            threading.Thread(target=prepare_drawing, name="drawing", daemon=True).start()
            computed = StoredRows(store_rows(frame, spool / "computed"), json=job.table.json)
            ledger.step(80, "writing results")
            finished = Finished() if job.finish is None else job.finish(arguments, computed, now)
            completed = spool / "completed.parquet"
            rows = complete(computed, completed, finished)
            page = _page(job, run, rows, history=finished.history, ended=_now(clock))
            output.write(completed, page)
            files = {"html": output.html, "parquet": output.parquet}
            ledger.succeed(job.table, rows, page=page, files=files)
            is_kept = True
            output.remove_others(arguments.removed)
        finally:
            if not is_kept:
                output.remove()
    finally:
        if not keeps_session:
            spark.stop()
    if keeps_session:
        spark.catalog.clearCache()
        remove_samples()
        plan_as_usual(spark)
    return RunResults(run.id, rows, files)


def get_ready(job: Job, given: Sequence[str]) -> int:
    """Open the Spark session of a run that will be asked for soon, and rehearse the job in it; return the exit code.

    Args:
        job: The job of that run.
        given: The arguments that all runs of this job get from the scheduler.
    """
    configure_logging(service=job.name)
    try:
        arguments = read_arguments(_parser(job), given, process_environment())
        rehearse(job, _session(job, arguments))
        prepare_drawing()
    except Exception as error:  # noqa: BLE001 # boundary: the run itself will fail in the same way and record it.
        return _print_failure(job, error)
    return 0


def rehearse(job: Job, spark: SparkSession) -> None:
    """Run a job without rows, if it has a rehearsal. Raises OSError and PySparkException."""
    if job.rehearse is not None:
        with tempfile.TemporaryDirectory(prefix="gantry-rows-", ignore_cleanup_errors=True) as spool:
            store_rows(job.rehearse(spark), Path(spool) / "computed")
        plan_as_usual(spark)


def run_view(run: Run, ended: datetime) -> dict[str, Any]:
    """Return a run in the form of the REST API, as it is at its end."""
    started = run.started_at or run.created_at
    window = None if run.window_start is None else {"from": utc_of(run.window_start), "to": utc_of(run.window_end)}
    return {
        "id": str(run.id),
        "job": run.job,
        "window": window,
        "trigger": run.trigger,
        "attempt": run.attempt,
        "created_at": utc_of(run.created_at),
        "started_at": utc_of(started),
        "finished_at": utc_of(ended),
        "duration_ms": max(0, (ended - started) // timedelta(milliseconds=1)),
    }


def refuse_future(window: Window | None, now: datetime, *, settled_after: timedelta = timedelta(0)) -> None:
    """Raise StartupError if a window ends in the future, or so recently that some of its data is not there yet.

    Args:
        window: The window; None if there is none.
        now: The time.
        settled_after: The time after the end of a window from which all of its data is there.
    """
    if window is not None and window.end > now:
        raise StartupError(f"--to: {utc_of(window.end)} lies in the future: it is {utc_of(now)}")
    if window is not None and window.end + settled_after > now:
        ready = utc_of(window.end + settled_after)
        raise StartupError(f"--to: {utc_of(window.end)} is too recent: its samples are complete at {ready}")


def _parser(job: Job) -> argparse.ArgumentParser:
    return make_parser(job.name, job.description, window_help=job.window_help, add_arguments=job.add_arguments)


def _session(job: Job, arguments: Arguments) -> SparkSession:
    if SparkSession.getActiveSession() is None and is_local_master(arguments.master or ""):
        lower_priority(REPORT_NICENESS)
    settings = SessionSettings(is_brief=True, has_source=False, class_archive=arguments.class_archive)
    return open_session(f"gantry {job.name}", master=arguments.master, settings=settings)


def _begin(job: Job, arguments: Arguments, now: datetime) -> Ledger:
    if job.needs_database and arguments.database is None:
        raise StartupError(
            f"{job.name} is made from samples in Postgres: give the database with --database URL or --data DIR"
        )
    refuse_future(arguments.window, now, settled_after=job.settled_after)
    # If a report on some groups were kept, readers would take it for a report on the whole cluster.
    if arguments.database is None or arguments.groups:
        return NoLedger(job.name, arguments, now)
    return RunLedger.begin(job.name, arguments, now, is_repeatable=job.is_repeatable)


def _page(job: Job, run: Run, rows: StoredRows, *, history: Sequence[Row], ended: datetime) -> str:
    page = page_rows(rows, job=job.name, ranking=job.ranking)
    about = run_view(run, ended)
    return render(job.page, page.rows, history=history, generated_at=ended, run=about, left_out=page.left_out)


def _print_failure(job: Job, error: Exception) -> int:
    failure = failure_of(error)
    if failure is None:
        traceback.print_exception(error)
    print(f"{job.name}: {failure.reason if failure else _describe_bug(error)}", file=sys.stderr)  # noqa: T201
    return failure.code if failure else FAILED


def _describe_bug(error: Exception) -> str:
    return f"an error in the job's code: {type(error).__name__}: {error}"


def _print_rows(job: Job, arguments: Arguments, done: RunResults) -> None:
    if not arguments.as_json:
        print(f"{job.name}: {len(done.rows)} rows; {done.files['html']}")  # noqa: T201
        return
    head = json.dumps({"run": str(done.run_id), "job": job.name, "files": done.files}, ensure_ascii=False)
    # Rows are printed one by one, because the text of all rows would take much memory.
    print(f'{head[:-1]}, "items": [', end="")  # noqa: T201
    for index, row in enumerate(done.rows):
        print(", " if index else "", json.dumps(row, default=_plain, ensure_ascii=False), sep="", end="")  # noqa: T201
    print("]}")  # noqa: T201


def _plain(value: Any) -> Any:
    return utc_of(value) if isinstance(value, datetime) else str(value)


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1_000, UTC)
