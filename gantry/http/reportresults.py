"""What the calls of reports return: jobs, runs, and their rows."""

from typing import Any

import msgspec


class ReportWindow(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """The time that a run reports on."""

    since: str
    until: str


class ReportProgress(msgspec.Struct, frozen=True):
    """How far a run is; None where it has not said."""

    percent: int | None = None
    step: str | None = None


class ReportFiles(msgspec.Struct, frozen=True):
    """Where a run's files are, on the machine of the job."""

    html: str | None = None
    parquet: str | None = None


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a report job: `queued`, `running`, `succeeded`, `failed` or `timed_out`.

    Attributes:
        window: None where it reports on the moment it started.
        attempt: How often it was tried, 0 before the first.
        rows: Of its result; None until there is one.
        error: Why the last attempt failed.
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
        """Say whether it has ended, well or not."""
        return self.status not in {"queued", "running"}


class Report(msgspec.Struct, frozen=True):
    """A report job: its cron schedule, when it runs next, and the run made last."""

    job: str
    schedule: str | None
    next_run_at: str | None
    last_run: ReportRun | None


class QueueOwner(msgspec.Struct, frozen=True):
    """A client that is connected for a group; `queues` is how many of a row's it has, None where it did not say."""

    client_id: str
    host: str
    queues: int | None


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a lag report, of a queue or of all queues of a topic (`level`); None is what can't be known.

    Lengths of time are seconds, rates messages a second. `cause` says why something is not known, `evidence` has the
    numbers that led to the verdict. `behind_since` and `owners` (who has the queues) are of rows that are not OK.
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
    """How much of a group's backlog on a topic is in one bucket of a section: `age`, `key`, `queue`, `size` or `tag`.

    Bounds are seconds of an age and bytes of a size, else None. `bytes` is of bodies, None where none was read.
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
    """What came into a topic (`group` is None), or what a group consumed of it, from `bucket_at` on.

    `rate_max` is in messages a second. `covered_s` says how much of the bucket is known.
    """

    bucket_at: str
    topic: str
    group: str | None
    messages: int | None
    rate_max: float | None
    lag_messages: int | None
    covered_s: float | None


class Throughput(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """Buckets of a stretch of time: `minute`, `hour` or `day` of a zone."""

    unit: str
    since: str
    until: str
    time_zone: str
    items: list[ThroughputBucket]
    next_cursor: str | None = None


class LagPoint(msgspec.Struct, frozen=True):
    """How far behind a group was; None is what was not known."""

    at: str
    lag_messages: int | None
    lag_seconds: float | None


class LagHistory(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """How far behind a group was on a topic, at points `step_s` apart."""

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
