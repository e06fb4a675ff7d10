"""Reads the bytes that requests need from the disk, in threads, so that the loop can serve all other requests.

Theory of operation. The loop attempts each read operation with the bytes that are in memory. If bytes are missing, a
reader thread reads them. `run` then attempts the operation again, with these bytes laid over the files. A search takes
several rounds, because it learns from one read which bytes it needs next. A request thus waits for the disk in a task
and never blocks the loop.

Fairness. Each connection has at most one read in progress, and connections take turns. A consumer with many queues
and a large backlog thus delays other connections by one read and not by all of its own reads. READERS_MAX threads read
at the same time. This is enough to keep the queue of a disk busy, and few enough that the disk still serves the flush
thread.

Limits. At most WAITING_MAX requests wait. The broker rejects further requests with SYSTEM_BUSY, and their clients try
again. A round reads at most ROUND_BYTES_MAX. An operation takes at most ROUNDS_MAX rounds and reads at most
OPERATION_BYTES_MAX.

Concurrency: everything runs in the loop's thread, except `ColdRead.run`, which runs in the workers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from gantry.runtime.files import FileSystem
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.broker.store.files.coldreads import ColdRead
from services.broker.store.files.pages import MissingRange, NotInMemoryError, ReadBlocks
from services.broker.turns import Turns

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

READERS_MAX: Final = 4
WAITING_MAX: Final = 4_096
"""Enough for 4,096 connections that each pull one queue. The ranges of a waiting request take about 10 KB."""
ROUND_BYTES_MAX: Final = 8 << 20
"""More than the size of the largest record."""
OPERATION_BYTES_MAX: Final = 64 << 20
ROUNDS_MAX: Final = 128
"""Enough for a search by time. It halves up to 2^31 messages and needs two rounds a step: the unit and its record."""

log = logger("broker.coldreader")


class Attempt(Protocol):
    """The type of `MessageStore.attempt`."""

    def __call__(self, operation: Callable[[], R], blocks: ReadBlocks = ...) -> R:
        """Run an operation with the bytes that are in memory. Raises NotInMemoryError."""
        ...


class ColdReadsBusyError(Exception):
    """A request can't wait for the disk: too many requests wait, or it needs more than an operation may read."""


class _Job:
    __slots__ = ("done", "owner", "read")

    def __init__(self, owner: Any, read: ColdRead, done: "asyncio.Future[None]") -> None:
        self.owner = owner
        self.read = read
        self.done = done


class ColdReader:
    """Runs operations that may have to wait for the disk.

    Args:
        attempt: The store's method `attempt`.
        files: Function that returns the store's file system.
        workers: The reader threads, one worker each.
        loop: Event loop of the thread that makes all calls.
        waiting_max: Largest number of waiting reads; tests pass their own.

    Attributes:
        attempt: The store's method, for callers that need no task while everything is in memory.
        waiting_count: Number of reads that wait for a thread.
        reads: Number of finished reads; each serves one round of one operation.
        read_bytes: Number of bytes read from the disk.
        unreadable_reads: Number of ranges that the disk could not read.
        refused: Number of rejected operations.
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
        self._tasks = TaskSet("cold-read", _report)
        self.waiting_count = 0
        self.reads = 0
        self.read_bytes = 0
        self.unreadable_reads = 0
        self.refused = 0

    async def run(self, owner: Any, operation: Callable[[], R], *, turns: Turns | None = None) -> R:
        """Run an operation until all bytes that it needs are there, and return its result.

        Args:
            owner: Connection that sent the request.
            operation: Function that the loop calls once a round. It must not change anything before it raises
                NotInMemoryError.
            turns: Turns of long work; each attempt takes one. None if the operation is short.

        Raises:
            ColdReadsBusyError: The request can't wait, because too many requests wait or the broker is stopping; or it
                needs too many bytes or rounds.
        """
        blocks = ReadBlocks()
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
        """Run a request in a task of its own, for which its connection does not wait."""
        self._tasks.spawn(work)

    def forget(self, owner: Any) -> None:
        """Drop the waiting reads of a closed connection."""
        for job in self._queues.pop(owner, ()):
            self._drop(job)

    async def close(self) -> None:
        """Drop all waiting reads, and wait for the reads in progress."""
        self._is_closed = True
        for owner in list(self._queues):
            self.forget(owner)
        await self._tasks.cancel()
        for worker in self._workers:
            worker.close()
        await asyncio.sleep(0)  # Let the callbacks of the last reads run.

    async def _read(self, owner: Any, missing: list[MissingRange], blocks: ReadBlocks) -> None:
        if self._is_closed or self.waiting_count >= self._waiting_max:
            self.refused += 1
            reason = (
                "the broker is stopping"
                if self._is_closed
                else f"{self.waiting_count} requests wait for the disk, the limit is {self._waiting_max}"
            )
            raise ColdReadsBusyError(f"[OVERLOAD]system busy, start flow control for a while: {reason}")
        job = _Job(owner, ColdRead(_first_ranges(missing)), self._loop.create_future())
        self._queues.setdefault(owner, deque()).append(job)
        self.waiting_count += 1
        self._pump()
        await job.done
        job.read.add_to(blocks)

    def _pump(self) -> None:
        """Give waiting reads to idle workers. A connection with a read in progress is passed over."""
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
            return  # The loop is closed, so no client waits for the reply.

    def _done(self, future: "Future[None]", job: _Job, worker: Worker) -> None:
        read = job.read
        self._idle.append(worker)
        self._busy.discard(job.owner)
        waiting = self._queues.pop(job.owner, None)
        if waiting is not None:
            self._queues[job.owner] = waiting  # This connection has had its turn, so it goes to the end.
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


def _first_ranges(missing: list[MissingRange]) -> list[MissingRange]:
    """Return the first ranges, as many as one round may read. The next attempt asks for the rest again."""
    total = 0
    for count, part in enumerate(missing):
        total += part.size
        if total > ROUND_BYTES_MAX and count > 0:
            return missing[:count]
    return missing


def _report(error: BaseException) -> None:
    log.error("a pull that waited for the disk failed", exc_info=error)
