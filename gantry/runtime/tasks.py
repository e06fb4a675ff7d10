"""Tasks: every task has a name and an owner. If a background task fails, the service ends.

The end is better than a service that still answers on its port but has lost its dispatch loop or its flush loop. After
a restart, recovery brings the service back to a known state.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

EXECUTOR_THREADS_MAX = 4


class TaskScope:
    """The owner of the background tasks and worker threads of a service.

    Concurrency: only the thread of the event loop uses a scope. At its end, `async with` cancels the tasks that still
    run and waits for their cancellation. It does not wait for them to finish their work.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._failed: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the scope."""
        self._failed = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel all tasks, wait until they have ended, and shut the threads down."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for executor in self._executors.values():
                executor.shutdown(wait=True, cancel_futures=True)
            if self._failed is not None and not self._failed.done():
                self._failed.cancel()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a background task of the service. If it fails, `wait_for_failure` raises its error."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def in_thread(self, executor: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking work in the named executor and return its result."""
        pool = self._executors.get(executor)
        if pool is None:
            pool = ThreadPoolExecutor(EXECUTOR_THREADS_MAX, thread_name_prefix=f"{self._name}.{executor}")
            self._executors[executor] = pool
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))

    async def wait_for_failure(self) -> None:
        """Wait until a spawned task fails, and raise its error."""
        assert self._failed is not None, "used before async with"
        await asyncio.shield(self._failed)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until an event is set; return whether it was set within the time.

    A task that is cancelled while it waits always ends. `asyncio.wait_for` of Python 3.11 ignores a cancellation that comes
    in the same turn of the loop as the event.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


class TaskSet:
    """The owner of short tasks that are independent of each other, such as the requests of a server.

    A coroutine must handle its own errors. If it still ends with an exception, this is a bug, and the set calls
    `on_failure` with the exception.

    Concurrency: only the thread of the event loop uses a set.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task. The task is removed when it ends."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel the running tasks and wait until all have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
