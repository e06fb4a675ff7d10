"""Tasks: every task has a name and an owner, and one that dies unasked ends the service.

A service whose dispatch or flush loop is gone but whose port still answers is worse than one that is restarted:
recovery is what brings it back to a known state.
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
    """Owns the background tasks and worker threads of a service.

    Concurrency: used from the event loop's thread only. `async with` waits for nothing at its end: it cancels
    what still runs and collects it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._failed: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Start owning."""
        self._failed = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel and collect everything."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
        if self._failed is not None and not self._failed.done():
            self._failed.cancel()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine for as long as the service lives; its failure is the service's."""
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
        """Wait until a spawned task fails, and raise what it raised."""
        assert self._failed is not None, "used before async with"
        await asyncio.shield(self._failed)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)


class TaskBag:
    """Owns tasks that come and go and may each fail alone, such as the requests of a server.

    Whoever puts a coroutine in sees to its errors inside it; one that ends with an exception nevertheless is a bug,
    which `on_failure` hears of.

    Concurrency: used from the event loop's thread only.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many are running."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine; its end removes it."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel what still runs and wait until all have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
