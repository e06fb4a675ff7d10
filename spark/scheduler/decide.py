"""The decisions of the scheduler, as pure functions."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spark.runs import CronSchedule, QueuedRun, Run
from spark.scheduler.jobs import JOBS

PERMANENT_CODES = frozenset({2, 3})
"""The exit codes of jobs for failures that a retry can't correct, such as an invalid command line."""


class RunEnding(enum.Enum):
    """The ways in which a job's process can end."""

    DONE = "done"
    FAILED = "failed"
    """Another attempt may succeed."""
    PERMANENT = "permanent"
    """A retry can't succeed before a person changes something: wrong arguments, no Java."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The scheduler was told to stop."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job's process that ended. `reason` is a text for people."""

    run: Run
    ending: RunEnding
    reason: str


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision about a run whose attempt ended without success: its new status, and whether to queue it again."""

    status: str
    requeue: bool


@dataclass(frozen=True, slots=True)
class UpcomingRun:
    """A job that is due soon."""

    job: str
    at: datetime


def ending_of(exit_code: int) -> RunEnding:
    """Return the ending that a job's exit code stands for."""
    if exit_code == 0:
        return RunEnding.DONE
    return RunEnding.PERMANENT if exit_code in PERMANENT_CODES else RunEnding.FAILED


def decide_after(ended: EndedRun, *, attempts_max: int) -> RetryDecision:
    """Decide the new status of a run after a failed attempt, and whether to queue it again."""
    assert ended.ending in (RunEnding.FAILED, RunEnding.PERMANENT, RunEnding.TIMED_OUT)
    return RetryDecision(
        status="timed_out" if ended.ending is RunEnding.TIMED_OUT else "failed",
        requeue=ended.ending is not RunEnding.PERMANENT and ended.run.attempt < attempts_max,
    )


def retry_pause_ms(attempt: int, *, first_ms: int, max_ms: int) -> int:
    """Return how many milliseconds a run waits after its `attempt`-th failure."""
    assert attempt >= 1
    return min(max_ms, first_ms << min(attempt - 1, 30))


def is_due(queued: QueuedRun, *, first_ms: int, max_ms: int) -> bool:
    """Return whether a queued run may start. A run that failed must first wait for its pause to end."""
    if queued.since_failure_ms is None or queued.run.attempt == 0:
        return True
    return queued.since_failure_ms >= retry_pause_ms(queued.run.attempt, first_ms=first_ms, max_ms=max_ms)


def choose(queued: Iterable[QueuedRun], *, busy: Iterable[str], slots: int, first_ms: int, max_ms: int) -> list[Run]:
    """Return the runs to start now, in queue order: at most one active run per job, and at most `slots` runs.

    Args:
        queued: The queued runs, in order.
        busy: The jobs that have an active run.
        slots: The number of runs that may start.
        first_ms: The pause after a first failure.
        max_ms: The longest pause.
    """
    taken = set(busy)
    chosen: list[Run] = []
    for entry in queued:
        if len(chosen) >= slots:
            break
        if entry.run.job not in taken and is_due(entry, first_ms=first_ms, max_ms=max_ms):
            taken.add(entry.run.job)
            chosen.append(entry.run)
    return chosen


def decide_schedules(
    defaults: Mapping[str, CronSchedule], schedules_set: Mapping[str, CronSchedule | None]
) -> dict[str, CronSchedule]:
    """Return the schedules to put in force, by job. A job without a schedule runs on demand only.

    Args:
        defaults: The schedules of the settings.
        schedules_set: The schedules that were set over REST, which take precedence; None: on demand only. Jobs that this
            scheduler does not know are left out.
    """
    chosen = {job: schedules_set.get(job, defaults.get(job)) for job in JOBS}
    return {job: schedule for job, schedule in chosen.items() if schedule is not None}


def decide_ahead(
    next_at: Mapping[str, datetime | None], *, now: datetime, lead: timedelta, done_for: datetime | None
) -> UpcomingRun | None:
    """Decide for which job to prepare a worker now: the first job that is due within `lead`, once for each due time.

    Args:
        next_at: The next due time of each job; None for never.
        now: The current time.
        lead: The time that it takes to prepare a worker, and some reserve; zero to prepare none.
        done_for: The due time for which a worker was prepared last.
    """
    upcoming = [(at, job) for job, at in next_at.items() if at is not None and now < at <= now + lead]
    if not upcoming:
        return None
    at, job = min(upcoming)
    return None if at == done_for else UpcomingRun(job, at)
