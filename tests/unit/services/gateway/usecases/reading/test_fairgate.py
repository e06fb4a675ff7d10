"""The gate: it admits a few holders at a time, and no holder waits for all requests of another."""

import asyncio

import pytest

from services.gateway.usecases.reading.fairgate import FairGate


class Visitors:
    """Sends visitors through a gate and records who is inside."""

    def __init__(self, room):
        self.gate = FairGate(room)
        self.entered = []
        self.inside = 0
        self.most = 0
        self.doors = {}

    async def _visit(self, holder, name):
        async with self.gate.enter(holder):
            self.entered.append(name)
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                await self.doors.setdefault(name, asyncio.Event()).wait()
            finally:
                self.inside -= 1

    async def send(self, *names):
        tasks = [asyncio.create_task(self._visit(name[0], name)) for name in names]
        await asyncio.sleep(0)
        return tasks

    async def let_out(self, name):
        self.doors[name].set()
        for _ in range(4):
            await asyncio.sleep(0)


@pytest.fixture
def visitors():
    return Visitors(2)


async def test_holders_take_turns_for_any_length_of_their_queues(visitors):
    tasks = await visitors.send(*(f"a{number}" for number in range(6)), "b0", "b1", "c0")
    assert visitors.gate.waiting == 7
    for name in ("a0", "a1", "a2", "b0", "c0", "a3", "b1", "a4", "a5"):
        await visitors.let_out(name)
    await asyncio.gather(*tasks)
    assert visitors.entered == ["a0", "a1", "a2", "b0", "c0", "a3", "b1", "a4", "a5"]
    assert (visitors.most, visitors.gate.waiting) == (2, 0)


async def test_one_that_leaves_the_queue_does_not_keep_its_place(visitors):
    tasks = await visitors.send("a0", "a1", "a2", "a3")
    tasks[2].cancel()
    await visitors.let_out("a0")
    assert visitors.entered == ["a0", "a1", "a3"]
    for name in ("a1", "a3"):
        await visitors.let_out(name)
    await visitors.send("d0", "d1")
    assert visitors.entered[-2:] == ["d0", "d1"]


async def test_if_an_admitted_waiter_is_cancelled_the_next_is_admitted(visitors):
    tasks = await visitors.send("a0", "a1", "a2", "a3")
    visitors.gate._leave()  # As if a visitor had left: a2 is admitted, and does not know yet.
    tasks[2].cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    assert visitors.entered == ["a0", "a1", "a3"]


async def test_a_large_request_waits_for_room_and_is_not_overtaken():
    gate = FairGate(4)
    entered: list[str] = []
    doors = {name: asyncio.Event() for name in ("a1", "b4", "c1", "d1")}

    async def visit(name: str) -> None:
        async with gate.enter(name[0], int(name[1])):
            entered.append(name)
            await doors[name].wait()

    tasks = [asyncio.create_task(visit(name)) for name in doors]
    await asyncio.sleep(0)
    assert entered == ["a1"]
    for name, then in (("a1", ["a1", "b4"]), ("b4", ["a1", "b4", "c1", "d1"])):
        doors[name].set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert entered == then
    doors["c1"].set()
    doors["d1"].set()
    await asyncio.gather(*tasks)


async def test_a_cancelled_waiter_no_longer_blocks_those_behind_it():
    gate = FairGate(4)
    entered: list[str] = []

    async def visit(name: str) -> None:
        async with gate.enter(name[0], int(name[1])):
            entered.append(name)
            await asyncio.Event().wait()

    tasks = {name: asyncio.create_task(visit(name)) for name in ("a1", "b9", "c1", "d2")}
    await asyncio.sleep(0)
    tasks["b9"].cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    assert entered == ["a1", "c1", "d2"]
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    async with gate.enter("e", 4):
        assert gate.waiting == 0
