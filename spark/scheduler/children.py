"""Jobs as child processes: started, watched, ended with everything they have started.

A child is a session of its own and gets SIGKILL from the kernel when the scheduler dies; the JVM below it ends when
its standard input does. What it says goes to `OUTPUT/JOB/RUN.log`.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gantry.cli.processes import die_with_parent, family, is_alive, kill_all, signal_all, signal_group
from gantry.cli.supervisor import how_it_ended
from gantry.runtime.telemetry import logger
from spark.reportfiles import log_file
from spark.runs import Run
from spark.scheduler.decide import Ended, Ending, ending_of
from spark.scheduler.settings import SchedulerSettings

log = logger("scheduler")

TERM_TIMEOUT_S = 3.0
"""From SIGTERM to SIGKILL."""
POLL_S = 0.05
LOG_TAIL_BYTES = 8_192

Command = Callable[[Run], Sequence[str]]


class Children:
    """The processes of the runs that this scheduler has claimed.

    Concurrency: used from the event loop's thread, which must be the process's main thread (gantry.cli.processes).
    """

    def __init__(self, settings: SchedulerSettings, *, command: Command, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._command = command
        self._environment = environment
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let what runs go on for stop_timeout_ms more, then end it."""
        self._stopping.set()

    async def run(self, run: Run) -> Ended:
        """Run a job's process to its end, whichever it is; never raises."""
        path = log_file(self._settings.output, run.job, run.id)
        try:
            process = await self._spawn(run, path)
        except OSError as error:
            return Ended(run, Ending.FAILED, f"can't be started: {error.filename or path}: {error.strerror or error}")
        log.info("started", job=run.job, run=str(run.id), attempt=run.attempt, pid=process.pid, log=str(path))
        try:
            ending = await self._wait(process, self._settings.timeout_ms_of(run.job) / 1_000)
        finally:
            # With whatever it has left behind, also where this task is cancelled.
            if process.returncode is None:
                kill_all(family(process.pid))
        ended = self._judge(run, process, ending, path)
        log.info("ended", job=run.job, run=str(run.id), ending=ended.ending.value, code=process.returncode)
        return ended

    def _judge(self, run: Run, process: asyncio.subprocess.Process, ending: Ending | None, path: Path) -> Ended:
        if ending is Ending.TIMED_OUT:
            return Ended(run, ending, f"not done after {self._settings.timeout_ms_of(run.job) / 1_000:g} s, and killed")
        if ending is Ending.STOPPED:
            return Ended(run, ending, "the scheduler was stopped")
        assert process.returncode is not None
        return Ended(run, ending_of(process.returncode), last_said(path) or how_it_ended(process.returncode))

    async def _spawn(self, run: Run, path: Path) -> asyncio.subprocess.Process:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as said:
            return await asyncio.create_subprocess_exec(
                *self._command(run),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    async def _wait(self, process: asyncio.subprocess.Process, timeout_s: float) -> Ending | None:
        """Wait for a process's end, or end it; return why, None where it ended by itself."""
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ending = Ending.STOPPED if stopped.done() else Ending.TIMED_OUT
            if ending is Ending.STOPPED:
                await asyncio.wait({ended}, timeout=self._settings.stop_timeout_ms / 1_000)
            if ended.done():
                # The JVM goes by itself; should it not, it is not to stay for ever.
                signal_group(process.pid, signal.SIGTERM)
                return None
            await end(process)
            return ending
        finally:
            ended.cancel()
            stopped.cancel()


async def end(process: asyncio.subprocess.Process) -> None:
    """End a process and everything it has started: SIGTERM, and SIGKILL for what is left after TERM_TIMEOUT_S."""
    # Who belongs to it can be seen only while it lives.
    members = family(process.pid)
    signal_group(process.pid, signal.SIGTERM)
    signal_all(members, signal.SIGTERM)
    for _ in range(int(TERM_TIMEOUT_S / POLL_S)):
        if not any(map(is_alive, members)):
            break
        await asyncio.sleep(POLL_S)
    signal_group(process.pid, signal.SIGKILL)
    kill_all(member for member in members if is_alive(member))
    await process.wait()


def last_said(path: Path) -> str:
    """Return the last line of a log, where a job says why it failed; empty where it said nothing."""
    with suppress(OSError):
        with path.open("rb") as said:
            said.seek(0, 2)
            said.seek(max(0, said.tell() - LOG_TAIL_BYTES))
            lines = said.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
