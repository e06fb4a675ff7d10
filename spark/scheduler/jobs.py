"""The jobs that have a schedule, as far as the scheduler needs to know them.

The scheduler does not import the jobs themselves, because they load Spark. A job that has an entry here also has the
settings `<name>_cron` and `<name>_timeout_ms` (settings.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spark.runs import Runs

if TYPE_CHECKING:
    from spark.scheduler.settings import SchedulerSettings

ROWS_AT_ONCE: Final = 10_000
"""The limit for the rows of each kind that one turn deletes. The next turn continues."""


def _no_arguments(settings: "SchedulerSettings") -> Sequence[str]:
    return ()


def _prune_nothing(runs: Runs, settings: "SchedulerSettings") -> int:
    return 0


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job that runs by a schedule.

    Attributes:
        covers_windows: Whether its runs cover one period after the other. The runs of other jobs report the state at
            the time of the run.
        arguments: Returns the job's own arguments.
        prune: Deletes old data that belongs to no run; returns the number of deleted rows.
    """

    covers_windows: bool = False
    arguments: Callable[["SchedulerSettings"], Sequence[str]] = _no_arguments
    prune: Callable[[Runs, "SchedulerSettings"], int] = _prune_nothing


def _alert_arguments(settings: "SchedulerSettings") -> Sequence[str]:
    return (
        *("--alert-raise-after-ms", str(settings.alert_raise_after_ms)),
        *("--alert-clear-after-ms", str(settings.alert_clear_after_ms)),
    )


def _prune_alerts(runs: Runs, settings: "SchedulerSettings") -> int:
    return runs.prune_alerts(
        events_older_than=timedelta(days=settings.alert_keep_days),
        deliveries_older_than=timedelta(days=settings.delivery_keep_days),
        limit=ROWS_AT_ONCE,
    )


def _prune_throughput(runs: Runs, settings: "SchedulerSettings") -> int:
    return runs.prune_throughput(older_than=settings.keep_throughput, limit=ROWS_AT_ONCE)


JOBS: Final = {
    "lag_report": ScheduledJob(arguments=_alert_arguments, prune=_prune_alerts),
    "throughput_rollup": ScheduledJob(covers_windows=True, prune=_prune_throughput),
    "backlog_profile": ScheduledJob(),
}
"""The jobs by name."""
