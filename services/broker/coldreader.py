"""Requests that need bytes from the disk: read by threads, fairly among connections, while the loop serves all others.

Theory of operation. The loop attempts every reading operation on what is in memory. Where something is missing, `run`
has a reader thread read it and attempts again, with what was read laid over the files; an operation that learns only
then what else it needs (a search) takes several rounds. A request thus waits for the disk in a task, never on the loop.

Fairness. Each connection has at most one read under way; connections take turns. So a consumer with many queues and a
large backlog delays others by one read, not by all of its own. READERS_MAX threads read at the same time: enough for
the queue of a disk, and few enough that the disk still serves the flush thread.

Limits. WAITING_MAX requests wait in all; one more is refused with SYSTEM_BUSY, and its client tries again. A round
reads at most ROUND_BYTES_MAX, an operation ROUNDS_MAX times and OPERATION_BYTES_MAX in all.

Concurrency: the loop's thread; `ColdRead.run` in the workers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from gantry.runtime.files import FileSystem
from gantry.runtime.tasks import TaskBag
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.broker.store.coldreads import ColdRead
from services.broker.store.pages import Blocks, Missing, NotInMemoryError
from services.broker.turns import Turns

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

READERS_MAX: Final = 4
WAITING_MAX: Final = 4_096
"""As many as connections that each pull one queue; the ranges of a request that waits take about 10 KB."""
ROUND_BYTES_MAX: Final = 8 << 20
"""More than the largest record."""
OPERATION_BYTES_MAX: Final = 64 << 20
ROUNDS_MAX: Final = 128
"""A search by time halves up to 2^31 messages, with one round for a unit and one for its record at each step."""

log = logger("broker.coldreader")


class Attempt(Protocol):
    """`MessageStore.attempt`."""

    def __call__(self, operation: Callable[[], R], blocks: Blocks = ...) -> R:
        """Run an operation on what is in memory. Raises NotInMemoryError."""
        ...


class ColdReadsBusyError(Exception):
    """A request can't wait for the disk: too many do already, or it needs more than an operation may read."""


class _Job:
    __slots__ = ("done", "owner", "read")

    def __init__(self, owner: Any, read: ColdRead, done: "asyncio.Future[None]") -> None:
        self.owner = owner
        self.read = read
        self.done = done


class ColdReader:
    """Runs operations that may have to wait for the disk.

    Args:
        attempt: The store's.
        files: Returns the file system that the store lies in.
        workers: The reader threads, one worker each.
        loop: Event loop of the thread that makes all calls.
        waiting_max: For tests.

    Attributes:
        attempt: The store's, for callers that need no task while everything is in memory.
        waiting_count: Reads that wait for a thread.
        reads: Rounds of reading that were done.
        read_bytes: Bytes of them.
        unreadable_reads: Ranges that the disk could not read.
        refused: Operations that were refused.
    """

    def __init__(
        self,
        attempt: Attempt,
        files: Callable[[], FileSystem],
        workers: Sequence[Worker],
        loop: asyncio.AbstractEventLoop,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.attempt = attempt
        self._files = files
        self._workers = workers
        self._idle = list(workers)
        self._loop = loop
        self._waiting_max = waiting_max
        self._queues: dict[Any, deque[_Job]] = {}
        self._busy: set[Any] = set()
        self._is_closed = False
        self._tasks = TaskBag("cold-read", _report)
        self.waiting_count = 0
        self.reads = 0
        self.read_bytes = 0
        self.unreadable_reads = 0
        self.refused = 0

    async def run(self, owner: Any, operation: Callable[[], R], *, turns: Turns | None = None) -> R:
        """Return what an operation returns, as soon as all that it needs could be read.

        Args:
            owner: The connection that asks.
            operation: Run on the loop, once a round; it must not have changed anything when it finds something missing.
            turns: Taken for each attempt.

        Raises:
            ColdReadsBusyError: It can't wait, or needs too much.
        """
        blocks = Blocks()
        for _ in range(ROUNDS_MAX):
            try:
                if turns is None:
                    return self.attempt(operation, blocks)
                async with turns:
                    return self.attempt(operation, blocks)
            except NotInMemoryError as error:
                missing = error.missing
            if blocks.size_bytes >= OPERATION_BYTES_MAX:
                break
            await self._read(owner, missing, blocks)
        self.refused += 1
        raise ColdReadsBusyError(
            f"the request needs more than it may read from the disk at once: {blocks.size_bytes} bytes were read, the "
            f"limits are {OPERATION_BYTES_MAX} bytes and {ROUNDS_MAX} rounds"
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that no task of its connection waits for."""
        self._tasks.spawn(work)

    def forget(self, owner: Any) -> None:
        """Drop what a connection that is gone waits for."""
        for job in self._queues.pop(owner, ()):
            self._drop(job)

    async def close(self) -> None:
        """Drop all that waits, and wait for the reads that are under way."""
        self._is_closed = True
        for owner in list(self._queues):
            self.forget(owner)
        await self._tasks.cancel()
        for worker in self._workers:
            worker.close()
        await asyncio.sleep(0)  # The callbacks of the last reads wait now.

    async def _read(self, owner: Any, missing: list[Missing], blocks: Blocks) -> None:
        if self._is_closed or self.waiting_count >= self._waiting_max:
            self.refused += 1
            reason = (
                "the broker is stopping"
                if self._is_closed
                else f"{self.waiting_count} requests wait for the disk, the limit is {self._waiting_max}"
            )
            raise ColdReadsBusyError(f"[OVERLOAD]system busy, start flow control for a while: {reason}")
        job = _Job(owner, ColdRead(_some_of(missing)), self._loop.create_future())
        self._queues.setdefault(owner, deque()).append(job)
        self.waiting_count += 1
        self._pump()
        await job.done
        job.read.give_to(blocks)

    def _pump(self) -> None:
        """Give waiting reads to idle workers: of the first connection that has none under way."""
        while self._idle:
            owner = next((owner for owner in self._queues if owner not in self._busy), None)
            if owner is None:
                return
            job = self._queues[owner].popleft()
            if not self._queues[owner]:
                del self._queues[owner]
            if job.done.cancelled():
                self._drop(job)
                continue
            self.waiting_count -= 1
            self._busy.add(owner)
            worker = self._idle.pop()
            worker.submit(partial(job.read.run, self._files())).add_done_callback(
                lambda future, job=job, worker=worker: self._done_in_thread(future, job, worker)  # type: ignore[misc]
            )

    def _done_in_thread(self, future: "Future[None]", job: _Job, worker: Worker) -> None:
        try:
            self._loop.call_soon_threadsafe(self._done, future, job, worker)
        except RuntimeError:
            return  # The loop is closed, and nobody is left to be answered.

    def _done(self, future: "Future[None]", job: _Job, worker: Worker) -> None:
        read = job.read
        self._idle.append(worker)
        self._busy.discard(job.owner)
        waiting = self._queues.pop(job.owner, None)
        if waiting is not None:
            self._queues[job.owner] = waiting  # It has had its turn: behind all others.
        self.reads += 1
        self.read_bytes += read.size_bytes
        self.unreadable_reads += len(read.unreadable)
        for file, at, size in read.unreadable:
            log.error("the disk can't read a range", path=file.path, at=at - file.start, size=size)
        if not job.done.done():
            error = future.exception()
            if error is None:
                job.done.set_result(None)
            else:
                job.done.set_exception(error)
        self._pump()

    def _drop(self, job: _Job) -> None:
        self.waiting_count -= 1
        job.done.cancel()


def _some_of(missing: list[Missing]) -> list[Missing]:
    """Return the first ranges, as many as one round may read; the next attempt asks for the others again."""
    total = 0
    for count, part in enumerate(missing):
        total += part.size
        if total > ROUND_BYTES_MAX and count > 0:
            return missing[:count]
    return missing


def _report(error: BaseException) -> None:
    log.error("a pull that waited for the disk failed", exc_info=error)
