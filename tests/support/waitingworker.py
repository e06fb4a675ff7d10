"""A worker whose jobs run when the test says so; a wait for an unfinished job fails."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gantry.runtime.workers import InlineWorker


class _Awaited(Future[Any]):
    """A future that must be done before its result is read: the store's thread never waits."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "the store's thread waits for a worker"
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        assert self.done(), "the store's thread waits for a worker"
        return super().exception(timeout)


class WaitingWorker:
    """Keeps its jobs until `run`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Keep a job."""
        future = _Awaited()
        self.waiting.append((job, future))
        return future

    def run(self) -> None:
        """Run the present jobs, without those that they submit."""
        waiting, self.waiting = self.waiting, []
        for job, future in waiting:
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - as in a thread, the future carries it.
                future.set_exception(error)

    def run_all(self) -> int:
        """Run until no job is left; return the number of rounds."""
        rounds = 0
        while self.waiting:
            self.run()
            rounds += 1
        return rounds

    def close(self) -> None:
        """Run the remaining jobs, as a thread's end waits for them."""
        self.run_all()


class SwitchedWorker(InlineWorker):
    """Runs jobs at once while the store starts and stops, and hands them to a waiting worker in between."""

    def __init__(self) -> None:
        super().__init__()
        self.late: WaitingWorker | None = None

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run a job, or keep it."""
        return super().submit(job) if self.late is None else self.late.submit(job)
