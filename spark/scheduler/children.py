"""The runs that a scheduler has claimed, each done by a worker: started, watched, and ended when it takes too long.

A worker that has done a run without an error is kept for the next one for `worker_idle_ms`, since its Spark session is
what takes the longest to start. Each other ending of a run ends its worker, too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gantry.cli.supervisor import how_it_ended
from gantry.runtime.telemetry import logger
from spark.master import is_local_master
from spark.reportfiles import log_file
from spark.runs import Run
from spark.scheduler.decide import Ended, Ending, ending_of
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.workers import Worker, start_worker

log = logger("scheduler")

IDLE_MAX: Final = 1
"""Workers that are kept while they have nothing to do: each is a JVM of some hundred MiB."""
RUNS_MAX: Final = 100
"""Of one worker, so that nothing grows for ever."""
LOG_TAIL_BYTES: Final = 8_192


class Children:
    """The workers of this scheduler.

    Concurrency: used from the event loop's thread, which must be the process's main thread (gantry.cli.processes).
    """

    def __init__(self, settings: SchedulerSettings, *, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Make it.

        Args:
            settings: Of the scheduler.
            command: Starts a worker; see start_worker.
            environment: Of workers.
        """
        self._settings = settings
        self._command = command
        self._environment = environment
        # On a cluster a session holds executors, which others could use.
        self._idle_s = settings.worker_idle_ms / 1_000 if is_local_master(settings.master) else 0.0
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let what runs go on for stop_timeout_ms more, then end it; end what is idle now."""
        self._stopping.set()
        for worker in list(self._idle):
            self._drop(worker)

    async def close(self) -> None:
        """Wait until all workers have ended."""
        while self._ending:
            await asyncio.wait(self._ending)

    async def run(self, run: Run) -> Ended:
        """Have a run done; return how it ended, whichever way; never raises."""
        path = log_file(self._settings.output, run.job, run.id)
        try:
            worker = self._take() or await start_worker(self._command, self._environment)
        except OSError as error:
            return Ended(run, Ending.FAILED, f"can't be started: {error.filename or path}: {error.strerror or error}")
        log.info("started", job=run.job, run=str(run.id), attempt=run.attempt, pid=worker.pid, log=str(path))
        ended: Ended | None = None
        try:
            ended = await self._watch(worker, run, path)
        finally:
            if ended is None:
                # This task is cancelled: nothing that the worker has started may go on.
                worker.kill()
        if ended.ending is Ending.DONE:
            self._keep(worker)
        else:
            await worker.end()
        log.info("ended", job=run.job, run=str(run.id), ending=ended.ending.value)
        return ended

    async def _watch(self, worker: Worker, run: Run, path: Path) -> Ended:
        """Wait until a worker has done its run, or end it."""
        timeout_s = self._settings.timeout_ms_of(run.job) / 1_000
        doing = asyncio.ensure_future(worker.do(run.job, job_arguments(self._settings, run), path))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({doing, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ending = Ending.STOPPED if stopped.done() else Ending.TIMED_OUT
            if ending is Ending.STOPPED:
                await asyncio.wait({doing}, timeout=self._settings.stop_timeout_ms / 1_000)
            if doing.done():
                return await _judge(worker, run, path, doing)
            reason = (
                "the scheduler was stopped"
                if ending is Ending.STOPPED
                else f"not done after {timeout_s:g} s, and killed"
            )
            return Ended(run, ending, reason)
        finally:
            doing.cancel()
            stopped.cancel()

    def _take(self) -> Worker | None:
        """Return a worker that is idle."""
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
        self._idle[worker] = asyncio.get_running_loop().call_later(self._idle_s, self._drop, worker)

    def _drop(self, worker: Worker) -> None:
        """End a worker that is idle."""
        self._idle.pop(worker).cancel()
        log.info("ended a worker that was idle", pid=worker.pid)
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        task = asyncio.ensure_future(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _judge(worker: Worker, run: Run, path: Path, doing: "asyncio.Future[int | None]") -> Ended:
    """Say how a run ended that its worker has done, or left."""
    try:
        code = doing.result()
    except OSError as error:
        return Ended(run, Ending.FAILED, f"its log can't be written: {error.filename}: {error.strerror or error}")
    if code is None:
        code = await worker.wait()
        # One that ends between two runs with the code 0 has not done this one.
        said = last_said(path)
        reason = f"its process {how_it_ended(code)}" + (f"; the last that it said: {said}" if said else "")
        return Ended(run, ending_of(code or 1), reason)
    return Ended(run, ending_of(code), last_said(path))


def job_arguments(settings: SchedulerSettings, run: Run) -> Sequence[str]:
    """Return the command line of a run."""
    return (
        *("--run", str(run.id)),
        *("--attempt", str(run.attempt)),
        *("--namesrv", ";".join(settings.namesrv)),
        *("--master", settings.master),
        *("--output", settings.output),
        *(() if settings.access_file is None else ("--access-file", settings.access_file)),
    )


def last_said(path: Path) -> str:
    """Return the last line of a log, where a job says why it failed; empty where it said nothing."""
    with suppress(OSError):
        with path.open("rb") as said:
            said.seek(0, 2)
            said.seek(max(0, said.tell() - LOG_TAIL_BYTES))
            lines = said.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
