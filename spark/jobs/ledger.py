"""A job's side of its run: begun, alive, so far done, and ended one way or another.

Where there is no database a job works all the same, with nobody to tell.
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
    """The run can't be done by this process; the message says why."""


class DoneAlreadyError(Exception):
    """This job has done this very window."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"run {run.id} has done this window already")
        self.run = run


class Ledger(Protocol):
    """Where a job says how far it is."""

    run: Run

    def step(self, percent: int, text: str) -> None:
        """Say what comes next; told with the next heart-beat."""
        ...

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Make the results the latest ones. Raises FencedError, psycopg.Error: nothing was written."""
        ...

    def fail(self, reason: str) -> None:
        """Say why it failed; where even that fails, the scheduler finds out."""
        ...

    def close(self) -> None:
        """Stop the heart-beats."""
        ...


class NoLedger:
    """A run that nobody keeps."""

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
        """Write it to the log."""
        log.info(text, percent=percent)

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Files are all there is."""

    def fail(self, reason: str) -> None:
        """The exit code says it."""

    def close(self) -> None:
        """Nothing is open."""


class RunLedger:
    """A run in report_runs, with a thread that says every BEAT_EVERY_S that it lives.

    Concurrency: the methods belong to the job's thread; the heart-beats have a connection of their own.
    """

    def __init__(self, url: str, run: Run, alerts: AlertSettings | None) -> None:
        self.run = run
        self._url = url
        self._alerts = alerts
        self._percent: int | None = None
        self._step: str | None = None
        self._is_ended = threading.Event()
        self._is_news = threading.Event()
        # A daemon: a hanging server must not keep a job from ending.
        self._thread = threading.Thread(target=self._beat_until_ended, name="heart-beats", daemon=True)

    @classmethod
    def begin(cls, job: str, arguments: Arguments, now: datetime) -> Self:
        """Take on the run that the arguments name, or a new one.

        Raises:
            RunRefusedError: Somebody else has it, or another run of this job is under way.
            DoneAlreadyError: A run has done the window.
            psycopg.Error: The database is away.
        """
        assert arguments.database is not None
        with connect(arguments.database, application=f"gantry-{job}") as connection:
            runs = Runs(connection)
            if arguments.run_id is None:
                with connection.transaction():
                    run = _new_run(runs, job, arguments, now)
            else:
                run = _claimed_run(runs, job, arguments.run_id, arguments.attempt)
        ledger = cls(arguments.database, run, arguments.alerts)
        ledger._thread.start()
        return ledger

    def step(self, percent: int, text: str) -> None:
        """Say what comes next; told with the next heart-beat, which comes at once."""
        log.info(text, percent=percent)
        self._percent, self._step = percent, text
        self._is_news.set()

    def succeed(self, table: Table, rows: Rows, *, page: str, files: Mapping[str, str]) -> None:
        """Make the results the latest ones."""
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
        """Say why it failed."""
        with suppress(psycopg.Error), connect(self._url, application=f"gantry-{self.run.job}") as connection:
            Runs(connection).fail(self.run.id, self.run.attempt, reason)

    def close(self) -> None:
        """Stop the heart-beats."""
        self._is_ended.set()
        self._is_news.set()
        self._thread.join(BEAT_EVERY_S)

    def _beat_until_ended(self) -> None:
        while not self._is_ended.is_set():
            # One that fails is no reason to end: the server may be back long before anybody gives us up.
            with suppress(psycopg.Error), connect(self._url, application="gantry-heart-beats") as connection:
                runs = Runs(connection)
                while not self._is_ended.is_set():
                    self._is_news.clear()
                    runs.beat(self.run.id, self.run.attempt, percent=self._percent, step=self._step)
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


def _new_run(runs: Runs, job: str, arguments: Arguments, now: datetime) -> Run:
    window = arguments.window
    run, is_new = runs.request(
        job,
        window_start=window.start if window else None,
        window_end=window.end if window else now,
        trigger="manual",
        requested_by=COMMAND_LINE,
    )
    if not is_new and run.status == "succeeded":
        raise DoneAlreadyError(run)
    if not is_new:
        runs.requeue(run.id)
    # In the transaction that made it: the scheduler must not see it in between and take it.
    claimed = runs.claim(run.id)
    if claimed is None:
        raise RunRefusedError(f"another run of {job} is running: wait for its end, or follow that one")
    return claimed


def utc_of(moment: datetime) -> str:
    """Return a time as the REST API writes it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
