import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gantry.runtime.files import FileSystem
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText
from services.broker.registry.persistence import NotSavedError, Persistence
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock


class Desk:
    """A table, its file, and a thread that may be slow or fail."""

    def __init__(self, files: FileSystem) -> None:
        self.files = files
        self.value = 0
        self.writes = 0
        self.failures_left = 0
        self.delay_s = 0.1
        files.make_dirs("d")
        self.persistence = Persistence(self._run)
        self.persistence.add("x", ConfigFile(files, "d/x.json"), ConfigText({"value": lambda: self.value}))

    async def _run(self, work: Callable[[], None]) -> None:
        await asyncio.sleep(self.delay_s)
        if self.failures_left:
            self.failures_left -= 1
            raise OSError(28, "No space left on device", "d/x.json")
        self.writes += 1
        work()

    def change(self) -> None:
        self.value += 1
        self.persistence.mark("x")

    def written(self) -> bytes:
        return self.files.read("d/x.json")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk(MemFileSystem(VirtualClock()))
    task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(desk.persistence.run())
    yield desk
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_many_changes_become_one_write(desk: Desk) -> None:
    for _ in range(5):
        desk.change()
    await desk.persistence.durable("x")
    assert desk.writes == 1
    assert desk.written() == b'{\n\t"value":5\n}'
    await desk.persistence.durable("x")  # No write is left to wait for.


async def test_a_change_during_a_write_is_written_after_it(desk: Desk) -> None:
    desk.change()
    first = asyncio.ensure_future(desk.persistence.durable("x"))
    await asyncio.sleep(0.05)
    desk.change()
    second = asyncio.ensure_future(desk.persistence.durable("x"))
    await first
    assert not second.done()
    await second
    assert desk.writes == 2
    assert desk.written() == b'{\n\t"value":2\n}'


async def test_a_failed_save_is_retried_and_not_confirmed(desk: Desk) -> None:
    desk.failures_left = 2
    desk.change()
    for _ in range(2):
        with pytest.raises(NotSavedError, match=r"d/x\.json can't be written: No space left on device"):
            await desk.persistence.durable("x")
    await desk.persistence.durable("x")
    assert desk.persistence.failures == 2
    assert desk.written() == b'{\n\t"value":1\n}'


async def test_a_cancelled_waiter_does_not_affect_the_others(desk: Desk) -> None:
    desk.change()
    waiter = asyncio.ensure_future(desk.persistence.durable("x"))
    await asyncio.sleep(0.01)
    waiter.cancel()
    await desk.persistence.durable("x")
    assert desk.writes == 1


async def test_write_all_leaves_no_table_dirty(desk: Desk) -> None:
    desk.delay_s = 1000
    desk.change()
    desk.persistence.write_all()
    assert desk.written() == b'{\n\t"value":1\n}'
    await desk.persistence.durable("x")
    desk.persistence.write_all()
    assert desk.written() == b'{\n\t"value":1\n}'
