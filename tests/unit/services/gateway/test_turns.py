"""Turns of the event loop: a bounded amount of work in each, with keys in turn."""

import asyncio

from services.gateway.turns import PIECES_MAX, TURN_BYTES, Turns


class Loop:
    """Counts turns of the event loop, and records the work of each."""

    def __init__(self):
        self.turns = Turns()
        self.turn = 0
        self.done = []

    async def work(self, name, size=TURN_BYTES):
        await self.turns.take(name[0], size)
        self.done.append((self.turn, name))

    async def run(self, *tasks):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.turn += 1

    @property
    def by_turn(self):
        found = {}
        for turn, name in self.done:
            found.setdefault(turn, []).append(name)
        return list(found.values())


async def test_large_pieces_get_a_turn_each_and_keys_alternate():
    loop = Loop()
    names = [*(f"a{number}" for number in range(5)), "b0", "b1", "c0"]
    await loop.run(*[asyncio.ensure_future(loop.work(name)) for name in names])
    assert loop.by_turn == [["a0"], ["a1"], ["b0"], ["c0"], ["a2"], ["b1"], ["a3"], ["a4"]]
    assert loop.turns.waiting == 0


async def test_small_pieces_share_a_turn():
    loop = Loop()
    await loop.run(*[asyncio.ensure_future(loop.work(f"a{number}", 10)) for number in range(3 * PIECES_MAX)])
    assert [len(names) for names in loop.by_turn] == [PIECES_MAX] * 3


async def test_a_single_key_does_not_wait():
    loop = Loop()
    for number in range(3):
        await loop.work(f"a{number}", 10 * TURN_BYTES)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert loop.done == [(0, "a0"), (0, "a1"), (0, "a2")]


async def test_a_cancelled_waiter_is_skipped():
    loop = Loop()
    tasks = [asyncio.ensure_future(loop.work(f"a{number}")) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await loop.run(*tasks)
    assert [name for _, name in loop.done] == ["a0", "a2", "a3"]
    assert loop.turns.waiting == 0
    await loop.work("b0")
