"""The supervisor of a stack: it starts processes, restarts those that end, and stops all in a safe order.

If a child ends before it is ready for the first time, the start of the whole stack fails with the child's last log
line. Later, a child that ends is restarted after a pause. The pause doubles with each restart in a row, and is reset
once the child has run for a minute. A child is not restarted after an exit code in `ProcessSpec.final_codes`, because
a person has to act first. Each child runs in a session of its own, so that Ctrl-C reaches only the supervisor, which
stops the children in order. The kernel ends the children if the supervisor is killed (processes.py).
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from gantry.cli.stack.childlogs import ChildLog
from gantry.cli.stack.processes import die_with_parent, family, kill_all
from gantry.runtime.clock import Clock
from gantry.runtime.errors import StartupError
from gantry.runtime.tasks import TaskScope

RESTART_PAUSE_MIN_S = 0.5
RESTART_PAUSE_MAX_S = 30.0
# A child that ran for this long starts with the shortest pause again.
RESTARTS_RESET_AFTER_MS = 60_000
READY_POLL_S = 0.02
STILL_STARTING_EVERY_MS = 15_000
ROTATE_EVERY_S = 5.0
# Time limit of an orderly stop of all children. Remaining processes are then killed.
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The command of one child, its check for readiness, and the way to stop it."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    is_ready: Callable[[int], bool]
    log: ChildLog
    before_start: Callable[[], None] = lambda: None
    stop_rank: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 8.0
    death_signal: signal.Signals = signal.SIGKILL
    identity: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    final_codes: Mapping[int, str] = field(default_factory=dict)
    """Exit codes after which the process is not restarted, each with advice to the operator."""


@dataclass(slots=True)
class Child:
    """A started process."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0

    @property
    def pid(self) -> int | None:
        """The pid of the process while it runs, otherwise None."""
        running = self.process is not None and self.process.returncode is None
        return self.process.pid if self.process is not None and running else None


class Supervisor:
    """Keeps a set of processes alive.

    Concurrency: used from one event loop, whose thread must be the process's main thread (processes.py).
    """

    def __init__(
        self, scope: TaskScope, clock: Clock, *, say: Callable[[str], None], on_change: Callable[[], None]
    ) -> None:
        self._scope = scope
        self._clock = clock
        self._say = say
        self._on_change = on_change
        self._children: list[Child] = []
        self._stopping = False

    @property
    def processes(self) -> list[tuple[str, int]]:
        """Name and pid of each running process."""
        return [(child.spec.name, child.pid) for child in self._children if child.pid is not None]

    def begin(self) -> None:
        """Start the rotation of logs."""
        self._scope.spawn("rotate-logs", self._rotate_logs())

    async def start(self, *specs: ProcessSpec) -> None:
        """Start processes concurrently, and return when all are ready.

        Raises:
            StartupError: A process ended before it was ready. The message is its last log line.
        """
        started = []
        for spec in specs:
            child = Child(spec)
            self._children.append(child)
            await self._spawn(child)
            started.append(child)
        for child in started:
            if not await self._wait_until_ready(child):
                raise StartupError(f"{child.spec.name} did not start: {child.spec.log.last_line()}")
            self._scope.spawn(f"watch-{child.spec.name}", self._watch(child))

    async def stop(self) -> None:
        """Stop the processes rank by rank. After STOP_TIMEOUT_S, kill those that remain."""
        self._stopping = True
        deadline_ms = self._clock.monotonic_ms() + int(STOP_TIMEOUT_S * 1_000)
        for group in stop_groups(self._children):
            living = [child for child in group if child.pid is not None]
            for child in living:
                self._signal(child, child.spec.stop_signal)
            left_s = max(0.1, (deadline_ms - self._clock.monotonic_ms()) / 1_000)
            await asyncio.gather(
                *(self._wait_or_kill(child, min(left_s, child.spec.stop_timeout_s)) for child in living)
            )

    def kill(self) -> None:
        """Kill all processes at once."""
        self._stopping = True
        for child in self._children:
            self._kill(child)

    async def _spawn(self, child: Child) -> None:
        spec = child.spec
        try:
            spec.before_start()
            with spec.log.open() as log:
                child.process = await asyncio.create_subprocess_exec(
                    *spec.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=spec.environment,
                    cwd=spec.folder,
                    start_new_session=True,
                    preexec_fn=die_with_parent(spec.death_signal),
                    **spec.identity,
                )
        except OSError as error:
            # A full disk or a removed program must not stop the other processes.
            what = error.filename or spec.command[0]
            raise StartupError(f"{spec.name} can't be run: {what}: {error.strerror or error}") from None

    async def _wait_until_ready(self, child: Child) -> bool:
        began_ms = said_ms = self._clock.monotonic_ms()
        while (pid := child.pid) is not None:
            if child.spec.is_ready(pid):
                return True
            now_ms = self._clock.monotonic_ms()
            if now_ms - said_ms >= STILL_STARTING_EVERY_MS:
                said_ms = now_ms
                self._say(
                    f"{child.spec.name} is still starting after {(now_ms - began_ms) // 1_000} s: see {child.spec.log.path}"
                )
            await asyncio.sleep(READY_POLL_S)
        return False

    async def _watch(self, child: Child) -> None:
        while True:
            assert child.process is not None
            began_ms = self._clock.monotonic_ms()
            code = await child.process.wait()
            if self._stopping:
                return
            advice = child.spec.final_codes.get(code)
            if advice is not None:
                reason = ""
                with suppress(OSError):  # The log may have been deleted together with the missing folder.
                    reason = f": {child.spec.log.last_line()}"
                self._on_change()
                self._say(f"{child.spec.name} {describe_exit(code)} and is not restarted{reason}. {advice}")
                return
            lived_ms = self._clock.monotonic_ms() - began_ms
            child.restarts = 1 if lived_ms >= RESTARTS_RESET_AFTER_MS else child.restarts + 1
            pause_s = restart_pause_s(child.restarts)
            self._say(f"{child.spec.name} {describe_exit(code)}: restarting it in {pause_s:g} s")
            self._on_change()
            await self._restart(child, pause_s)

    async def _restart(self, child: Child, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if self._stopping:
            return
        try:
            await self._spawn(child)
        except StartupError as error:
            self._say(str(error))
            return
        # If the child ends again before it is ready, _watch restarts it after a longer pause.
        if await self._wait_until_ready(child):
            self._say(f"{child.spec.name} is up again (pid {child.pid})")
            self._on_change()
        elif not self._stopping:
            self._say(f"{child.spec.name} did not start: {child.spec.log.last_line()}")

    async def _wait_or_kill(self, child: Child, timeout_s: float) -> None:
        assert child.process is not None
        try:
            async with asyncio.timeout(timeout_s):
                await child.process.wait()
        except TimeoutError:
            self._say(f"{child.spec.name} did not stop within {timeout_s:.0f} s and is killed")
            self._kill(child)
            await child.process.wait()

    def _kill(self, child: Child) -> None:
        # Kill its descendants, too: children of a hanging Postgres may hang, and would outlive it.
        if child.pid is not None:
            kill_all(family(child.pid))

    def _signal(self, child: Child, number: signal.Signals) -> None:
        if child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_EVERY_S)
            for child in self._children:
                # A full disk must not end the supervisor. The next round tries again.
                with suppress(OSError):
                    child.spec.log.rotate()


def restart_pause_s(restarts: int) -> float:
    """Return the pause before restart number `restarts` in a row: 0.5 s, 1 s, 2 s, … 30 s."""
    assert restarts >= 1
    return float(min(RESTART_PAUSE_MAX_S, RESTART_PAUSE_MIN_S * 2 ** min(restarts - 1, 16)))


def describe_exit(code: int) -> str:
    """Return a description of a process's exit code."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def stop_groups(children: Sequence[Child]) -> list[list[Child]]:
    """Return the children grouped by rank, in the order of the stop."""
    ranked = sorted(children, key=lambda child: child.spec.stop_rank)
    return [list(group) for _, group in groupby(ranked, key=lambda child: child.spec.stop_rank)]


def ready_file_says(path: Path) -> Callable[[int], bool]:
    """Return a check for whether the process with a given pid has written the service's ready file."""

    def is_ready(pid: int) -> bool:
        try:
            return bool(json.loads(path.read_text(encoding="utf-8"))["pid"] == pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    return is_ready
