"""A broker that ends between a copy and the note of it makes no second copy."""

import asyncio
from errno import EIO
from typing import NoReturn

import pytest

from services.broker.store.reader import Reader
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.pops import acked, bodies, make_group, pop

INVISIBLE_MS = 1_000
COUNT = 6


async def end_within_a_revive(**group: int) -> MemFileSystem:
    """Return the files of a broker that ended when it had stored copies, and not noted it."""
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 2)
        await make_group(unit, "g", **group)
        for number in range(COUNT):
            await unit.send("T", b"m%d" % number, queue_id=number % 2)
        items = await pop(unit, invisible_time=INVISIBLE_MS)
        items += await pop(unit, invisible_time=INVISIBLE_MS)
        assert len(items) == COUNT
        await acked(unit, items[:1])
        unit.flush_is_stuck = True
        await asyncio.sleep(2 * INVISIBLE_MS / 1_000)
        files = unit.files
    assert isinstance(files, MemFileSystem)
    return files


async def take_all(unit: BrokerUnit, topic: str = "T") -> list[str]:
    """Pop and acknowledge until nothing comes."""
    await asyncio.sleep(1)
    taken: list[str] = []
    while items := await pop(unit, topic, invisible_time=60_000):
        await acked(unit, items, topic)
        taken += bodies(items)
    return sorted(taken)


@pytest.mark.parametrize("is_v2", [False, True])
async def test_each_message_comes_once(is_v2: bool) -> None:
    files = await end_within_a_revive()
    async with BrokerUnit(files=files, enable_retry_topic_v2=is_v2) as unit:
        taken = await take_all(unit)
        assert len(taken) == len(set(taken)) == COUNT - 1
    async with BrokerUnit(files=files, enable_retry_topic_v2=is_v2) as unit:
        assert await take_all(unit) == []


async def test_copies_that_cannot_be_read_do_not_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    files = await end_within_a_revive()

    def fail(*_: object) -> NoReturn:
        raise OSError(EIO, "a bad block")

    monkeypatch.setattr(Reader, "offset_by_time", fail)
    async with BrokerUnit(files=files) as unit:
        monkeypatch.undo()
        assert len(set(await take_all(unit))) == COUNT - 1


async def test_there_is_one_dead_letter() -> None:
    files = await end_within_a_revive(retry_max_times=0)
    async with BrokerUnit(files=files) as unit:
        assert await take_all(unit) == []
        assert unit.store.max_offset("%DLQ%g", 0) == COUNT - 1


async def test_a_message_without_a_copy_comes() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 1)
        await make_group(unit, "g")
        await unit.send("T", b"first")
        await pop(unit, invisible_time=INVISIBLE_MS)
        await asyncio.sleep(2 * INVISIBLE_MS / 1_000)
        await unit.send("T", b"second")
        assert len(await pop(unit, max_msg_nums=1, invisible_time=INVISIBLE_MS)) == 1
        assert len(await pop(unit, invisible_time=INVISIBLE_MS)) == 1
        files = unit.files
    await asyncio.sleep(2 * INVISIBLE_MS / 1_000)
    async with BrokerUnit(files=files) as unit:
        assert await take_all(unit) == ["first", "second"]


async def test_a_message_is_not_taken_for_its_twin() -> None:
    """A dead letter was sent again twice, so both messages name the same origin."""
    twin = {"ORIGIN_MESSAGE_ID": "0A000005000029CC0000000000000000"}
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 1)
        await make_group(unit, "g")
        await unit.send("T", b"first", properties=twin)
        await unit.send("T", b"second", properties=twin)
        assert bodies(await pop(unit, max_msg_nums=1, invisible_time=INVISIBLE_MS)) == ["first"]
        assert bodies(await pop(unit, max_msg_nums=1, invisible_time=4 * INVISIBLE_MS)) == ["second"]
        unit.flush_is_stuck = True
        await asyncio.sleep(2 * INVISIBLE_MS / 1_000)
        files = unit.files
    await asyncio.sleep(4 * INVISIBLE_MS / 1_000)
    async with BrokerUnit(files=files) as unit:
        assert await take_all(unit) == ["first", "second"]
