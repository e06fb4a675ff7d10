"""Worker processes, which execute runs for the scheduler, one after the other (spark/jobs/worker.py).

A worker leads its own process session, so a Ctrl-C for the scheduler does not reach it. When the scheduler dies, the
kernel sends SIGKILL to the worker. The JVM that the worker started ends when its standard input is closed.

All output of the worker, of Spark and of the jobs comes through one socket. It goes to the log of the request that the
worker executes at that time; output between two requests is discarded. Requests and answers use another socket.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from gantry.cli.stack.processes import (
    die_with_parent,
    family,
    is_alive,
    is_group_alive,
    is_running,
    kill_all,
    signal_all,
    signal_group,
)

TERM_TIMEOUT_S: Final = 3.0
"""The time from SIGTERM to SIGKILL."""
KILL_TIMEOUT_S: Final = 10.0
"""The time after SIGKILL to wait for the end of the processes. A process ends only when it is scheduled, and after the
kernel has freed its memory."""
POLL_S: Final = 0.05
"""The time between two checks whether the processes have ended."""
COPIED_AT_ONCE_BYTES: Final = 64 * 1024


class Worker:
    """One worker process, made by start_worker.

    Attributes:
        pid: The process id.
        runs: The number of calls of `do`.

    Concurrency: only the event loop's thread uses it. One request at a time: `do`, `get_ready` or `record`. After a
    cancelled request, end or kill the worker, because its answer may still come.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        output: socket.socket,
    ) -> None:
        self.pid = process.pid
        self.runs = 0
        self._process = process
        self._answers, self._requests = control
        self._output = output
        self._log: BinaryIO | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(output, self._copy)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it is alive."""
        return self._process.returncode

    @property
    def is_ready(self) -> bool:
        """Whether the worker can get a request: it is alive and has not closed its socket.

        The kernel is asked, because the event loop learns later that a process was killed.
        """
        return self._process.returncode is None and not self._answers.at_eof() and is_running(self.pid)

    async def do(self, job: str, arguments: Sequence[str], log: Path) -> int | None:
        """Let the worker execute a run.

        Args:
            job: The name of the job.
            arguments: The arguments of the job's command line.
            log: The file for the output of the run. A file with this name is overwritten.

        Returns:
            The exit code of the job. Only after 0 can the worker get another request. None if the worker ended without
            an answer; `wait` then returns its own exit code.

        Raises:
            OSError: The log can't be written.
        """
        self.runs += 1
        return await self._request({"job": job, "arguments": list(arguments)}, log)

    async def get_ready(self, job: str, arguments: Sequence[str], log: Path) -> int | None:
        """Let the worker open its Spark session and rehearse a job, so that the job's next run starts faster.

        Args:
            job: The name of the job.
            arguments: The arguments that all runs of the job share.
            log: As for `do`, which also has the results and errors.
        """
        return await self._request({"ready_for": job, "arguments": list(arguments)}, log)

    async def record(self, folder: str, log: Path) -> int | None:
        """Let the worker make the archive of Spark's classes in a folder, if it is missing.

        Afterwards, end the worker: it can't execute runs. For `log`, results and errors see `do`.
        """
        return await self._request({"record": folder}, log)

    async def _request(self, request: Mapping[str, object], log: Path) -> int | None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as log_file:
            self._log = log_file
            try:
                self._requests.write(json.dumps(request).encode() + b"\n")
                answer = await self._answers.readline()
                # Output that was printed before the answer is in the socket already.
                for _ in iter(self._copy, False):
                    await asyncio.sleep(0)
            except ConnectionError:
                answer = b""
            finally:
                self._log = None
        if not answer:
            return None
        code: int = json.loads(answer)["code"]
        return code

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code, negative if a signal ended it."""
        return await self._process.wait()

    async def end(self) -> None:
        """End the process and everything it has started: send SIGTERM, and after TERM_TIMEOUT_S SIGKILL to the rest.

        Returns when they are gone, at the latest KILL_TIMEOUT_S after SIGKILL.
        """
        # While the process is alive, its descendants can be found, even those that changed their process group.
        members = family(self.pid) if self._process.returncode is None else []
        self._requests.close()
        signal_group(self.pid, signal.SIGTERM)
        signal_all(members, signal.SIGTERM)
        for _ in range(int(TERM_TIMEOUT_S / POLL_S)):
            if not any(map(is_alive, members)) and not is_group_alive(self.pid):
                break
            await asyncio.sleep(POLL_S)
        self.kill()
        kill_all(member for member in members if is_alive(member))
        for _ in range(int(KILL_TIMEOUT_S / POLL_S)):
            if not any(map(is_alive, members)):
                break
            await asyncio.sleep(POLL_S)
        await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to the process and everything it has started, and close the socket of its output."""
        if self._process.returncode is None:
            kill_all(family(self.pid))
        signal_group(self.pid, signal.SIGKILL)
        self._close_output()

    def _copy(self) -> bool:
        """Copy a part of the output to the log; return whether there may be more."""
        if self._output.fileno() < 0:
            return False
        try:
            printed = self._output.recv(COPIED_AT_ONCE_BYTES)
        except BlockingIOError:
            return False
        if not printed:
            self._close_output()
            return False
        if self._log is not None:
            self._log.write(printed)
            self._log.flush()
        return True

    def _close_output(self) -> None:
        if self._output.fileno() >= 0:
            self._loop.remove_reader(self._output)
            self._output.close()


async def start_worker(command: Sequence[str], environment: Mapping[str, str]) -> Worker:
    """Start a worker.

    Args:
        command: The command line. The descriptor of the socket for requests is appended as its last argument.
        environment: The environment variables of the worker.

    Raises:
        OSError: The worker can't be started.
    """
    ours, theirs = socket.socketpair()
    output, printed = socket.socketpair()
    output.setblocking(False)
    with theirs, printed:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=printed.fileno(),
                stderr=printed.fileno(),
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        except OSError:
            output.close()
            ours.close()
            raise
    return Worker(process, await asyncio.open_connection(sock=ours), output)
