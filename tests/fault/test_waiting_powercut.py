"""Power cuts under a load of messages that wait: transactions, set times, delay levels, and messages sent back.

Each copy of the disk is what ext4 had handed to its device at one instant (tests/support/powercut.py). A broker in
memory goes on with each copy, on virtual time, until nothing waits. waitinghistory.py lists the promises.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from tests.fault.brokers import NEVER_FLUSH, NEVER_FULL, SMALL_FILES
from tests.fault.cutter import Cut, Cutter
from tests.fault.waitinghistory import WaitingHistory, assert_kept
from tests.fault.waitingload import LEVELS, ProcessLink, WaitingLoad
from tests.fault.waitingunit import go_on, virtually
from tests.support.brokerprocess import NamesrvProcess
from tests.support.brokerunit import BrokerUnit
from tests.support.powercut import CuttableDisk

COPIES = int(os.environ.get("GANTRY_POWERCUT_COPIES") or 4)
DOWN_MS_MAX = 5_000
MARK_MS = 500
SETTINGS: dict[str, Any] = {
    **SMALL_FILES,
    **NEVER_FULL,
    # A store keeps the size of its files, and units have smaller ones than brokers.
    "mapped_file_size_timer_log": 1 << 20,
    "message_delay_level": LEVELS,
    "transaction_check_interval": 1_000,
    "transaction_time_out": 300,
    "transaction_check_max": 200,
    "transaction_op_batch_interval": MARK_MS,
    "timer_flush_interval_ms": MARK_MS,
    "flush_delay_offset_interval": MARK_MS,
}
MARKS_MS = {"t": -1, "l": MARK_MS + 1_500, "x": MARK_MS + 1_500}

pytestmark = pytest.mark.powercut


def cutter_of(disk: CuttableDisk, folder: Path, namesrv: str, rng: Rng, **settings: object) -> Cutter[WaitingHistory]:
    """Return a cutter whose load is of messages that wait."""

    def make_load(address: str, history: WaitingHistory, life: int) -> WaitingLoad:
        return WaitingLoad(partial(ProcessLink, address), history, rng, life=life)

    return Cutter(
        disk, folder, namesrv, rng, {**SETTINGS, **settings}, make_history=WaitingHistory, make_load=make_load
    )


async def check(disk: CuttableDisk, cut: Cut[WaitingHistory], rng: Rng) -> None:
    """Go on with a copy until nothing waits, and compare."""

    async def work() -> None:
        unit = BrokerUnit(files=OsFileSystem(), store_path_root_dir=str(path / "data" / cut.store), **SETTINGS)
        wall_ms = cut.kills_ms[-1] + 1 + rng.below(DOWN_MS_MAX)
        delivered = await go_on(unit, cut.history, rng, wall_ms=wall_ms)
        assert_kept(cut.history, delivered, cut.kills_ms, MARKS_MS)

    with disk.restored(cut.image) as path:
        await asyncio.to_thread(virtually, work)


@pytest.mark.timeout(120 + 10 * COPIES)
async def test_what_waits_survives_a_power_cut(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    began, cutter = time.monotonic(), cutter_of(disk, tmp_path, namesrv.address, rng)
    while cutter.taken < COPIES:
        for cut in await cutter.life_of_a_store(min(COPIES - cutter.taken, 1 + rng.below(12))):
            await check(disk, cut, rng)
            print(cut.history.summary())
    print(f"{COPIES} copies, {time.monotonic() - began:.0f} s")


async def test_without_flushing_the_same_harness_sees_the_loss(
    disk: CuttableDisk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    cutter = cutter_of(disk, tmp_path, namesrv.address, rng, **NEVER_FLUSH)
    cut = (await cutter.life_of_a_store(1))[0]
    with pytest.raises(AssertionError, match="and is not carried out"):
        await check(disk, cut, rng)
