"""The runs that start next, and the decisions about failed runs."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from spark.runs import QueuedRun, Run
from spark.scheduler.decide import (
    EndedRun,
    RetryDecision,
    RunEnding,
    UpcomingRun,
    choose,
    decide_after,
    decide_ahead,
    ending_of,
    is_due,
    retry_pause_ms,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def run(number: int, job: str = "lag_report", *, attempt: int = 0) -> Run:
    return Run(
        id=UUID(int=number),
        job=job,
        window_start=None,
        window_end=NOON,
        trigger="schedule",
        requested_by=None,
        status="queued",
        attempt=attempt,
        error=None,
        created_at=NOON,
        started_at=None,
    )


def waiting(
    number: int, job: str = "lag_report", *, attempt: int = 0, since_failure_ms: int | None = None
) -> QueuedRun:
    return QueuedRun(run(number, job, attempt=attempt), since_failure_ms)


def chosen(*queued: QueuedRun, busy: tuple[str, ...] = (), slots: int = 2) -> list[int]:
    return [found.id.int for found in choose(queued, busy=busy, slots=slots, first_ms=1_000, max_ms=60_000)]


def test_one_run_for_each_job_in_the_order_of_the_queue() -> None:
    assert chosen(waiting(1), waiting(2), waiting(3, "backlog_profile")) == [1, 3]


def test_runs_beyond_the_limit_wait() -> None:
    many = [waiting(number, f"job-{number}") for number in range(5)]
    assert chosen(*many, slots=3) == [0, 1, 2]
    assert chosen(*many, slots=0) == []
    assert chosen(*many, slots=-1) == []


def test_a_running_job_is_not_started_again() -> None:
    assert chosen(waiting(1), waiting(2, "backlog_profile"), busy=("lag_report",)) == [2]


def test_a_pause_after_a_failure_delays_no_other_job() -> None:
    assert chosen(waiting(1, attempt=1, since_failure_ms=999), waiting(2)) == [2]
    assert chosen(waiting(1, attempt=1, since_failure_ms=1_000), waiting(2)) == [1]


def test_pauses_double_up_to_a_limit() -> None:
    pauses = [retry_pause_ms(attempt, first_ms=1_000, max_ms=5_000) for attempt in (1, 2, 3, 4, 500)]
    assert pauses == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_a_run_without_a_failure_does_not_wait() -> None:
    # A failed run that a user requested again has attempts, but no failure that it must wait for.
    assert is_due(waiting(1, attempt=7), first_ms=1_000, max_ms=5_000)
    assert is_due(waiting(1, attempt=0, since_failure_ms=0), first_ms=1_000, max_ms=5_000)


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        (0, RunEnding.DONE),
        (1, RunEnding.FAILED),
        (-9, RunEnding.FAILED),
        (137, RunEnding.FAILED),
        (2, RunEnding.PERMANENT),
        (3, RunEnding.PERMANENT),
    ],
)
def test_exit_codes(code: int, ending: RunEnding) -> None:
    assert ending_of(code) is ending


@pytest.mark.parametrize(
    ("ending", "attempt", "verdict"),
    [
        (RunEnding.FAILED, 1, RetryDecision("failed", requeue=True)),
        (RunEnding.FAILED, 3, RetryDecision("failed", requeue=False)),
        (RunEnding.FAILED, 9, RetryDecision("failed", requeue=False)),
        (RunEnding.TIMED_OUT, 2, RetryDecision("timed_out", requeue=True)),
        (RunEnding.TIMED_OUT, 3, RetryDecision("timed_out", requeue=False)),
        (RunEnding.PERMANENT, 1, RetryDecision("failed", requeue=False)),
    ],
)
def test_a_run_is_retried_only_if_a_retry_may_help(ending: RunEnding, attempt: int, verdict: RetryDecision) -> None:
    assert decide_after(EndedRun(run(1, attempt=attempt), ending, "why"), attempts_max=3) == verdict


LEAD = timedelta(seconds=30)
"""The time before a run is due at which its worker is prepared."""


def ahead(*seconds: float | None, done_for: datetime | None = None, lead: timedelta = LEAD) -> UpcomingRun | None:
    """Decide at noon; job-0, job-1, … are due in the given numbers of seconds."""
    next_at = {
        f"job-{number}": None if after is None else NOON + timedelta(seconds=after)
        for number, after in enumerate(seconds)
    }
    return decide_ahead(next_at, now=NOON, lead=lead, done_for=done_for)


def test_a_worker_is_prepared_for_the_next_job_within_the_lead_time() -> None:
    assert ahead(31, None, 30) == UpcomingRun("job-2", NOON + LEAD)
    assert ahead(20, 10, None) == UpcomingRun("job-1", NOON + timedelta(seconds=10))
    assert ahead(30.001, None) is None
    assert ahead() is None


def test_a_worker_is_prepared_once_for_each_time() -> None:
    assert ahead(10, 20, done_for=NOON + timedelta(seconds=10)) is None
    assert ahead(10, done_for=NOON - timedelta(minutes=15)) == UpcomingRun("job-0", NOON + timedelta(seconds=10))


def test_a_due_job_and_a_lead_of_zero_need_no_prepared_worker() -> None:
    assert ahead(0, -10) is None
    assert ahead(0.001, lead=timedelta()) is None
