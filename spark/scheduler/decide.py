"""What the scheduler decides, as functions of what it sees."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spark.runs import QueuedRun, Run

HOPELESS_CODES = frozenset({2, 3})
"""Of jobs: the command line can't be read; nothing that another attempt would mend."""


class Ending(enum.Enum):
    """How a job's process ended."""

    DONE = "done"
    FAILED = "failed"
    """Another attempt may do better."""
    HOPELESS = "hopeless"
    """Something has to be changed first: wrong arguments, no Java."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The scheduler was told to stop."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job's process that ended; `reason` is for people."""

    run: Run
    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a run whose attempt has ended without success."""

    status: str
    requeue: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    """A job whose time comes soon."""

    job: str
    at: datetime


def ending_of(exit_code: int) -> Ending:
    """Return what an exit code of a job means."""
    if exit_code == 0:
        return Ending.DONE
    return Ending.HOPELESS if exit_code in HOPELESS_CODES else Ending.FAILED


def decide_after(ended: Ended, *, attempts_max: int) -> Verdict:
    """Say what becomes of a run after a failed attempt."""
    assert ended.ending in (Ending.FAILED, Ending.HOPELESS, Ending.TIMED_OUT)
    return Verdict(
        status="timed_out" if ended.ending is Ending.TIMED_OUT else "failed",
        requeue=ended.ending is not Ending.HOPELESS and ended.run.attempt < attempts_max,
    )


def retry_pause_ms(attempt: int, *, first_ms: int, max_ms: int) -> int:
    """Return how long a run waits after its `attempt`-th failure."""
    assert attempt >= 1
    return min(max_ms, first_ms << min(attempt - 1, 30))


def is_due(queued: QueuedRun, *, first_ms: int, max_ms: int) -> bool:
    """Say whether a queued run may start: at once, or after the pause that follows a failure."""
    if queued.since_failure_ms is None or queued.run.attempt == 0:
        return True
    return queued.since_failure_ms >= retry_pause_ms(queued.run.attempt, first_ms=first_ms, max_ms=max_ms)


def choose(queued: Iterable[QueuedRun], *, busy: Iterable[str], slots: int, first_ms: int, max_ms: int) -> list[Run]:
    """Return what to start now, in the order of the queue: one run a job, `slots` at most.

    Args:
        queued: What waits, in its order.
        busy: Jobs of which a run is running.
        slots: How many more may run.
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


def decide_ahead(
    next_at: Mapping[str, datetime | None], *, now: datetime, lead: timedelta, done_for: datetime | None
) -> Ahead | None:
    """Say for which job a worker is to be made ready now: the first whose time comes within `lead`, once for each time.

    Args:
        next_at: When each job is due; None: never.
        now: The time.
        lead: How long it takes to make a worker ready, and some more; zero: never.
        done_for: The time for which this was said last.
    """
    coming = [(at, job) for job, at in next_at.items() if at is not None and now < at <= now + lead]
    if not coming:
        return None
    at, job = min(coming)
    return None if at == done_for else Ahead(job, at)
