"""The life of a service process: start, say that it is ready, wait for a signal or a failure, stop in order.

Readiness is told to whoever started the process through a file (`--ready-file`): it appears, whole, once the
service answers on its port, and holds one JSON object with the service's name, pid and addresses. With port 0
this is how others learn the port.
"""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

import uvloop

from gantry.runtime.errors import LostError, StartupError, os_reason
from gantry.runtime.tasks import TaskScope
from gantry.runtime.telemetry import logger

log = logger("runtime.lifecycle")

# Neither a failed start (1) nor wrong usage (2): a supervisor can tell it from these, and may leave it to a person.
EXIT_LOST = 3

# Python's own is 700, made for programs whose objects come and go in cycles.
GC_ALLOCATIONS = 50_000
# Python's own is 5 ms. A thread that has flushed a file waits for as long before it can say so while the event loop is busy,
# and so does everybody whose message it flushed.
SWITCH_INTERVAL_S = 0.0005
# Each connection and each queue of a store takes one or two; many systems start a process with 1,024.
OPEN_FILES_WANTED = 65_536


class Lifecycle:
    """What a service's main coroutine is given: its tasks, its stop event and the ready file."""

    def __init__(self, name: str, scope: TaskScope, ready_file: str | None) -> None:
        self.name = name
        self.scope = scope
        self.stopping = asyncio.Event()
        self._ready_file = ready_file

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Say that the service answers now."""
        # What was made so far lives as long as the process: the collector need not walk it for every few hundred
        # messages. The hot paths make no cycles, so looking for them less often costs little memory.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS)
        log.info("ready", service=self.name, **facts)
        if self._ready_file is not None:
            temporary = self._ready_file + ".tmp"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"name": self.name, "pid": os.getpid(), **facts}, file)
            os.replace(temporary, self._ready_file)

    async def wait_for_stop(self) -> None:
        """Wait for SIGTERM or SIGINT, or raise what ended one of the tasks."""
        stop = asyncio.ensure_future(self.stopping.wait())
        failure = asyncio.ensure_future(self.scope.wait_for_failure())
        try:
            await asyncio.wait({stop, failure}, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                failure.result()
        finally:
            stop.cancel()
            failure.cancel()


def run_service(name: str, main: Callable[[Lifecycle], Awaitable[None]], *, ready_file: str | None = None) -> int:
    """Run a service until it is told to stop; return the process's exit code.

    `main` builds and starts everything, calls `lifecycle.ready(...)`, awaits `lifecycle.wait_for_stop()`, and
    stops everything in order. A StartupError becomes one line on stderr and code 1, a LostError one line and EXIT_LOST.
    An error of the operating system, here or in the event loop itself, becomes one line and code 1.
    """
    if not __debug__:
        print("python -O leaves out the asserts Gantry relies on: start without -O", file=sys.stderr)
        return 1
    _allow_many_files()
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def run() -> None:
        async with TaskScope(name) as scope:
            lifecycle = Lifecycle(name, scope, ready_file)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, lifecycle.stopping.set)
            await main(lifecycle)
            log.info("stopped", service=name)

    try:
        with _LoopRunner() as runner:
            runner.run(run())
    except StartupError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except LostError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_LOST
    except OSError as error:
        if error.errno is None:
            raise  # A TimeoutError, say, which no system call raised.
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.critical("the process ends", reason=os_reason(error), place=f"{place.filename}:{place.lineno}")
        print(f"{name}: the operating system refused what the process needs: {os_reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class _LoopRunner:
    """asyncio.Runner with uvloop, whose loop may fail to turn.

    Each time uvloop's loop begins to turn it makes system calls, which fail without memory. It takes the loop for a
    running one from then on, and closing it raises RuntimeError in place of the OSError.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> asyncio.Runner:
        # One turn without a task: none is left behind if it fails.
        loop = self._runner.get_loop()
        loop.call_soon(loop.stop)
        loop.run_forever()
        return self._runner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.close()
        except (OSError, RuntimeError) as failure:
            cause = failure if isinstance(failure, OSError) else failure.__context__
            if error is not None:
                return  # It comes first, and may be why the loop fails.
            if isinstance(cause, OSError):
                raise cause from None
            raise


def _allow_many_files() -> None:
    """Raise the soft limit of open files as far as the hard one lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
