"""Workers: a worker is one thread for work that waits for the disk. Tools and tests use an inline replacement.

A worker runs its jobs one after the other, so two jobs of one worker never need a lock between them. Submit a long job
with `submit_slices`. Then the other jobs and the close of the worker wait for at most one slice.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class Worker(Protocol):
    """An executor that runs jobs in the order in which they were submitted."""

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Submit a job. The returned future gets its result or its exception."""
        ...

    def close(self) -> None:
        """Wait for all submitted jobs. The caller must not submit more jobs afterwards."""
        ...


class ThreadWorker:
    """A worker with its own thread."""

    __slots__ = ("_executor",)

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Submit a job."""
        return self._executor.submit(job)

    def close(self) -> None:
        """Wait for all jobs and end the thread."""
        self._executor.shutdown(wait=True)


class InlineWorker:
    """A worker that runs each job at once in the thread of the caller, so that the order of all work is fixed.

    If a running job submits another job, the other job runs after it, as in a thread.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] | None = None

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Run the job, and then the jobs that it has submitted."""
        future: Future[Any] = Future()
        if self._waiting is not None:
            self._waiting.append((job, future))
            return future
        self._waiting = waiting = deque([(job, future)])
        try:
            while waiting:
                _run(*waiting.popleft())
        finally:
            self._waiting = None
        return future

    def close(self) -> None:
        """Do nothing, because no job ever waits."""


def submit_slices(worker: Worker, slices: Iterator[None], is_wanted: Callable[[], bool]) -> "Future[bool]":
    """Submit a long job in slices. Each step of the iterator `slices` does one slice.

    Each slice is a separate job, so jobs that are submitted later run between two slices.

    Args:
        worker: The worker that runs the slices.
        slices: The iterator that does one slice per step.
        is_wanted: Returns whether to continue; called before each slice. If it returns False, the other slices are
            skipped. It must return False before the worker is closed; otherwise `close` waits for all slices.

    Returns:
        A future that can't be cancelled. Its result is True after the last slice, or False if slices were skipped. If a
        slice raises an exception, the future has that exception.
    """
    done: Future[bool] = Future()
    done.set_running_or_notify_cancel()

    def step() -> None:
        if not is_wanted():
            done.set_result(False)
            return
        try:
            next(slices)
        except StopIteration:
            done.set_result(True)
        except Exception as error:  # noqa: BLE001 # boundary: as in a thread, the future carries it to the caller.
            done.set_exception(error)
        else:
            submit_next()

    def submit_next() -> None:
        try:
            worker.submit(step)
        except RuntimeError:  # The worker was closed while the slice ran.
            done.set_result(False)

    submit_next()
    return done


def _run(job: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 # boundary: as in a thread, the future carries it to the caller.
        future.set_exception(error)
