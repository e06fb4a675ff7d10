"""Power cuts under load: acknowledged messages are on the disk, survive recovery and are served.

Each copy of the disk is what ext4 had handed to its device at one instant (tests/support/powercut.py). Copies are taken
at random moments of a broker's life, its start and recovery included; the broker then continues, on the same store or
on a new one. A store is opened and read on each copy; a broker serves some of them.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from gantry.client.admin import Admin
from gantry.model.message import MessageQueue
from gantry.model.topic import TopicConfig
from gantry.runtime.rng import Rng
from tests.fault.admin import Made, keep_churning, keep_creating
from tests.fault.brokers import BROKER, NEVER_FLUSH, broker
from tests.fault.history import History, assert_kept, check
from tests.fault.load import Load, assert_keys_found, client, read_all
from tests.fault.openedstore import opened, read_tables
from tests.support.brokerprocess import NamesrvProcess
from tests.support.powercut import CuttableDisk

COPIES = int(os.environ.get("GANTRY_POWERCUT_COPIES") or 6)
CUTS_PER_LIFE_MAX = 8
CUTS_PER_STORE_MAX = 18
SERVED_EVERY = 10
LIVES_PER_STORE_MAX = 3
ACKNOWLEDGED_MIN = 20
TOPICS = {"ONE": 1, "MANY": 3}
QUEUES = [MessageQueue(topic, BROKER, number) for topic, count in TOPICS.items() for number in range(count)]
CHURNED = MessageQueue("CHURN", BROKER, 0)

pytestmark = pytest.mark.powercut


class Cut(NamedTuple):
    """A copy, and the promises that it must keep."""

    number: int
    image: Path
    until: int
    life: "StoreLife"


class StoreLife(NamedTuple):
    """The history of one store."""

    name: str
    history: History
    made: Made


class PowerCuts:
    """Copies of the disk, taken while brokers run on it."""

    def __init__(self, disk: CuttableDisk, folder: Path, namesrv: str, rng: Rng, **settings: object) -> None:
        self.disk = disk
        self.folder = folder
        self.namesrv = namesrv
        self.rng = rng
        self.settings = settings
        self.taken = 0
        self._stores = 0

    async def life_of_a_store(self, copies: int) -> list[Cut]:
        """Run brokers on a new store until `count` copies are taken; return them."""
        self._stores += 1
        life = StoreLife(f"store-{self._stores}", History(), Made())
        cuts: list[Cut] = []
        for number in range(LIVES_PER_STORE_MAX):
            left = copies - len(cuts)
            wanted = left if number == LIVES_PER_STORE_MAX - 1 else min(left, 2 + self.rng.below(CUTS_PER_LIFE_MAX))
            cuts += await self._life_of_a_broker(life, number, wanted)
            if len(cuts) == copies:
                break
        return cuts

    async def cut(self, life: StoreLife) -> Cut:
        """Take a copy as a power cut would leave the disk; the broker runs on."""
        self.taken += 1
        until = life.history.now()
        image = await asyncio.to_thread(self.disk.cut, self.taken)
        return Cut(self.taken, image, until, life)

    async def _life_of_a_broker(self, life: StoreLife, number: int, copies: int) -> list[Cut]:
        cuts: list[Cut] = []
        store = self.disk.path / "data" / life.name
        process = broker(self.folder / f"{life.name}-{number}", self.namesrv, store=store, **self.settings)
        try:
            starting = asyncio.ensure_future(asyncio.to_thread(process.start))
            if copies > 1 and number and self.rng.chance(0.5):
                await asyncio.sleep(0.4 + self.rng.below(1000) / 1000)
                cuts.append(await self.cut(life))
            await starting
            cuts += await self._cut_under_load(life, number, copies - len(cuts))
            if self.rng.chance(0.5):
                assert await asyncio.to_thread(process.terminate) == 0
        finally:
            process.kill()
        return cuts

    async def _cut_under_load(self, life: StoreLife, number: int, copies: int) -> list[Cut]:
        async with client(self.namesrv) as engine:
            for topic, count in TOPICS.items():
                await Admin(engine).create_topic(TopicConfig(topic, count, count))
                life.made.topics[topic] = life.history.now()
            load = Load(engine, life.history, self.rng, QUEUES)
            load.start()
            background = [
                asyncio.ensure_future(keep_creating(engine, life.history, life.made, number)),
                asyncio.ensure_future(keep_churning(engine, life.history, self.rng, CHURNED)),
            ]
            try:
                cuts = []
                for _ in range(copies):
                    await load.reach(ACKNOWLEDGED_MIN + self.rng.below(300))
                    await asyncio.sleep(self.rng.below(20) / 1000)
                    cuts.append(await self.cut(life))
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await load.stop()
        return cuts


@pytest.mark.timeout(60 + 6 * COPIES)
async def test_acknowledged_messages_survive_a_power_cut(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    began = time.monotonic()
    power = PowerCuts(disk, tmp_path, namesrv.address, rng)
    stored = 0
    while power.taken < COPIES:
        cuts = await power.life_of_a_store(min(COPIES - power.taken, 1 + rng.below(CUTS_PER_STORE_MAX)))
        for cut in cuts:
            stored += await verify_copy(power, cut)
    print(f"{COPIES} copies, {stored} messages in them, {time.monotonic() - began:.0f} s")


async def test_without_flushing_the_same_harness_sees_the_loss(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    power = PowerCuts(disk, tmp_path, namesrv.address, rng, **NEVER_FLUSH)
    cut = (await power.life_of_a_store(1))[0]
    with disk.restored(cut.image) as path, opened(path / "data" / cut.life.name) as store:
        found = list(store.messages(QUEUES))
    lost = [line for line in check(cut.life.history, found, until=cut.until) if "was stored there" in line]
    assert lost, "messages that nobody flushed have outlived the power cut: this harness sees nothing"


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_failed_flush_is_not_forgiven_by_a_restart(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng, end: str
) -> None:
    power = PowerCuts(disk, tmp_path, namesrv.address, rng)
    life = StoreLife("store", History(), Made())
    process = broker(tmp_path / BROKER, namesrv.address, store=disk.path / "data" / life.name)
    try:
        for is_starving in (True, False):
            process.start()
            async with client(namesrv.address) as engine:
                for topic, count in TOPICS.items():
                    await Admin(engine).create_topic(TopicConfig(topic, count, count))
                if not is_starving:
                    assert_kept(life.history, await read_all(engine, QUEUES))
                load = Load(engine, life.history, rng, QUEUES)
                load.start()
                await load.reach(ACKNOWLEDGED_MIN + rng.below(300))
                if is_starving:
                    disk.fill_up()
                    await load.hear("can't be flushed", "can't be written")
                    await asyncio.to_thread(getattr(process, end))
                    disk.feed()
                await load.stop()
        # A kill may come before the note is written; then the failure is not forgiven either.
        assert end == "kill" or '"flush_failed"' in process.log
        # Messages acknowledged after the failure must be on the disk, not next to pages that never reach it.
        await verify_copy(power, await power.cut(life))
    finally:
        process.kill()


async def verify_copy(power: PowerCuts, cut: Cut) -> int:
    """Check one copy in a store, and some copies as a broker's clients see them; return its messages."""
    history = cut.life.history
    with power.disk.restored(cut.image) as path:
        folder = path / "data" / cut.life.name
        if cut.number % SERVED_EVERY == 1:
            await verify_served(power, cut, folder)
        with opened(folder) as store:
            found = list(store.messages([*QUEUES, CHURNED]))
            assert_kept(history, found, until=cut.until)
            store.assert_keys_found(history, until=cut.until)
        topics, groups, offsets = read_tables(folder)
        assert not cut.life.made.missing(topics, groups, until=cut.until)
        for queue, offset in offsets.items():
            assert offset in history.commits[queue], f"{queue}: {offset} was never committed"
    return len(found)


async def verify_served(power: PowerCuts, cut: Cut, folder: Path) -> None:
    """Start a broker on the copy and read it as a client does."""
    process = broker(power.folder / f"served-{cut.number}", power.namesrv, store=folder)
    try:
        await asyncio.to_thread(process.start)
        async with client(power.namesrv) as engine:
            await Admin(engine).create_topic(TopicConfig(CHURNED.topic, 1, 1))
            assert_kept(cut.life.history, await read_all(engine, [*QUEUES, CHURNED]), until=cut.until)
            await assert_keys_found(engine, cut.life.history, power.rng, until=cut.until)
    finally:
        process.kill()
