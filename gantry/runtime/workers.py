"""Workers: one thread each for work that waits for the disk, with an inline stand-in for tools and tests.

A worker runs its jobs one after the other, so that two jobs of one worker never need a lock between them. A long job
is handed in with `submit_slices`, so that other jobs of the worker, and its end, wait for one slice at most.
"""

from collections import deque
from collections.abc import Callable, Iterator
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
    """Runs each job at once in the caller's thread, so that everything happens in one order.

    A job that is handed in by a running job runs after it, as in a thread.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] | None = None

    def submit(self, job: Callable[[], R]) -> "Future[R]":
        """Run the job, and then the jobs that it has handed in."""
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
        """Do nothing: no job is ever waiting."""


def submit_slices(worker: Worker, slices: Iterator[None], is_wanted: Callable[[], bool]) -> "Future[bool]":
    """Hand in a long job as an iterator that does a slice of it at each step.

    Each slice is a job of its own, so that jobs handed in later go between two slices.

    Args:
        worker: Runs the slices.
        slices: Does one slice at each step.
        is_wanted: Asked before each slice; if it says no, the rest is left undone. It has to say no before the worker is
            closed, or `close` waits for every slice.

    Returns:
        A future that can't be cancelled: True after the last slice, False if the rest was left undone, or the exception
        of a slice.
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
        except RuntimeError:  # The worker was closed while this slice ran.
            done.set_result(False)

    submit_next()
    return done


def _run(job: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 # boundary: as in a thread, the future carries it to the caller.
        future.set_exception(error)
