"""Operations that need the disk: rounds, turns of connections, limits, and operations whose connection is gone."""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from services.broker.coldreader import ROUND_BYTES_MAX, ROUNDS_MAX, ColdReader, ColdReadsBusyError
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.pages import NotInMemoryError, Pages
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock


class HandWorker:
    """A worker whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.is_closed = False

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def finish(self) -> None:
        job, future = self.jobs.pop(0)
        try:
            future.set_result(job())
        except OSError as error:
            future.set_exception(error)

    def close(self) -> None:
        self.is_closed = True


class Place:
    """A cold file of 64 MiB, and a reader."""

    def __init__(self, *rules: FaultRule, workers: int = 1, waiting_max: int = 8) -> None:
        self.files = MemFileSystem(FakeClock())
        faulty = FaultFileSystem(self.files, *rules)
        self.file = MappedFile(0, faulty.create("/a", 64 << 20))
        self.files.cold.add("/a")
        self.pages = Pages()
        self.workers = [HandWorker() for _ in range(workers)]
        self.reader = ColdReader(
            self.pages.attempt, lambda: faulty, self.workers, asyncio.get_running_loop(), waiting_max=waiting_max
        )
        self.ended: list[str] = []

    def start(self, owner: str, at: int = 0, size: int = 10) -> "asyncio.Task[Any]":
        async def work() -> None:
            await self.reader.run(owner, lambda: self.pages.read(self.file, at, size))
            self.ended.append(owner)

        return asyncio.create_task(work())

    async def finish(self, worker: int = 0) -> None:
        self.workers[worker].finish()
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_connections_take_turns_however_many_requests_one_has() -> None:
    place = Place()
    tasks = [place.start(owner, at) for at, owner in enumerate("AAAABC")]
    await turns()
    assert place.reader.waiting_count == 5
    for _ in tasks:
        await place.finish()
    assert place.ended == ["A", "B", "C", "A", "A", "A"]
    assert (place.reader.reads, place.reader.read_bytes, place.reader.waiting_count) == (6, 60, 0)


async def test_a_connection_has_one_read_in_flight_though_workers_are_idle() -> None:
    place = Place(workers=3)
    tasks = [place.start(owner, at) for at, owner in enumerate("AAB")]
    await turns()
    assert [len(worker.jobs) for worker in place.workers] == [0, 1, 1]
    await place.finish(1)  # B's job is next: the worker starts no job for A while A's first one runs.
    assert [len(worker.jobs) for worker in place.workers] == [0, 0, 1]
    await place.finish(2)
    assert sum(len(worker.jobs) for worker in place.workers) == 1
    for worker in place.workers:
        if worker.jobs:
            worker.finish()
    await asyncio.gather(*tasks)
    assert place.ended == ["B", "A", "A"]


async def test_one_request_too_many_is_refused_and_told_to_retry() -> None:
    place = Place(waiting_max=2)
    tasks = [place.start(owner) for owner in "ABC"]  # One runs, two wait.
    await turns()
    with pytest.raises(ColdReadsBusyError, match=r"^\[OVERLOAD\].*2 requests wait for the disk, the limit is 2"):
        await place.start("D")
    assert place.reader.refused == 1
    for _ in range(3):
        await place.finish()
    await asyncio.gather(*tasks)


async def test_requests_of_a_closed_connection_are_dropped() -> None:
    place = Place()
    running, *waiting = [place.start(owner) for owner in "ABB"]
    await turns()
    place.reader.forget("B")
    await turns()
    assert all(task.cancelled() for task in waiting)
    assert place.reader.waiting_count == 0
    place.reader.forget("A")  # Its read is running and ends.
    await place.finish()
    await running
    assert not place.workers[0].jobs
    assert place.file.close()


async def test_a_cancelled_task_is_skipped() -> None:
    place = Place()
    first, second, third = [place.start(owner) for owner in "ABC"]
    await turns()
    second.cancel()
    await place.finish()
    await place.finish()
    await asyncio.gather(first, third)
    assert (place.ended, place.reader.waiting_count) == (["A", "C"], 0)
    assert place.file.close()


async def test_closing_drops_waiting_jobs_and_refuses_new_ones() -> None:
    place = Place()
    running, waiting = place.start("A"), place.start("B")
    await turns()
    await place.reader.close()
    await place.finish()
    await running
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert place.workers[0].is_closed
    with pytest.raises(ColdReadsBusyError, match="the broker is stopping"):
        await place.start("C")


async def test_pages_beyond_the_limit_of_a_round_are_read_in_the_next_round() -> None:
    place = Place()
    size = ROUND_BYTES_MAX // 2

    def operation() -> int:
        for at in range(0, 5 * size, size):
            try:
                place.pages.window(place.file, at, size)
            except NotInMemoryError as error:
                place.pages.note(error)
        return 7

    task = asyncio.create_task(place.reader.run("A", operation))
    for _ in range(3):
        await turns()
        await place.finish()
    assert await task == 7
    assert (place.reader.reads, place.reader.read_bytes) == (3, 5 * size)


async def test_an_operation_that_always_needs_more_pages_ends() -> None:
    place = Place()
    rounds = 0

    def operation() -> None:
        nonlocal rounds
        rounds += 1
        place.pages.read(place.file, rounds * 100, 10)

    task = asyncio.create_task(place.reader.run("A", operation))
    await turns()
    while place.workers[0].jobs:
        await place.finish()
    with pytest.raises(ColdReadsBusyError, match=f"the limits are .* bytes and {ROUNDS_MAX} rounds"):
        await task
    assert place.reader.reads == ROUNDS_MAX


async def test_an_unreadable_range_is_counted_and_another_error_fails_the_request() -> None:
    place = Place(FaultRule("pread", times=2), FaultRule("pread", error=errno.EMFILE))
    task = place.start("A")
    await turns()
    await place.finish()
    with pytest.raises(Exception, match="/a can't be read: 10 bytes at 0"):
        await task
    assert place.reader.unreadable_reads == 1
    task = place.start("A")
    await turns()
    await place.finish()
    with pytest.raises(OSError, match="Too many open files"):
        await task
