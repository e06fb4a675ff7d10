"""The lifecycle of a service process: start, report readiness, wait for a signal or a failure, stop in order.

A service reports readiness with a file (`--ready-file`). The file is created atomically as soon as the service answers
on its port. It contains one JSON object with the name, the pid and the addresses of the service. If the service uses
port 0, other processes learn the real port from this file.
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

from gantry.runtime.errors import EXIT_LOST, ResourceLostError, StartupError, describe_os_error
from gantry.runtime.tasks import TaskScope
from gantry.runtime.telemetry import logger

log = logger("runtime.lifecycle")

# Python's default is 700. It is made for programs that create many reference cycles. A start creates many objects that
# stay, among which Python would look for garbage hundreds of times.
GC_ALLOCATIONS = 50_000
# Python's default is 5 ms. While the event loop is busy, a thread that has flushed a file waits that long before it can
# report the flush. The producers of the flushed messages wait as well.
SWITCH_INTERVAL_S = 0.0005
# Each connection and each queue of a store uses one or two descriptors. Many systems set a limit of 1,024.
OPEN_FILES_WANTED = 65_536


class Lifecycle:
    """The argument of a service's main coroutine: its tasks, its stop event and the ready file."""

    def __init__(self, name: str, scope: TaskScope, ready_file: str | None) -> None:
        self.name = name
        self.scope = scope
        self.stopping = asyncio.Event()
        self._ready_file = ready_file

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Report that the service now answers. `facts` go into the ready file and the log."""
        # The objects created so far live as long as the process, so the garbage collector need not scan them every few
        # hundred messages. The hot paths create no reference cycles, so rarer collections cost little memory.
        gc.collect()
        gc.freeze()
        log.info("ready", service=self.name, **facts)
        if self._ready_file is not None:
            temporary = self._ready_file + ".tmp"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"name": self.name, "pid": os.getpid(), **facts}, file)
            os.replace(temporary, self._ready_file)

    async def wait_for_stop(self) -> None:
        """Wait for SIGTERM or SIGINT. If a task fails first, raise its error."""
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
    """Run a service until it gets a signal to stop, and return the exit code of the process.

    `main` builds and starts everything, calls `lifecycle.ready(...)`, awaits `lifecycle.wait_for_stop()`, and stops
    everything in order. For a StartupError the function prints one line to stderr and returns 1; for a ResourceLostError it
    prints one line and returns EXIT_LOST. For an error of the operating system, in `main` or in the event loop, it
    prints one line and returns 1.
    """
    if not __debug__:
        print("python -O leaves out the asserts Gantry relies on: start without -O", file=sys.stderr)
        return 1
    _allow_many_files()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_ALLOCATIONS)

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
    except ResourceLostError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_LOST
    except OSError as error:
        if error.errno is None:
            raise  # Not from a system call, for example a TimeoutError.
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.critical("the process ends", reason=describe_os_error(error), place=f"{place.filename}:{place.lineno}")
        print(
            f"{name}: the operating system refused what the process needs: {describe_os_error(error)}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class _LoopRunner:
    """An asyncio.Runner with uvloop that reports the real error if the loop can't start.

    At each start of its loop uvloop makes system calls, which may fail for lack of memory. After such a failure uvloop
    still believes that the loop runs, and closing the loop raises RuntimeError instead of the OSError.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> asyncio.Runner:
        # Run one turn without a task. If it fails, no task is left behind.
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
                return  # Keep the first error. It may be the reason for the failure of the loop.
            if isinstance(cause, OSError):
                raise cause from None
            raise


def _allow_many_files() -> None:
    """Raise the soft limit of open files to OPEN_FILES_WANTED, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
