"""Workers: one thread each for work that waits for the disk, with an inline stand-in for tools and tests.

A worker runs its jobs one after the other, so that two jobs of one worker never need a lock between them.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class Worker(Protocol):
    """Runs jobs in the order they were handed in."""

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Hand in a job; its result or exception is in the future."""
        ...

    def close(self) -> None:
        """Wait for every job that was handed in; none may be handed in afterwards."""
        ...


class ThreadWorker:
    """A worker with a thread of its own."""

    __slots__ = ("_executor",)

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Hand in a job."""
        return self._executor.submit(job)

    def close(self) -> None:
        """Wait for every job and end the thread."""
        self._executor.shutdown(wait=True)


class InlineWorker:
    """Runs each job at once in the caller's thread, so that everything happens in one order."""

    __slots__ = ()

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Run the job."""
        future: Future[Any] = Future()
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001 # boundary: as in a thread, the future carries it to the caller.
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: no job is ever waiting."""
