"""Results of the calls of reports: jobs, runs, and their rows."""

from typing import Any

import msgspec


class ReportWindow(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """The period that a run reports on."""

    since: str
    until: str


class ReportProgress(msgspec.Struct, frozen=True):
    """The progress of a run; None if the run has not reported it."""

    percent: int | None = None
    step: str | None = None


class ReportFiles(msgspec.Struct, frozen=True):
    """The paths of a run's files, on the machine of the job."""

    html: str | None = None
    parquet: str | None = None


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a report job: `queued`, `running`, `succeeded`, `failed` or `timed_out`.

    Attributes:
        window: The period of the report; None if it reports on the moment at which it started.
        attempt: Number of attempts, 0 before the first.
        rows: Number of rows of the result; None until there is a result.
        error: Error of the last attempt.
    """

    id: str
    job: str
    window: ReportWindow | None
    trigger: str
    status: str
    progress: ReportProgress | None
    attempt: int
    rows: int | None
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    duration_ms: int | None
    files: ReportFiles | None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, with success or not."""
        return self.status not in {"queued", "running"}


class ReportSchedule(msgspec.Struct, frozen=True):
    """A schedule that was set over REST; without a cron expression, the job runs on demand only."""

    cron: str | None
    time_zone: str
    set_by: str
    set_at: str


class Report(msgspec.Struct, frozen=True):
    """A report job.

    Attributes:
        job: Name of the job.
        schedule: Cron expression that is in force; None: the job runs on demand only, or no scheduler has run yet.
        next_run_at: Time of the next scheduled run.
        last_run: Newest run.
        time_zone: Time zone of `schedule`.
        schedule_set: Schedule that was set over REST. The scheduler puts it in force within a second.
    """

    job: str
    schedule: str | None
    next_run_at: str | None
    last_run: ReportRun | None
    time_zone: str | None = None
    schedule_set: ReportSchedule | None = None


class QueueOwner(msgspec.Struct, frozen=True):
    """A connected client of a group.

    `queues` is the number of the row's queues that the client holds; None if the client did not report it.
    """

    client_id: str
    host: str
    queues: int | None


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a lag report, for a queue or for all queues of a topic (`level`). Unknown values are None.

    Durations are in seconds, rates in messages per second. `cause` says why something is unknown, and `evidence` has
    the numbers that led to the verdict. Only rows of topics that are not OK have `behind_since`, and `owners` (the
    clients that hold the queues).
    """

    level: str
    group: str
    topic: str
    broker: str | None
    queue_id: int | None
    as_of: str
    lag_messages: int | None
    lag_seconds: float | None
    oldest_unconsumed_at: str | None
    in_rate: float | None
    out_rate: float | None
    drain_eta_s: float | None
    drain_eta_low_s: float | None
    drain_eta_high_s: float | None
    retention_left_s: float | None
    skew: float | None
    top_tags: Any
    clients: int | None
    verdict: str
    cause: str | None
    next_step: str | None
    evidence: dict[str, Any] | None
    behind_since: str | None = None
    owners: list[QueueOwner] | None = None


class BacklogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group's backlog on a topic in one bucket of a section: `age`, `filter` (one that was not applied), `key`, `queue`, `size` or `tag`.

    Bounds are seconds of an age or bytes of a size, else None. `bytes` is the size of the bodies; None if no body was
    read.
    """

    group: str
    topic: str
    section: str
    bucket: str
    lower_bound: float | None
    upper_bound: float | None
    messages: int | None
    bytes: int | None


class BacklogRows(msgspec.Struct, frozen=True):
    """Rows of one run of the backlog profile."""

    run: str
    as_of: str
    items: list[BacklogRow]
    next_cursor: str | None = None


class ThroughputBucket(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a topic received (`group` is None) or that a group consumed of it, from `bucket_at` on.

    `rate_max` is in messages per second. `covered_s` is the part of the bucket for which there is data, in seconds.
    """

    bucket_at: str
    topic: str
    group: str | None
    messages: int | None
    rate_max: float | None
    lag_messages: int | None
    covered_s: float | None


class Throughput(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """Buckets of a period: each is a `minute`, an `hour` or a `day` of a time zone."""

    unit: str
    since: str
    until: str
    time_zone: str
    items: list[ThroughputBucket]
    next_cursor: str | None = None


class LagPoint(msgspec.Struct, frozen=True):
    """A group's lag at one moment; unknown values are None."""

    at: str
    lag_messages: int | None
    lag_seconds: float | None
    missing_brokers: list[str] = []
    """The brokers of the topic that gave no numbers; then the lag is unknown. Older gateways do not name them."""
    late_brokers: list[str] = []
    """The brokers whose numbers are of a later moment than the others'; then the lag is unknown."""


class LagHistory(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """A group's lag on a topic, at points `step_s` seconds apart."""

    group: str
    topic: str
    since: str
    until: str
    step_s: int
    items: list[LagPoint]


class LagRows(msgspec.Struct, frozen=True):
    """Rows of one run of the lag report, as of one moment."""

    run: str
    as_of: str
    items: list[LagRow]
    next_cursor: str | None = None
