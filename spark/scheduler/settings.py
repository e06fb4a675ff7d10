"""Settings of the scheduler."""

from dataclasses import dataclass
from datetime import timedelta

from spark.classarchive import AUTO
from spark.reportfiles import is_uri
from spark.scheduler.cron import check_cron, check_timezone
from spark.scheduler.jobs import JOBS

LOGS_DEFAULT = ".gantry/reports"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """All settings, with their defaults; times in ms."""

    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    database_url: str | None = None
    """`postgresql://…`; queued runs and results are there."""
    output: str = ".gantry/reports"
    """Pages and Parquet files: a folder of this machine, or a URI that Spark can write to (`s3a://…`, `hdfs://…`)."""
    logs: str | None = None
    """A folder of this machine for the logs of runs. The default is `output`, or LOGS_DEFAULT if `output` is a URI."""
    master: str = "local[*]"
    """Spark's: `local[*]` runs inside the worker's own process, `spark://HOST:7077` on a cluster."""
    access_file: str | None = None
    """Holds the credentials for brokers that ask for them, `ACCESS_KEY:SECRET_KEY[:SECURITY_TOKEN]`. Each job reads it
    anew, so that they can be changed."""
    timezone: str = "UTC"
    """In which cron expressions are read."""

    lag_report_cron: str | None = "*/15 * * * *"
    throughput_rollup_cron: str | None = "5 * * * *"
    backlog_profile_cron: str | None = "30 3 * * *"
    """Empty: only on demand."""
    lag_report_timeout_ms: int = 600_000
    throughput_rollup_timeout_ms: int = 1_800_000
    backlog_profile_timeout_ms: int = 3_600_000
    """A job that takes longer is killed, with everything it has started."""

    alert_raise_after_ms: int = 300_000
    """For how long a lag report must say that a group is badly off before an alert is opened or changed, from the first report
    that says so: with a report every 15 minutes that is the second one. 0: at once."""
    alert_clear_after_ms: int = 300_000
    """For how long it must say that the group is well before the alert is resolved. 0: at once."""
    alert_keep_days: int = 90
    """How long events of alerts are kept."""
    delivery_keep_days: int = 7
    """How long deliveries to webhooks are kept; after a day none is tried any more."""

    attempts_max: int = 3
    retry_pause_ms: int = 15_000
    """Before the second attempt; doubled before each further one."""
    retry_pause_ms_max: int = 600_000
    runs_max: int = 2
    """Jobs at once, one of a kind at most; each is a JVM of a gigabyte or more."""
    worker_idle_ms: int = 300_000
    """How long a process with a Spark session waits for its next run; 0: each run has its own. A session on a cluster never
    waits: it would keep executors from others."""
    worker_lead_ms: int = 30_000
    """How long before a time of a schedule a worker starts Spark, so that the run finds a session; 0: it starts Spark
    itself. Reports of all schedules are then as quick as one that follows another. Not on a cluster, as above."""
    class_archive: str = AUTO
    """The folder of an archive of Spark's classes, 180 MB, which takes a quarter off the time of a report whose worker has
    just started. It is made after a worker's first run, where it is missing. `auto`: `gantry` in the user's cache (XDG_CACHE_HOME,
    ~/.cache), so that it is made once on a machine; `off`: none."""
    poll_interval_ms: int = 500
    """How often runs that were asked for are looked for."""
    stale_after_ms: int = 60_000
    """A run that said nothing for so long has lost its process; jobs say something every 5 s."""
    keep_days: int = 30
    """How long runs, their rows and their files are kept; the last success of each job stays."""
    throughput_minute_keep_days: int = 7
    throughput_hour_keep_days: int = 90
    throughput_day_keep_days: int = 1_095
    """How long buckets of the throughput are kept; they belong to no run."""
    stop_timeout_ms: int = 1_000
    """How long jobs may go on after SIGTERM; then they are ended, and run again at the next start."""

    def check(self) -> None:
        """Raise ValueError("name: reason") for the first setting that can't be."""
        if not self.namesrv:
            raise ValueError("namesrv: names no name server")
        check_timezone(self.timezone, "timezone")
        for job in JOBS:
            cron = self.cron_of(job)
            if cron is not None:
                check_cron(cron, f"{job}_cron")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in (
            "stop_timeout_ms",
            "worker_idle_ms",
            "worker_lead_ms",
            "alert_raise_after_ms",
            "alert_clear_after_ms",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        # Heart-beats come every 5 s, and one may wait for a slow server.
        if self.stale_after_ms < _STALE_MS_MIN:
            raise ValueError(f"stale_after_ms: {self.stale_after_ms} is below {_STALE_MS_MIN}")

    def cron_of(self, job: str) -> str | None:
        """Return a job's cron expression, None where it runs on demand only."""
        cron: str | None = getattr(self, f"{job}_cron")
        return cron or None

    def timeout_ms_of(self, job: str) -> int:
        """Return how long a job may take."""
        timeout_ms: int = getattr(self, f"{job}_timeout_ms")
        return timeout_ms

    @property
    def worker_lead(self) -> timedelta:
        """How long before its time a scheduled run's worker is made ready."""
        return timedelta(milliseconds=self.worker_lead_ms)

    @property
    def log_folder(self) -> str:
        """The folder of the logs of runs."""
        return self.logs or (LOGS_DEFAULT if is_uri(self.output) else self.output)

    @property
    def keep(self) -> timedelta:
        """How long runs are kept."""
        return timedelta(days=self.keep_days)

    @property
    def keep_throughput(self) -> dict[str, timedelta]:
        """How long buckets of the throughput are kept, by unit."""
        return {
            "minute": timedelta(days=self.throughput_minute_keep_days),
            "hour": timedelta(days=self.throughput_hour_keep_days),
            "day": timedelta(days=self.throughput_day_keep_days),
        }


_STALE_MS_MIN = 20_000
_POSITIVE = (
    *(f"{job}_timeout_ms" for job in JOBS),
    "attempts_max",
    "retry_pause_ms",
    "retry_pause_ms_max",
    "runs_max",
    "poll_interval_ms",
    "keep_days",
    "alert_keep_days",
    "delivery_keep_days",
    "throughput_minute_keep_days",
    "throughput_hour_keep_days",
    "throughput_day_keep_days",
)
