"""Reports the state of a run to the database: its start, heartbeats, progress, and its end.

Without a database, a job runs in the same way and reports nothing.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol, Self
from uuid import UUID, uuid4

import psycopg

from gantry.model.alert import AlertSettings
from gantry.runtime.telemetry import logger
from spark.jobs.arguments import Arguments
from spark.postgres import connect
from spark.results import Rows, Table, publish
from spark.runs import Run, Runs

log = logger("spark.jobs")

BEAT_EVERY_S: Final = 5.0
COMMAND_LINE: Final = "command line"


class RunRefusedError(Exception):
    """This process can't take the run; the message says why."""


class DoneAlreadyError(Exception):
    """A run of this job has already covered the same window."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"run {run.id} has done this window already")
        self.run = run


class Ledger(Protocol):
    """The receiver of a job's progress and results."""

    run: Run

    def step(self, percent: int, text: str) -> None:
        """Set the progress and the name of the next step. The next heartbeat reports them."""
        ...

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Publish the results. If it raises FencedError or psycopg.Error, nothing was written."""
        ...

    def fail(self, reason: str) -> None:
        """Record the reason of a failure. If that fails, too, the scheduler notices the missing heartbeats."""
        ...

    def close(self) -> None:
        """Stop the heartbeats."""
        ...


class NoLedger:
    """A ledger for a run that is not kept."""

    def __init__(self, job: str, arguments: Arguments, now: datetime) -> None:
        window = arguments.window
        self.run = Run(
            id=uuid4(),
            job=job,
            window_start=window.start if window else None,
            window_end=window.end if window else now,
            trigger="manual",
            requested_by=COMMAND_LINE,
            status="running",
            attempt=1,
            error=None,
            created_at=now,
            started_at=now,
        )

    def step(self, percent: int, text: str) -> None:
        """Write the step to the log."""
        log.info(text, percent=percent)

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Do nothing: the files are the only result."""

    def fail(self, reason: str) -> None:
        """Do nothing: the exit code reports the failure."""

    def close(self) -> None:
        """Do nothing: no connection is open."""


class RunLedger:
    """A run in the table report_runs, with a thread that sends a heartbeat every BEAT_EVERY_S.

    Concurrency: only the job's thread calls the methods. The heartbeats have their own connection.
    """

    def __init__(self, url: str, run: Run, alerts: AlertSettings | None) -> None:
        self.run = run
        self._url = url
        self._alerts = alerts
        self._percent: int | None = None
        self._step: str | None = None
        self._is_ended = threading.Event()
        self._is_news = threading.Event()
        # The thread is a daemon, so that a job can end while the server hangs.
        self._thread = threading.Thread(target=self._heartbeat_loop, name="heartbeats", daemon=True)

    @classmethod
    def begin(cls, job: str, arguments: Arguments, now: datetime, *, is_repeatable: bool = False) -> Self:
        """Claim the run that the arguments name, or a new run.

        Raises:
            RunRefusedError: Another process has the run, or another run of this job is running.
            DoneAlreadyError: A run has already covered the window, and the job is not repeatable.
            psycopg.Error: The database does not answer.
        """
        assert arguments.database is not None
        with connect(arguments.database, application=f"gantry-{job}") as connection:
            runs = Runs(connection)
            if arguments.run_id is None:
                with connection.transaction():
                    run = _new_run(runs, job, arguments, now, is_repeatable=is_repeatable)
            else:
                run = _claimed_run(runs, job, arguments.run_id, arguments.attempt)
        ledger = cls(arguments.database, run, arguments.alerts)
        ledger._thread.start()
        return ledger

    def step(self, percent: int, text: str) -> None:
        """Set the progress and the name of the next step, and send a heartbeat at once."""
        log.info(text, percent=percent)
        self._percent, self._step = percent, text
        self._is_news.set()

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Publish the results."""
        with connect(self._url, application=f"gantry-{self.run.job}") as connection:
            publish(
                connection,
                table,
                run_id=self.run.id,
                attempt=self.run.attempt,
                rows=rows,
                page=page,
                files=files,
                alerts=self._alerts,
                began_at=self.run.started_at,
            )

    def fail(self, reason: str) -> None:
        """Record the reason of a failure."""
        with suppress(psycopg.Error), connect(self._url, application=f"gantry-{self.run.job}") as connection:
            Runs(connection).fail(self.run.id, self.run.attempt, reason)

    def close(self) -> None:
        """Stop the heartbeats."""
        self._is_ended.set()
        self._is_news.set()
        self._thread.join(BEAT_EVERY_S)

    def _heartbeat_loop(self) -> None:
        while not self._is_ended.is_set():
            # Go on after a failure: the server may be back before the scheduler declares this run lost.
            with suppress(psycopg.Error), connect(self._url, application="gantry-heart-beats") as connection:
                runs = Runs(connection)
                while not self._is_ended.is_set():
                    self._is_news.clear()
                    runs.heartbeat(self.run.id, self.run.attempt, percent=self._percent, step=self._step)
                    self._is_news.wait(BEAT_EVERY_S)
            self._is_ended.wait(BEAT_EVERY_S)


def _claimed_run(runs: Runs, job: str, run_id: UUID, attempt: int | None) -> Run:
    run = runs.find(run_id)
    if run is None:
        raise RunRefusedError(f"there is no run {run_id}")
    if run.job != job:
        raise RunRefusedError(f"run {run_id} is one of {run.job}")
    if attempt is not None:
        if (run.status, run.attempt) != ("running", attempt):
            raise RunRefusedError(f"run {run_id} is {run.status} in attempt {run.attempt}, not running in {attempt}")
        return run
    claimed = runs.claim(run_id)
    if claimed is None:
        raise RunRefusedError(f"run {run_id} is {run.status}, or another run of {job} is running")
    return claimed


def _new_run(runs: Runs, job: str, arguments: Arguments, now: datetime, *, is_repeatable: bool) -> Run:
    window = arguments.window
    run, is_new = runs.request(
        job,
        window_start=window.start if window else None,
        window_end=window.end if window else now,
        trigger="manual",
        requested_by=COMMAND_LINE,
    )
    if not is_new and run.status == "succeeded" and not is_repeatable:
        raise DoneAlreadyError(run)
    if not is_new:
        runs.requeue(run.id, also_succeeded=is_repeatable)
    # Claim it in the transaction that made it, so that the scheduler can't take it in between.
    claimed = runs.claim(run.id)
    if claimed is None:
        raise RunRefusedError(f"another run of {job} is running: wait for its end, or follow that one")
    return claimed


def utc_of(moment: datetime) -> str:
    """Return a time in the format of the REST API."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
