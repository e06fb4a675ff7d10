"""One turn of the scheduler's work in Postgres: settle ended runs, queue due jobs, recover lost runs, claim runs.

A turn is synchronous and starts no processes: it returns the runs to start. Each step may run twice, or stop at any
statement, because the next turn reads the state from Postgres.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg

from gantry.cron import Cron, check_cron, check_timezone, decide_due, last_before, next_after, parse_cron
from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from spark.runs import CronSchedule, PrunedRun, Run, Runs, Schedule
from spark.scheduler.decide import (
    EndedRun,
    RunEnding,
    UpcomingRun,
    choose,
    decide_after,
    decide_ahead,
    decide_schedules,
)
from spark.scheduler.jobs import JOBS, ROWS_AT_ONCE
from spark.scheduler.leadership import Leadership
from spark.scheduler.settings import SchedulerSettings

log = logger("scheduler")

WINDOW_MAX = timedelta(days=90)
"""The limit for how far back a window begins after a long absence: samples are kept that long."""
PIECE_MAX = timedelta(hours=6)
"""The limit for the length of a window. Several runs, one after the other, cover a longer time: a run reads the samples
of its window into memory, and leaves some of them out if there are too many."""
PRUNE_EVERY_MS = 3_600_000
COMMAND_LINE = "command line"
"""The value of `requested_by` for runs that a person started by hand. They are never retried."""


@dataclass(slots=True)
class TurnResult:
    """The work outside of Postgres that a turn found."""

    is_leader: bool = False
    claimed: list[Run] = field(default_factory=list)
    settled: list[EndedRun] = field(default_factory=list)
    pruned: list[PrunedRun] = field(default_factory=list)
    ahead: UpcomingRun | None = None
    """The job for which to prepare a worker; None for no job."""
    ahead_s: float = 0.0
    """The seconds until that job is due."""


class Turns:
    """The state of the scheduler between turns: the next due times, and since when this process is the scheduler.

    Concurrency: one thread at a time.
    """

    def __init__(self, settings: SchedulerSettings, leadership: Leadership, clock: Clock) -> None:
        self._settings = settings
        self._leadership = leadership
        self._clock = clock
        self._default_schedules = {
            job: CronSchedule(text, settings.timezone) for job in JOBS if (text := settings.cron_of(job)) is not None
        }
        self._schedules_set: dict[str, CronSchedule | None] = {}
        """The schedules that were set over REST, as the last turn read them."""
        self._wanted = self._default_schedules
        self._schedules: dict[str, CronSchedule] = {}
        """Job → the schedule that is in force."""
        self._crons: dict[str, Cron] = {}
        self._next_at: dict[str, datetime | None] = {}
        self._behind: dict[str, datetime] = {}
        """Job → the time up to which its missed windows must be covered, piece by piece."""
        self._reached: dict[str, datetime] = {}
        """Job → the end of the piece that was queued last."""
        self._ahead_of: datetime | None = None
        """The due time for which a worker was prepared last."""
        self._led_since_ms: int | None = None
        self._pruned_at_ms: int | None = None

    def take(self, ended: Collection[EndedRun], *, own: Mapping[UUID, Run], may_claim: bool) -> TurnResult:
        """Do one turn.

        Args:
            ended: The processes that ended and are not settled yet. The turn settles those in `result.settled`.
            own: The runs whose processes belong to this scheduler.
            may_claim: Whether new runs may start; False while the scheduler stops.

        Raises:
            psycopg.Error: Postgres is away, or its tables do not exist. The lock is released.
        """
        try:
            return self._take(ended, own, may_claim=may_claim)
        except psycopg.Error:
            self._led_since_ms = None
            self._leadership.drop()
            raise

    def _take(self, ended: Collection[EndedRun], own: Mapping[UUID, Run], *, may_claim: bool) -> TurnResult:
        result = TurnResult()
        runs = Runs(self._leadership.connection())
        # Id and attempt fence each statement, so this is correct even if another process is the scheduler by now.
        for one in ended:
            settle(runs, one, attempts_max=self._settings.attempts_max)
            result.settled.append(one)
        result.is_leader = self._leadership.hold()
        if not result.is_leader:
            self._led_since_ms = None
            return result
        if self._led_since_ms is None:
            self._begin(runs)
        if not may_claim:
            return result
        self._reread_schedules(runs)
        self._fire(runs)
        self._catch_up(runs)
        self._recover(runs, own)
        result.pruned = self._prune(runs)
        result.claimed = self._claim(runs, own)
        self._plan_next_worker(result)
        return result

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)

    def _begin(self, runs: Runs) -> None:
        """Take over from the scheduler before. The times that it missed are due, unless the job's schedule differs."""
        before = runs.schedules()
        now = self._now()
        self._put_in_force(self._read_wanted(runs), now)
        for job, cron in self._crons.items():
            known, schedule = before.get(job), self._schedules[job]
            is_same = known is not None and CronSchedule(known.cron, known.time_zone) == schedule
            self._next_at[job] = (known.next_run_at if known and is_same else None) or next_after(cron, now)
            self._reached.pop(job, None)
            done = runs.covered_until(job) if JOBS[job].covers_windows else None
            due = None if done is None else last_before(cron, now)
            if done is not None and due is not None and done < due:
                self._behind[job] = due
        self._write_schedules(runs)
        self._led_since_ms = self._clock.monotonic_ms()
        log.info("this is the scheduler now", schedules={job: str(at) for job, at in self._next_at.items()})

    def _reread_schedules(self, runs: Runs) -> None:
        """Put schedules in force that were changed over REST. Times that passed meanwhile are not due."""
        wanted = self._read_wanted(runs)
        if wanted == self._schedules:
            return
        self._put_in_force(wanted, self._now())
        self._write_schedules(runs)
        log.info("schedules were changed", schedules={job: str(at) for job, at in self._next_at.items()})

    def _read_wanted(self, runs: Runs) -> dict[str, CronSchedule]:
        schedules_set = runs.schedules_set()
        if schedules_set != self._schedules_set:
            self._schedules_set = schedules_set
            valid = {job: schedule for job, schedule in schedules_set.items() if _is_valid(job, schedule)}
            self._wanted = decide_schedules(self._default_schedules, valid)
        return self._wanted

    def _put_in_force(self, wanted: Mapping[str, CronSchedule], now: datetime) -> None:
        for job in self._schedules.keys() - wanted.keys():
            del self._schedules[job], self._crons[job], self._next_at[job]
            self._behind.pop(job, None)
        for job, schedule in wanted.items():
            if self._schedules.get(job) != schedule:
                self._schedules[job] = schedule
                self._crons[job] = cron = parse_cron(schedule.cron, schedule.time_zone)
                self._next_at[job] = next_after(cron, now)

    def _fire(self, runs: Runs) -> None:
        now = self._now()
        changed = False
        for job, cron in self._crons.items():
            due = decide_due(cron, next_at=self._next_at[job], now=now)
            if due.fire_at is not None:
                changed = True
                self._queue(runs, job, cron, due.fire_at)
            self._next_at[job] = due.next_at
        if changed:
            self._write_schedules(runs)

    def _plan_next_worker(self, result: TurnResult) -> None:
        now = self._now()
        ahead = decide_ahead(self._next_at, now=now, lead=self._settings.worker_lead, done_for=self._ahead_of)
        if ahead is not None:
            self._ahead_of = ahead.at
            result.ahead, result.ahead_s = ahead, (ahead.at - now).total_seconds()

    def _queue(self, runs: Runs, job: str, cron: Cron, fire_at: datetime) -> None:
        if runs.is_waiting(job):
            log.info("not queued: its last run has not ended", job=job, due_at=str(fire_at))
            # A later run covers the window that this job misses now.
            if JOBS[job].covers_windows:
                self._behind[job] = fire_at
            return
        start, end = self._window(runs, job, cron, fire_at) if JOBS[job].covers_windows else (None, fire_at)
        run, is_new = runs.request(job, window_start=start, window_end=end, trigger="schedule")
        # A piece that failed for good already has a run with the same window: that run is queued again.
        if is_new or (JOBS[job].covers_windows and runs.requeue(run.id)):
            log.info("queued", job=job, run=str(run.id), due_at=str(fire_at))
        self._behind.pop(job, None)
        self._reached[job] = end
        if end < fire_at:
            self._behind[job] = fire_at

    def _window(self, runs: Runs, job: str, cron: Cron, fire_at: datetime) -> tuple[datetime, datetime]:
        # Start at the end of the last success, so that the next window includes a window that failed.
        done = runs.covered_until(job)
        start = done if done is not None and done < fire_at else last_before(cron, fire_at)
        start = max(start or fire_at - timedelta(days=1), fire_at - WINDOW_MAX)
        return start, min(fire_at, start + PIECE_MAX)

    def _catch_up(self, runs: Runs) -> None:
        """Queue the next piece for each job with missed windows, once the piece before has succeeded."""
        for job, until in list(self._behind.items()):
            if runs.is_waiting(job):
                continue
            done = runs.covered_until(job)
            reached = self._reached.get(job)
            if done is None or done >= until or (reached is not None and done < reached):
                # All is covered, or a piece has failed. Then the next time of the schedule tries it again.
                del self._behind[job]
                continue
            self._queue(runs, job, self._crons[job], until)

    def _recover(self, runs: Runs, own: Mapping[UUID, Run]) -> None:
        # While Postgres was away, no run could report that it is alive. So first wait until each had time to report.
        assert self._led_since_ms is not None
        if self._clock.monotonic_ms() - self._led_since_ms < self._settings.stale_after_ms:
            return
        for run in runs.stale(after_ms=self._settings.stale_after_ms):
            if run.id in own:
                continue
            ending = RunEnding.PERMANENT if run.requested_by == COMMAND_LINE else RunEnding.FAILED
            lost = EndedRun(run, ending, "its process ended without a report: the machine or the scheduler went down")
            settle(runs, lost, attempts_max=self._settings.attempts_max)
            log.warning("a run without a process was found", job=run.job, run=str(run.id))

    def _prune(self, runs: Runs) -> list[PrunedRun]:
        now_ms = self._clock.monotonic_ms()
        if self._pruned_at_ms is not None and now_ms - self._pruned_at_ms < PRUNE_EVERY_MS:
            return []
        deleted = sum(job.prune(runs, self._settings) for job in JOBS.values())
        pruned = runs.prune(older_than=self._settings.keep, rows_max=ROWS_AT_ONCE)
        # If something was removed, there may be more. Then the next turn continues.
        if not deleted and not pruned.is_more:
            self._pruned_at_ms = now_ms
        return list(pruned.runs)

    def _claim(self, runs: Runs, own: Mapping[UUID, Run]) -> list[Run]:
        slots = self._settings.runs_max - len(own)
        queued = runs.queued() if slots > 0 else []
        if not queued:
            return []
        busy = {run.job for run in (*runs.running(), *own.values())}
        chosen = choose(
            queued,
            busy=busy,
            slots=slots,
            first_ms=self._settings.retry_pause_ms,
            max_ms=self._settings.retry_pause_ms_max,
        )
        return [claimed for run in chosen if (claimed := runs.claim(run.id)) is not None]

    def _write_schedules(self, runs: Runs) -> None:
        runs.write_schedules(
            [Schedule(job, *schedule, next_run_at=self._next_at[job]) for job, schedule in self._schedules.items()]
        )


def _is_valid(job: str, schedule: CronSchedule | None) -> bool:
    # The gateway accepts valid schedules only, but its machine may know other time zones.
    if schedule is None:
        return True
    try:
        check_cron(schedule.cron, "cron")
        check_timezone(schedule.time_zone, "time_zone")
    except InvalidValueError as error:
        log.error("a schedule that was set over REST is ignored", job=job, reason=str(error))  # noqa: TRY400
        return False
    return True


def settle(runs: Runs, ended: EndedRun, *, attempts_max: int) -> None:
    """Record the end of an attempt. Does nothing if another process has taken over the run meanwhile."""
    run = ended.run
    if ended.ending is RunEnding.DONE:
        # A job records its success itself, together with its rows. If it has not, the attempt counts as failed.
        ended = EndedRun(run, RunEnding.FAILED, "it ended without an error and without a result")
    if ended.ending is RunEnding.STOPPED:
        runs.release(run.id, run.attempt)
        return
    verdict = decide_after(ended, attempts_max=attempts_max)
    if (
        not runs.fail(run.id, run.attempt, ended.reason, status=verdict.status, requeue=verdict.requeue)
        and verdict.requeue
    ):
        # The job has recorded its own reason, which is better than the one from its process.
        runs.try_again(run.id, run.attempt)
