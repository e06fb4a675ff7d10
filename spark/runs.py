"""The tables of runs and schedules. Each run of a job is a row, which decides who may write results.

States of a row:

    queued ──claim──▶ running ──publish (results.py)──▶ succeeded
      ▲                  │
      │                  ├──fail──▶ failed, timed_out      no attempt is left, or a retry can't succeed
      └──────────────────┴──fail, requeue──                then it waits for the pause since finished_at

`attempt` counts the claims, and fences off old attempts. Every write of a job has the condition `status = 'running' AND
attempt = …`. So a job that was declared dead (its machine slept, its heartbeats stopped) can't overwrite the results of
its successor.

All times are the server's, so the clocks of machines need not agree. Concurrency: one thread uses a Runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from spark.postgres import Connection, lock_key

ERROR_CHARACTERS_MAX: Final = 2_000
QUEUED_MAX: Final = 100
"""The limit for the queued runs that one turn reads."""
PRUNED_MAX: Final = 100
"""The limit for the runs that one call of `prune` deletes. Each has a page of up to 2 MB."""
REMOVED: Final = ":removed"
"""The end of the job's name of a run that is being deleted. Readers ask for the runs of a job, so they don't find it."""

_COLUMNS: Final = (
    "id, job, window_start, window_end, trigger, requested_by, status, attempt, error, created_at, started_at"
)
_SELECT: Final = "SELECT " + _COLUMNS + " FROM report_runs"  # noqa: S608 - constants of this module.
_SELECT_WAITING: Final = "SELECT " + _COLUMNS + ", finished_at, clock_timestamp() FROM report_runs"  # noqa: S608
_CLAIM: Final = (
    "UPDATE report_runs SET status = 'running', attempt = attempt + 1, started_at = clock_timestamp(),"  # noqa: S608
    " heartbeat_at = clock_timestamp(), finished_at = NULL, error = NULL, rows = NULL, files = NULL,"
    " progress_percent = NULL, progress = NULL"
    " WHERE id = %s AND status = 'queued' AND NOT EXISTS"
    " (SELECT 1 FROM report_runs AS other WHERE other.job = report_runs.job AND other.status = 'running')"
    " RETURNING " + _COLUMNS
)

# A person may have repeated the very window that the schedule would cover next.
_COVERED: Final = (
    "WITH RECURSIVE covered (until) AS ("
    "SELECT max(window_end) FROM report_runs"
    " WHERE job = %(job)s AND status = 'succeeded' AND window_start IS NOT NULL AND trigger = 'schedule'"
    " UNION SELECT (SELECT max(window_end) FROM report_runs WHERE job = %(job)s AND status = 'succeeded'"
    " AND window_start <= covered.until AND window_end > covered.until) FROM covered WHERE covered.until IS NOT NULL"
    ") SELECT max(until) FROM covered"
)

# The rows and the page of a run are deleted with it. After a long absence there are millions, and the scheduler's
# statements have a short time limit.
_OLD: Final = (
    "WITH last AS (SELECT DISTINCT ON (job) id FROM report_runs WHERE status = 'succeeded'"
    " ORDER BY job, finished_at DESC),"
    " old AS (SELECT id, job, coalesce(rows, 0) AS own, finished_at,"
    " sum(coalesce(rows, 0)) OVER (ORDER BY finished_at, id) - coalesce(rows, 0) AS before"
    " FROM report_runs WHERE status IN ('succeeded', 'failed', 'timed_out')"
    " AND finished_at < clock_timestamp() - %(age)s AND id NOT IN (SELECT id FROM last) AND job NOT LIKE '%%:removed')"
)
_PRUNE: Final = (
    _OLD + " DELETE FROM report_runs WHERE id IN"  # noqa: S608 - constants of this module.
    " (SELECT id FROM old WHERE before + own <= %(rows_max)s ORDER BY finished_at, id LIMIT %(runs_max)s)"
    " RETURNING id, job"
)
# Only the oldest run, so that runs are deleted in their order.
_HIDE: Final = (
    _OLD + " UPDATE report_runs SET job = job || ':removed', progress = NULL WHERE id ="  # noqa: S608 - constants of this module.
    " (SELECT id FROM old WHERE before = 0 AND own > %(rows_max)s ORDER BY finished_at, id LIMIT 1) RETURNING id"
)
_HIDDEN: Final = "SELECT id, job, progress FROM report_runs WHERE job LIKE '%:removed' ORDER BY finished_at, id LIMIT 1"
# In the order of the index, from where the last piece began: Postgres would read all of the deleted rows again, from the
# beginning of the table. It reads only the last piece again, and that marks its entries of the index as dead. So the
# last statement, which deletes the run, skips them.
_PRUNE_PIECE: Final = (
    "WITH gone AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM {table} WHERE run_id = %(run)s AND group_name >= %(start)s ORDER BY group_name LIMIT %(rows_max)s"
    ")) RETURNING group_name) SELECT min(group_name) FROM gone"
)
_TABLES_OF_ROWS: Final = {"lag_report": "report_lag_rows", "backlog_profile": "report_backlog_rows"}


@dataclass(frozen=True, slots=True)
class Run:
    """A row of report_runs, with the columns that jobs and the scheduler need."""

    id: UUID
    job: str
    window_start: datetime | None
    window_end: datetime
    trigger: str
    requested_by: str | None
    status: str
    attempt: int
    error: str | None
    created_at: datetime
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A queued run. `since_failure_ms` is the time since its last failure; None if it has not failed yet."""

    run: Run
    since_failure_ms: int | None


class CronSchedule(NamedTuple):
    """A cron expression, and the time zone of its hours and days."""

    cron: str
    time_zone: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """A row of report_schedules: a schedule that is in force."""

    job: str
    cron: str
    time_zone: str
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run whose rows were deleted. Its files still exist."""

    id: UUID
    job: str


class Pruning(NamedTuple):
    """The result of a call of `prune`: the runs that are deleted now, and whether the next call may find more."""

    runs: Sequence[PrunedRun]
    is_more: bool


class Runs:
    """Reads and writes runs over one connection in autocommit mode. Every method raises psycopg.Error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def request(
        self,
        job: str,
        *,
        window_start: datetime | None,
        window_end: datetime,
        trigger: str,
        requested_by: str | None = None,
    ) -> tuple[Run, bool]:
        """Queue a run, unless the job has a run with this window already; return the row, and whether it is new."""
        run_id = uuid4()
        self._connection.execute(
            "INSERT INTO report_runs (id, job, window_start, window_end, trigger, requested_by, status, attempt, created_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, 'queued', 0, now())"
            " ON CONFLICT (job, window_start, window_end) DO NOTHING",
            (run_id, job, window_start, window_end, trigger, requested_by),
        )
        row = self._connection.execute(
            _SELECT + " WHERE job = %s AND window_start IS NOT DISTINCT FROM %s AND window_end = %s",
            (job, window_start, window_end),
        ).fetchone()
        assert row is not None, "nobody deletes a queued run"
        run = Run(*row)
        return run, run.id == run_id

    def find(self, run_id: UUID) -> Run | None:
        """Return a run; None if it does not exist."""
        row = self._connection.execute(
            _SELECT + " WHERE id = %s",
            (run_id,),
        ).fetchone()
        return None if row is None else Run(*row)

    def queued(self) -> list[QueuedRun]:
        """Return at most QUEUED_MAX queued runs: first the runs that people requested, then by age."""
        rows = self._connection.execute(
            _SELECT_WAITING + " WHERE status = 'queued' ORDER BY trigger = 'manual' DESC, created_at, id LIMIT %s",
            (QUEUED_MAX,),
        ).fetchall()
        return [QueuedRun(Run(*row[:-2]), _ms_between(row[-2], row[-1])) for row in rows]

    def running(self) -> list[Run]:
        """Return the running runs of all processes."""
        rows = self._connection.execute(_SELECT + " WHERE status = 'running'").fetchall()
        return [Run(*row) for row in rows]

    def is_waiting(self, job: str) -> bool:
        """Return whether a scheduled run of a job is queued or running. Then another one is not needed yet."""
        return (
            self._connection.execute(
                "SELECT 1 FROM report_runs WHERE job = %s AND status IN ('queued', 'running') AND trigger = 'schedule' LIMIT 1",
                (job,),
            ).fetchone()
            is not None
        )

    def claim(self, run_id: UUID) -> Run | None:
        """Claim a queued run; return None if it is not queued any more, or if another run of its job is running."""
        with self._connection.transaction():
            row = self._connection.execute("SELECT job FROM report_runs WHERE id = %s", (run_id,)).fetchone()
            if row is None:
                return None
            # Two claims at the same time would not see each other's row, so each job has at most one claim at a time.
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(f"report.{row[0]}"),))
            row = self._connection.execute(_CLAIM, (run_id,)).fetchone()
        return None if row is None else Run(*row)

    def heartbeat(self, run_id: UUID, attempt: int, *, percent: int | None, step: str | None) -> bool:
        """Record a heartbeat and progress; return False if the run no longer belongs to this attempt."""
        done = self._connection.execute(
            "UPDATE report_runs SET heartbeat_at = clock_timestamp(), progress_percent = %s, progress = %s"
            " WHERE id = %s AND attempt = %s AND status = 'running'",
            (percent, step, run_id, attempt),
        )
        return done.rowcount == 1

    def finish(self, run_id: UUID, attempt: int, *, rows: int, files: Mapping[str, str]) -> bool:
        """Record success; return False if the run no longer belongs to this attempt: results must not be kept then."""
        done = self._connection.execute(
            "UPDATE report_runs SET status = 'succeeded', finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(),"
            " rows = %s, files = %s, error = NULL, progress_percent = 100, progress = NULL"
            " WHERE id = %s AND attempt = %s AND status = 'running'",
            (rows, Jsonb(dict(files)), run_id, attempt),
        )
        return done.rowcount == 1

    def fail(self, run_id: UUID, attempt: int, error: str, *, status: str = "failed", requeue: bool = False) -> bool:
        """Record a failure: final with `status`, or with a retry. Return False if the attempt has ended already."""
        assert status in ("failed", "timed_out"), status
        done = self._connection.execute(
            "UPDATE report_runs SET status = %s, finished_at = clock_timestamp(), error = %s, progress = NULL"
            " WHERE id = %s AND attempt = %s AND status = 'running'",
            ("queued" if requeue else status, error[:ERROR_CHARACTERS_MAX], run_id, attempt),
        )
        return done.rowcount == 1

    def try_again(self, run_id: UUID, attempt: int) -> bool:
        """Queue a run again after its attempt has recorded a failure. The error stays visible."""
        done = self._connection.execute(
            "UPDATE report_runs SET status = 'queued' WHERE id = %s AND attempt = %s AND status = 'failed'",
            (run_id, attempt),
        )
        return done.rowcount == 1

    def requeue(self, run_id: UUID, *, also_succeeded: bool = False) -> bool:
        """Queue a run with a final failure again, without a pause. `attempt` is not reset, because it is the fence.

        Args:
            run_id: The run.
            also_succeeded: Whether to do this for a run that has succeeded, too.
        """
        done = self._connection.execute(
            "UPDATE report_runs SET status = 'queued', finished_at = NULL"
            " WHERE id = %s AND (status IN ('failed', 'timed_out') OR (%s AND status = 'succeeded'))",
            (run_id, also_succeeded),
        )
        return done.rowcount == 1

    def release(self, run_id: UUID, attempt: int) -> bool:
        """Queue a run again whose attempt was interrupted for no fault of its own. The attempt does not count."""
        done = self._connection.execute(
            "UPDATE report_runs SET status = 'queued', attempt = attempt - 1, started_at = NULL, heartbeat_at = NULL,"
            " finished_at = NULL, progress_percent = NULL, progress = NULL"
            " WHERE id = %s AND attempt = %s AND status = 'running'",
            (run_id, attempt),
        )
        return done.rowcount == 1

    def stale(self, *, after_ms: int) -> list[Run]:
        """Return the running runs without a heartbeat for this time."""
        rows = self._connection.execute(
            _SELECT
            + " WHERE status = 'running' AND coalesce(heartbeat_at, started_at, created_at) < clock_timestamp() - %s",
            (timedelta(milliseconds=after_ms),),
        ).fetchall()
        return [Run(*row) for row in rows]

    def covered_until(self, job: str) -> datetime | None:
        """Return the time up to which runs have covered a job's schedule without a gap; None if nothing is covered.

        It is the end of the latest window of a scheduled run, or of the windows that people requested from there on.
        """
        row = self._connection.execute(_COVERED, {"job": job}).fetchone()
        assert row is not None
        end: datetime | None = row[0]
        return end

    def last_began(self, job: str) -> datetime | None:
        """Return the start time of the last successful run of a job; None if there is none."""
        row = self._connection.execute(
            "SELECT max(started_at) FROM report_runs WHERE job = %s AND status = 'succeeded'", (job,)
        ).fetchone()
        assert row is not None
        began: datetime | None = row[0]
        return began

    def prune(self, *, older_than: timedelta, rows_max: int) -> Pruning:
        """Delete runs that ended long ago, except the last success of each job.

        A run with more than `rows_max` rows takes several calls: the first one hides the run from all readers, because
        they must not find a part of a report. The next calls delete its rows, and then the run itself.

        Args:
            older_than: The age at which runs are deleted.
            rows_max: The limit for the rows that one call deletes.
        """
        hidden = self._connection.execute(_HIDDEN).fetchone()
        if hidden is not None:
            run_id, job, start = hidden
            return self._prune_hidden(run_id, job.removesuffix(REMOVED), start, rows_max)
        given = {"age": older_than, "rows_max": rows_max, "runs_max": PRUNED_MAX}
        pruned = [PrunedRun(*row) for row in self._connection.execute(_PRUNE, given).fetchall()]
        is_hiding = not pruned and self._connection.execute(_HIDE, given).rowcount > 0
        return Pruning(pruned, is_more=bool(pruned) or is_hiding)

    def _prune_hidden(self, run_id: UUID, job: str, start: str | None, rows_max: int) -> Pruning:
        table = _TABLES_OF_ROWS.get(job)
        if table is not None:
            given = {"run": run_id, "start": start or "", "rows_max": rows_max}
            row = self._connection.execute(_PRUNE_PIECE.format(table=table), given).fetchone()
            if row is not None and row[0] is not None:
                self._connection.execute("UPDATE report_runs SET progress = %s WHERE id = %s", (row[0], run_id))
                return Pruning((), is_more=True)
        self._connection.execute("DELETE FROM report_runs WHERE id = %s", (run_id,))
        return Pruning((PrunedRun(run_id, job),), is_more=True)

    def prune_throughput(self, *, older_than: Mapping[str, timedelta], limit: int) -> int:
        """Delete old buckets of report_throughput, at most `limit` of each unit; return the number of deleted rows.

        Args:
            older_than: The age at which buckets are deleted, by unit.
            limit: The limit. A day of a large cluster has millions of buckets, and the next call continues.
        """
        deleted = 0
        for unit, age in older_than.items():
            deleted += self._connection.execute(
                "DELETE FROM report_throughput WHERE ctid = ANY(ARRAY(SELECT ctid FROM report_throughput"
                " WHERE unit = %s AND bucket_at < clock_timestamp() - %s ORDER BY bucket_at LIMIT %s))",
                (unit, age, limit),
            ).rowcount
        return deleted

    def prune_alerts(self, *, events_older_than: timedelta, deliveries_older_than: timedelta, limit: int) -> int:
        """Delete old events of alerts and old deliveries to webhooks, at most `limit` of each; return their number."""
        deleted = 0
        for table, moment, age in (
            ("alert_events", "at", events_older_than),
            ("webhook_deliveries", "created_at", deliveries_older_than),
        ):
            deleted += self._connection.execute(
                f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}"  # noqa: S608 - constants.
                f" WHERE {moment} < clock_timestamp() - %s ORDER BY {moment} LIMIT %s))",
                (age, limit),
            ).rowcount
        return deleted

    def schedules(self) -> dict[str, Schedule]:
        """Return the stored schedules by job, as the last scheduler has written them."""
        rows = self._connection.execute("SELECT job, cron, time_zone, next_run_at FROM report_schedules").fetchall()
        return {row[0]: Schedule(*row) for row in rows}

    def schedules_set(self) -> dict[str, CronSchedule | None]:
        """Return the schedules that were set over REST, by job; None: the job runs on demand only."""
        rows = self._connection.execute("SELECT job, cron, time_zone FROM report_schedules_set").fetchall()
        return {job: None if cron is None else CronSchedule(cron, time_zone) for job, cron, time_zone in rows}

    def write_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Replace the stored schedules."""
        with self._connection.transaction():
            self._connection.execute(
                "DELETE FROM report_schedules WHERE job <> ALL(%s)", ([schedule.job for schedule in schedules],)
            )
            for schedule in schedules:
                self._connection.execute(
                    "INSERT INTO report_schedules (job, cron, time_zone, next_run_at, updated_at)"
                    " VALUES (%s, %s, %s, %s, now()) ON CONFLICT (job) DO UPDATE SET cron = excluded.cron,"
                    " time_zone = excluded.time_zone, next_run_at = excluded.next_run_at,"
                    " updated_at = excluded.updated_at",
                    (schedule.job, schedule.cron, schedule.time_zone, schedule.next_run_at),
                )


def _ms_between(start: datetime | None, end: datetime) -> int | None:
    return None if start is None else (end - start) // timedelta(milliseconds=1)
