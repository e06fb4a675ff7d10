"""Settings of the scheduler."""

from dataclasses import dataclass
from datetime import timedelta

from gantry.cron import check_cron, check_timezone
from gantry.model.alert import AlertSettings
from gantry.model.errors import InvalidValueError
from spark.classarchive import AUTO
from spark.reportfiles import is_uri
from spark.scheduler.jobs import JOBS

LOGS_DEFAULT = ".gantry/reports"
_ALERTS = AlertSettings()
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """All settings, with their defaults; times in ms."""

    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    database_url: str | None = None
    """The database of queued runs and results, `postgresql://…`."""
    output: str = ".gantry/reports"
    """Pages and Parquet files: a folder of this machine, or a URI that Spark can write to (`s3a://…`, `hdfs://…`)."""
    logs: str | None = None
    """A folder of this machine for the logs of runs. The default is `output`, or LOGS_DEFAULT if `output` is a URI."""
    master: str = "local[*]"
    """Spark's master: `local[*]` runs Spark in the worker's own process, `spark://HOST:7077` on a cluster."""
    access_file: str | None = None
    """The file with the credentials for brokers that require them, `ACCESS_KEY:SECRET_KEY[:SECURITY_TOKEN]`. Each job
    reads the file again, so the credentials can be changed."""
    timezone: str = "UTC"
    """The time zone of the cron expressions below. A schedule that was set over REST has its own."""

    lag_report_cron: str | None = "*/15 * * * *"
    throughput_rollup_cron: str | None = "5 * * * *"
    backlog_profile_cron: str | None = "30 3 * * *"
    """The schedules of the jobs. A job with an empty schedule runs on demand only. A schedule that was set over REST
    (`PUT /v1/reports/{job}/schedule`) takes precedence."""
    lag_report_timeout_ms: int = 600_000
    throughput_rollup_timeout_ms: int = 1_800_000
    backlog_profile_timeout_ms: int = 3_600_000
    """The time limits of the jobs. A job that takes longer is killed, with all processes that it has started."""

    alert_raise_after_ms: int = _ALERTS.raise_after // _MS
    """The time for which lag reports must find a group in trouble before an alert is opened or changed. It is counted
    from the first such report: with a report every 15 minutes, the second one opens the alert. 0: at once."""
    alert_clear_after_ms: int = _ALERTS.clear_after // _MS
    """The time for which lag reports must find the group well before the alert is resolved. 0: at once."""
    alert_keep_days: int = 90
    """The time for which events of alerts are kept, in days."""
    delivery_keep_days: int = 7
    """The time for which deliveries to webhooks are kept, in days. After one day, a delivery is not retried any
    more."""

    attempts_max: int = 3
    retry_pause_ms: int = 15_000
    """The pause before the second attempt. It is doubled before each further attempt."""
    retry_pause_ms_max: int = 600_000
    runs_max: int = 2
    """The limit for active runs. Each job has at most one, and each is a JVM of a gigabyte or more."""
    worker_idle_ms: int = 300_000
    """The time for which a worker with a Spark session waits for its next run. 0: each run has its own worker. On a
    cluster, workers never wait, because their sessions would keep executors from others."""
    worker_lead_ms: int = 30_000
    """The time before a scheduled run is due at which a worker starts Spark, so that the run finds an open session.
    Then scheduled reports are as fast as reports that follow another one. 0: the run starts Spark. It has no effect on
    a cluster, as above."""
    class_archive: str = AUTO
    """The folder for an archive of Spark's classes (180 MB). The archive saves a quarter of the time of a new worker's
    first report. If it is missing, it is made after the first run. `auto`: the folder `gantry` in the user's cache
    (XDG_CACHE_HOME, ~/.cache), so the archive is made once on a machine. `off`: no archive."""
    poll_interval_ms: int = 500
    """The interval at which the scheduler looks for requested runs."""
    stale_after_ms: int = 60_000
    """The time without a heartbeat after which a run counts as lost. Jobs send a heartbeat every 5 s."""
    keep_days: int = 30
    """The time for which runs, their rows and their files are kept, in days. The last success of each job is always
    kept."""
    throughput_minute_keep_days: int = 7
    throughput_hour_keep_days: int = 90
    throughput_day_keep_days: int = 1_095
    """The times for which buckets of the throughput are kept, in days. Buckets belong to no run."""
    stop_timeout_ms: int = 1_000
    """The time for which jobs may continue after SIGTERM. Then they are ended, and run again after the next start."""

    def check(self) -> None:
        """Raise ValueError("name: reason") for the first invalid setting."""
        if not self.namesrv:
            raise ValueError("namesrv: is empty; at least one name server is needed")
        self._check_schedules()
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
        # Heartbeats come every 5 s, and one of them may wait for a slow server.
        if self.stale_after_ms < _STALE_MS_MIN:
            raise ValueError(f"stale_after_ms: {self.stale_after_ms} is below {_STALE_MS_MIN}")

    def _check_schedules(self) -> None:
        try:
            check_timezone(self.timezone, "timezone")
            for job in JOBS:
                cron = self.cron_of(job)
                if cron is not None:
                    check_cron(cron, f"{job}_cron")
        except InvalidValueError as error:
            raise ValueError(str(error)) from None

    def cron_of(self, job: str) -> str | None:
        """Return a job's cron expression; None if the job runs on demand only."""
        cron: str | None = getattr(self, f"{job}_cron")
        return cron or None

    def timeout_ms_of(self, job: str) -> int:
        """Return the time limit of a job."""
        timeout_ms: int = getattr(self, f"{job}_timeout_ms")
        return timeout_ms

    @property
    def worker_lead(self) -> timedelta:
        """The time before a scheduled run is due at which its worker is prepared."""
        return timedelta(milliseconds=self.worker_lead_ms)

    @property
    def log_folder(self) -> str:
        """The folder of the logs of runs."""
        return self.logs or (LOGS_DEFAULT if is_uri(self.output) else self.output)

    @property
    def keep(self) -> timedelta:
        """The time for which runs are kept."""
        return timedelta(days=self.keep_days)

    @property
    def keep_throughput(self) -> dict[str, timedelta]:
        """The time for which buckets of the throughput are kept, by unit."""
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
