"""The runner of jobs: claims those that are due, does their work, and renews their leases meanwhile.

  queued ──claim──▶ running ──work──▶ done · failed · cancelled
                      ▲   │
                      └───┘ the gateway died or stopped, or a broker was away: another claim, from the last progress

Any number of gateways may run one. Postgres gives each job to one of them, for the time of a lease. The work of a job
stops when its lease ends, when another gateway has it, or when a caller cancels it.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from gantry.runtime.clock import Clock
from gantry.runtime.tasks import TaskSet, wait_for_event
from gantry.runtime.telemetry import logger
from services.gateway.db.jobs import CANCELLED, DONE, FAILED, Job, JobRepository
from services.gateway.errors import INTERNAL, ProblemError, problem_of
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.duework import SLOW_POLL_S
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.jobs")

POLL_S: Final = SLOW_POLL_S
"""Pause between two looks for due jobs. A job that is due or queued (duework.py), and the end of a job, shorten it."""
AWAY_S: Final = 10.0
"""Pause after Postgres was unavailable."""
RENEW_S: Final = 2.0
"""Pause between two renewals of a lease. A cancelled job stops at the next one."""
LEASE: Final = timedelta(seconds=30)
RUNNING_MAX: Final = 4
"""Jobs of one gateway that run at once."""
PAUSE_MIN_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
"""Limits for the pause after an error that may pass, such as a broker that is away; it doubles from claim to claim."""
TIDY_INTERVAL_S: Final = 3_600.0
TIDY_ROWS: Final = 1_000


class LeaseLostError(Exception):
    """Another gateway has the job, or its lease could not be renewed in time. Its work must stop."""


class CancelRequestedError(Exception):
    """A caller cancelled the job."""


class Work:
    """A claimed job, as its kind works on it.

    Attributes:
        job: The job as Postgres had it at the last write.
        note: Why items of the job failed, if some did; it becomes the `error` of a job that ends.
    """

    def __init__(self, job: Job, metadata: Metadata, clock: Clock) -> None:
        self.job = job
        self.note: str | None = None
        self._metadata = metadata
        self._clock = clock
        self._renewed_ms = clock.monotonic_ms()

    async def save(self, progress: dict[str, Any], *, done: int, failed: int = 0, total: int | None = None) -> None:
        """Write the place from which another gateway would continue; a kind calls it after each piece of work.

        Raises:
            LeaseLostError: Another gateway has the job; what was done since the last call will be done again.
            CancelRequestedError: A caller cancelled the job.
            ProblemError: 503: Postgres is unavailable.
        """
        began_ms = self._clock.monotonic_ms()
        async with self._metadata.transaction() as session:
            saved = await JobRepository(session).save(
                self.job, lease=LEASE, progress=progress, done=done, failed=failed, total=total
            )
        self._renewed(saved, began_ms)

    async def renew(self) -> None:
        """Renew the lease. Raises LeaseLostError, CancelRequestedError; an unavailable Postgres only uses the lease up."""
        began_ms = self._clock.monotonic_ms()
        try:
            async with self._metadata.transaction() as session:
                renewed = await JobRepository(session).renew(self.job, lease=LEASE)
        except ProblemError as error:
            # The spare time is for the work to stop in.
            if began_ms - self._renewed_ms > LEASE.total_seconds() * 1_000 - 3 * RENEW_S * 1_000:
                raise LeaseLostError(f"the lease could not be renewed: {error.detail}") from None
            return
        self._renewed(renewed, began_ms)

    def _renewed(self, job: Job | None, began_ms: int) -> None:
        if job is None:
            raise LeaseLostError("another gateway has the job")
        self.job = job
        self._renewed_ms = began_ms
        if job.is_cancel_requested:
            raise CancelRequestedError


class JobKind(Protocol):
    """One kind of work.

    Attributes:
        name: Name of the kind in the contract.
    """

    name: str

    async def run(self, work: Work) -> None:
        """Do the work from `work.job.progress` to its end.

        The work after the last `save` may be done twice, if the gateway dies. Any await may be cancelled; if
        `work.job.is_cancel_requested`, nobody continues the job, and the kind may still save what it has done.

        Raises:
            ProblemError, ClientError: If it is retryable, the job continues after a pause; otherwise the job has failed.
        """
        ...


class JobRunner:
    """Runs jobs of the given kinds.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        keep_days: int,
        due: asyncio.Event,
    ) -> None:
        """Create it.

        Args:
            kinds: Kinds by name. Features may add kinds until the gateway starts.
            metadata: Connection to Postgres.
            metrics: Counters of the gateway.
            clock: Clock.
            keep_days: Time for which jobs are kept after their end; 0: for ever.
            due: Set when a job may be due.
        """
        self._kinds = kinds
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._keep_days = keep_days
        self._wake = due
        self._is_unavailable = False
        self._tidy_at_ms = clock.monotonic_ms()

    async def run(self) -> None:
        """Run jobs until cancelled. Return at once if the gateway has no Postgres."""
        if self._metadata.database is None:
            return
        running = TaskSet("jobs", self._work_failed)
        try:
            while True:
                pause_s = await self._start_due(running)
                self._metrics.gauges["jobs_running"] = len(running)
                await wait_for_event(self._wake, pause_s)
                self._wake.clear()
        finally:
            await running.cancel()

    async def _start_due(self, running: TaskSet) -> float:
        """Claim and start due jobs; return the pause before the next call, in s."""
        try:
            await self._tidy()
            room = RUNNING_MAX - len(running)
            if room > 0:
                async with self._metadata.transaction() as session:
                    claimed = await JobRepository(session).claim(list(self._kinds), lease=LEASE, count_max=room)
                for job in claimed:
                    running.spawn(self._run_claimed(job))
        except ProblemError as error:
            if not self._is_unavailable:
                log.warning("jobs are not started", reason=error.detail)
            self._is_unavailable = True
            return AWAY_S
        self._is_unavailable = False
        return POLL_S

    async def _run_claimed(self, job: Job) -> None:
        work = Work(job, self._metadata, self._clock)
        try:
            await self._do(work)
        except LeaseLostError as error:
            log.warning("a job continues elsewhere", job=str(job.id), kind=job.kind, reason=str(error))
        except CancelRequestedError:
            await self._end(work, CANCELLED, work.note)
        except asyncio.CancelledError:
            # The gateway stops. Without this, the job would wait for the end of its lease.
            await self._postpone(work, timedelta(0), "the gateway stopped")
            raise
        except Exception as error:  # boundary: of the work of one job.
            if not await self._settle(work, problem_of(error)):
                log.exception("a job failed with an internal error", job=str(job.id), kind=job.kind)
        else:
            await self._end(work, DONE, work.note)
        finally:
            self._wake.set()

    async def _do(self, work: Work) -> None:
        """Do the work of a job, and renew its lease meanwhile."""
        doing = asyncio.ensure_future(self._kinds[work.job.kind].run(work))
        try:
            while not (await asyncio.wait({doing}, timeout=RENEW_S))[0]:
                await work.renew()
        finally:
            doing.cancel()
            await asyncio.wait({doing})
            # Otherwise asyncio would log an error of work that was stopped.
            _ = doing.cancelled() or doing.exception()
        await doing

    async def _settle(self, work: Work, problem: ProblemError) -> bool:
        """End or postpone a job that met a problem; return False for a fault of the gateway itself."""
        if problem.kind is INTERNAL:
            self._metrics.count("job_faults")
            await self._end(work, FAILED, "internal error; the gateway's log describes it")
            return False
        if problem.retryable:
            pause_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(work.job.claims - 1, 10))
            await self._postpone(work, timedelta(seconds=pause_s), problem.detail)
        else:
            await self._end(work, FAILED, problem.detail)
        return True

    async def _end(self, work: Work, state: str, error: str | None = None) -> None:
        self._metrics.count(f"jobs_{state}")
        try:
            async with self._metadata.transaction() as session:
                await JobRepository(session).end(work.job, state, error=error)
        except ProblemError as problem:
            # The job is due again after its lease. Its work then ends at once.
            log.warning("the end of a job was not written", job=str(work.job.id), state=state, reason=problem.detail)

    async def _postpone(self, work: Work, pause: timedelta, reason: str) -> None:
        try:
            async with self._metadata.transaction() as session:
                await JobRepository(session).postpone(work.job, pause=pause, error=reason)
        except ProblemError as problem:
            log.warning("a job waits for the end of its lease", job=str(work.job.id), reason=problem.detail)

    async def _tidy(self) -> None:
        """Delete old jobs, once an hour."""
        now_ms = self._clock.monotonic_ms()
        if self._keep_days == 0 or now_ms < self._tidy_at_ms:
            return
        before = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC) - timedelta(days=self._keep_days)
        while True:
            async with self._metadata.transaction() as session:
                if await JobRepository(session).delete_ended(before=before, limit=TIDY_ROWS) < TIDY_ROWS:
                    break
        self._tidy_at_ms = now_ms + int(TIDY_INTERVAL_S * 1_000)

    def _work_failed(self, error: BaseException) -> None:
        self._metrics.count("job_faults")
        log.error("a job failed with an internal error", reason=f"{type(error).__name__}: {error}")
