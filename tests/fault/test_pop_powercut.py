"""Power cuts while eight clients pop, acknowledge, give back and extend.

Each copy of the disk is what ext4 had handed to its device at one instant (tests/support/powercut.py). A broker in
memory goes on with each copy, on virtual time: a message whose acknowledgement was answered never comes again, none
comes within its invisible time, and every other message comes.

GANTRY_POWERCUT_COPIES=<n> takes n copies instead of the few that every test run can afford.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.fault.brokers import NEVER_FLUSH, NEVER_FULL, SMALL_FILES
from tests.fault.cutter import Cut, Cutter
from tests.fault.popload import PopHistory, PopLoad, drain
from tests.fault.waitingunit import virtually
from tests.support.brokerprocess import NamesrvProcess
from tests.support.brokerunit import BrokerUnit
from tests.support.powercut import CuttableDisk

COPIES = int(os.environ.get("GANTRY_POWERCUT_COPIES") or 4)
DOWN_MS_MAX = 5_000
SETTINGS: dict[str, Any] = {
    **SMALL_FILES,
    **NEVER_FULL,
    # A store keeps the size of its files, and units have smaller ones than brokers.
    "mapped_file_size_timer_log": 1 << 20,
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
}

pytestmark = pytest.mark.powercut


def cutter_of(disk: CuttableDisk, folder: Path, namesrv: str, rng: Rng, **settings: object) -> Cutter[PopHistory]:
    """Return a cutter whose load is of clients that pop."""

    def make_load(address: str, history: PopHistory, life: int) -> PopLoad:
        return PopLoad(address, history, rng, life)

    return Cutter(disk, folder, namesrv, rng, {**SETTINGS, **settings}, make_history=PopHistory, make_load=make_load)


async def check(disk: CuttableDisk, cut: Cut[PopHistory], rng: Rng) -> None:
    """Go on with a copy until nothing comes."""

    async def work() -> None:
        unit = BrokerUnit(files=OsFileSystem(), store_path_root_dir=str(path / "data" / cut.store), **SETTINGS)
        await drain(unit, cut.history, wall_ms=cut.kills_ms[-1] + 1 + rng.below(DOWN_MS_MAX))

    print(f"cut {cut.image.stem}: {cut.history.summary()}")
    with disk.restored(cut.image) as path:
        await asyncio.to_thread(virtually, work)


@pytest.mark.timeout(120 + 10 * COPIES)
async def test_receipts_survive_a_power_cut(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    began, cutter = time.monotonic(), cutter_of(disk, tmp_path, namesrv.address, rng)
    while cutter.taken < COPIES:
        for cut in await cutter.life_of_a_store(min(COPIES - cutter.taken, 1 + rng.below(12))):
            await check(disk, cut, rng)
    print(f"{COPIES} copies, {time.monotonic() - began:.0f} s")


async def test_without_flushing_the_same_harness_sees_the_loss(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    cut = (await cutter_of(disk, tmp_path, namesrv.address, rng, **NEVER_FLUSH).life_of_a_store(1))[0]
    with pytest.raises(AssertionError, match=r"comes again|before its time is over|lost"):
        await check(disk, cut, rng)
