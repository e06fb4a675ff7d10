"""Starts workers for the runs that the scheduler has claimed, watches the runs, and ends those that take too long.

Starting a Spark session takes the longest part of a run. So a worker that has completed a run without an error is kept
for `worker_idle_ms`, for the next run. If a run ends in any other way, its worker is ended, too. A worker may also be
prepared before its run is due. Then the run begins with an open session.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gantry.cli.stack.supervisor import describe_exit
from gantry.runtime.telemetry import logger
from spark.classarchive import archive_folder
from spark.master import is_local_master
from spark.reportfiles import log_file
from spark.runs import PrunedRun, Run
from spark.scheduler.decide import EndedRun, RunEnding, ending_of
from spark.scheduler.jobs import JOBS, ScheduledJob
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.workers import Worker, start_worker

log = logger("scheduler")

IDLE_MAX: Final = 1
"""The limit for idle workers. Each is a JVM of some hundred MiB."""
RUNS_MAX: Final = 100
"""The limit for the runs of one worker, so that a leak can't grow forever."""
AWAITED_S: Final = 10.0
"""The time for which a prepared worker waits for its run after the run is due."""
READY_TIMEOUT_S: Final = 120.0
RECORD_TIMEOUT_S: Final = 600.0
"""It is long, because recording has a low priority and only uses idle processors."""
REMOVED_MAX: Final = 100
"""The most old runs whose files one job removes from a URI. A deletion in an object store takes a fraction of a
second."""
LOG_TAIL_BYTES: Final = 8_192


class Children:
    """The workers of this scheduler.

    Concurrency: used from the event loop's thread, which must be the process's main thread
    (gantry.cli.stack.processes).
    """

    def __init__(self, settings: SchedulerSettings, *, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Create it, without workers.

        Args:
            settings: The settings of the scheduler.
            command: The command that starts a worker; see start_worker.
            environment: The environment of workers.
        """
        self._settings = settings
        self._command = command
        self._environment = environment
        # On a cluster, the session of an idle worker would keep executors that others could use.
        self._idle_s = settings.worker_idle_ms / 1_000 if is_local_master(settings.master) else 0.0
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        self._awaited_until_s = 0.0
        """The time of the loop until which an idle worker waits for a run that is due soon."""
        self._readying: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        """Tasks besides runs: preparing a worker, and recording classes."""
        self._may_record = is_local_master(settings.master)
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._outdated: list[PrunedRun] = []

    def remove_later(self, runs: Sequence[PrunedRun]) -> None:
        """Let the next runs remove the files of old runs. The files are at a URI, which this process can't write to."""
        self._outdated += runs

    def stop(self) -> None:
        """End idle workers now. Runs may continue for stop_timeout_ms; then they are ended."""
        self._stopping.set()
        for worker in list(self._idle):
            self._drop(worker)
        for task in self._aside:
            task.cancel()

    async def close(self) -> None:
        """Wait until all workers have ended."""
        while self._aside or self._ending:
            await asyncio.wait(self._aside | self._ending)

    def make_ready(self, job: str, *, within_s: float) -> None:
        """Prepare a worker with an open session for a run of a job that is due in `within_s`.

        Does nothing if workers are never idle: on a cluster, or if `worker_idle_ms` is 0.
        """
        if not self._idle_s or self._stopping.is_set() or self._readying is not None:
            return
        loop = asyncio.get_running_loop()
        self._awaited_until_s = loop.time() + within_s + AWAITED_S
        waiting = self._take()
        if waiting is not None:
            self._keep(waiting)
            return
        self._readying = self._start_task(self._make_ready(job))
        self._readying.add_done_callback(self._forget_readying)

    def record_classes(self) -> None:
        """Make the archive of Spark's classes in the background, if it is missing. Tries it once in this process."""
        folder = archive_folder(self._settings.class_archive, self._environment)
        if self._may_record and folder is not None and not self._stopping.is_set():
            self._may_record = False
            self._start_task(self._record(folder))

    async def run(self, run: Run) -> EndedRun:
        """Let a worker execute a run; return how it ended. Never raises an error."""
        path = log_file(self._settings.log_folder, run.job, run.id)
        if not self._idle and self._readying is not None:
            await asyncio.wait({self._readying})
        removed = self._outdated[:REMOVED_MAX]
        try:
            worker = self._take() or await start_worker(self._command, self._environment)
        except OSError as error:
            return EndedRun(
                run, RunEnding.FAILED, f"can't be started: {error.filename or path}: {error.strerror or error}"
            )
        log.info("started", job=run.job, run=str(run.id), attempt=run.attempt, pid=worker.pid, log=str(path))
        ended: EndedRun | None = None
        try:
            ended = await self._watch(worker, job_arguments(self._settings, run, removed), run, path)
        finally:
            if ended is None:
                # This task was cancelled. Everything that the worker has started must end.
                worker.kill()
        if ended.ending is RunEnding.DONE:
            self._outdated = [one for one in self._outdated if one not in removed]
            self._keep(worker)
        else:
            await worker.end()
        # The next attempt writes a new log, and its claim clears the error in Postgres.
        reason = {} if ended.ending is RunEnding.DONE else {"reason": ended.reason}
        log.info("ended", job=run.job, run=str(run.id), attempt=run.attempt, ending=ended.ending.value, **reason)
        return ended

    async def _make_ready(self, job: str) -> None:
        path = Path(self._settings.log_folder) / job / "ready.log"
        given = shared_arguments(self._settings, job)
        worker = await self._start_with(
            "prepare a worker", lambda new: new.get_ready(job, given, path), path, READY_TIMEOUT_S
        )
        if worker is not None:
            log.info("prepared a worker", job=job, pid=worker.pid)
            self._keep(worker)

    async def _record(self, folder: str) -> None:
        path = Path(self._settings.log_folder) / "class-archive.log"
        worker = await self._start_with("record classes", lambda new: new.record(folder, path), path, RECORD_TIMEOUT_S)
        if worker is not None:
            log.info("the archive of Spark's classes is ready", folder=folder)
            self._end(worker)

    async def _start_with(
        self, work: str, ask: Callable[[Worker], Coroutine[Any, Any, int | None]], path: Path, timeout_s: float
    ) -> Worker | None:
        """Return a new worker that has completed `ask`. On failure end it, log a warning, return None."""
        worker: Worker | None = None
        code: int | None = None
        reason = "it took too long"
        try:
            worker = await start_worker(self._command, self._environment)
            async with asyncio.timeout(timeout_s):
                code = await ask(worker)
            reason = last_log_line(path)
        except TimeoutError:
            pass
        except OSError as error:
            reason = f"{error.filename or path}: {error.strerror or error}"
        finally:
            # This also runs if this task is cancelled.
            if worker is not None and code != 0:
                self._end(worker)
        if code != 0:
            log.warning("background work failed", work=work, reason=reason)
            return None
        return worker

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        return task

    def _forget_readying(self, task: asyncio.Task[None]) -> None:
        self._readying = None

    async def _watch(self, worker: Worker, arguments: Sequence[str], run: Run, path: Path) -> EndedRun:
        """Wait until a worker has completed its run. Give up if it takes too long or the scheduler stops."""
        timeout_s = self._settings.timeout_ms_of(run.job) / 1_000
        doing = asyncio.ensure_future(worker.do(run.job, arguments, path))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({doing, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ending = RunEnding.STOPPED if stopped.done() else RunEnding.TIMED_OUT
            if ending is RunEnding.STOPPED:
                await asyncio.wait({doing}, timeout=self._settings.stop_timeout_ms / 1_000)
            if doing.done():
                return await _ended_run(worker, run, path, doing)
            reason = (
                "the scheduler was stopped"
                if ending is RunEnding.STOPPED
                else f"not done after {timeout_s:g} s, and killed"
            )
            return EndedRun(run, ending, reason)
        finally:
            doing.cancel()
            stopped.cancel()

    def _take(self) -> Worker | None:
        """Return an idle worker; None if there is none."""
        while self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            if worker.is_ready:
                return worker
            self._end(worker)
        return None

    def _keep(self, worker: Worker) -> None:
        may_stay = worker.is_ready and worker.runs < RUNS_MAX and len(self._idle) < IDLE_MAX
        if not may_stay or not self._idle_s or self._stopping.is_set():
            self._end(worker)
            return
        loop = asyncio.get_running_loop()
        idle_s = max(self._idle_s, self._awaited_until_s - loop.time())
        self._idle[worker] = loop.call_later(idle_s, self._drop, worker)

    def _drop(self, worker: Worker) -> None:
        """End an idle worker."""
        self._idle.pop(worker).cancel()
        log.info("ended an idle worker", pid=worker.pid)
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        task = asyncio.ensure_future(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _ended_run(worker: Worker, run: Run, path: Path, doing: "asyncio.Future[int | None]") -> EndedRun:
    """Return the ending of a run that its worker has completed, or that ended with its worker."""
    try:
        code = doing.result()
    except OSError as error:
        return EndedRun(run, RunEnding.FAILED, f"its log can't be written: {error.filename}: {error.strerror or error}")
    if code is None:
        code = await worker.wait()
        # A worker that ends with code 0 before it answers has not done this run.
        last_line = last_log_line(path)
        reason = f"its process {describe_exit(code)}" + (
            f"; the last line of its log: {last_line}" if last_line else ""
        )
        return EndedRun(run, ending_of(code or 1), reason)
    return EndedRun(run, ending_of(code), last_log_line(path))


def job_arguments(settings: SchedulerSettings, run: Run, removed: Sequence[PrunedRun] = ()) -> Sequence[str]:
    """Return the command line of a run that also removes the files of the runs in `removed`."""
    return (
        *("--run", str(run.id)),
        *("--attempt", str(run.attempt)),
        *shared_arguments(settings, run.job),
        *(word for one in removed for word in ("--remove", f"{one.job}/{one.id}")),
    )


def shared_arguments(settings: SchedulerSettings, job: str) -> Sequence[str]:
    """Return the arguments that the command lines of all runs of a job have in common."""
    return (
        *("--namesrv", ";".join(settings.namesrv)),
        *("--master", settings.master),
        *("--output", settings.output),
        *("--class-archive", settings.class_archive),
        *JOBS.get(job, ScheduledJob()).arguments(settings),
        *(() if settings.access_file is None else ("--access-file", settings.access_file)),
    )


def last_log_line(path: Path) -> str:
    """Return the last line of a log, which gives the reason if a job failed; empty if the log is empty or missing."""
    with suppress(OSError):
        with path.open("rb") as log_file:
            log_file.seek(0, 2)
            log_file.seek(max(0, log_file.tell() - LOG_TAIL_BYTES))
            lines = log_file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
