"""A broker with messages that wait is killed, or loses its power, at operations of its file system, in virtual time.

The load has transactions, set times, delay levels and messages that are sent back (waitingload.py). After each cut the
test starts a broker on the rest and lets all times pass. waitinghistory.py lists the promises.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/fault/test_waiting_crash.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds, GANTRY_TEST_CUTS=<n> takes that many cuts of each; 0 means one at every
operation.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.fault.waitinghistory import WaitingHistory, assert_kept
from tests.fault.waitingload import LEVELS, ROLL_WINDOW_S
from tests.fault.waitingunit import go_on, load_on, virtually
from tests.support.brokerunit import WITH_SMALL_WHEEL, BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock

SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 1)
CUTS = int(os.environ.get("GANTRY_TEST_CUTS") or 20)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
CLONES_MAX = 40
"""Number of cuts whose files are in memory at the same time."""
LOAD_S = 12
PAUSE_MS = 300
DOWN_MS_MAX = 5_000
SETTINGS: dict[str, Any] = {
    "message_delay_level": LEVELS,
    "flush_delay_offset_interval": 700,
    "transaction_check_interval": 1000,
    "transaction_time_out": 300,
    "transaction_op_batch_interval": 200,
    "flush_consumer_offset_interval": 700,
    "timer_roll_window_slot": ROLL_WINDOW_S,
    "mapped_file_size_timer_log": 4096,
    "channel_expired_timeout": 1 << 30,
    "features": WITH_SMALL_WHEEL,
}
MARKS_MS = {"t": -1, "r": -1, "l": 2_000, "x": 600}


@dataclass
class Cut:
    """The rest of one cut."""

    number: int
    operation: str
    files: MemFileSystem
    at_ms: int
    history: WaitingHistory


async def run(
    seed: int, flush: FlushDiskType, wanted: Callable[[int], bool], *, is_kill: bool
) -> tuple[list[Cut], int]:
    """Run the load once, and cut at the wanted operations. Return the cuts and the number of all operations."""
    clock, history, cuts = VirtualClock(), WaitingHistory(), list[Cut]()
    count = 0

    def operate(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if wanted(count):
            if is_kill:  # The page cache outlives the process.
                files.sync_everything()
            rest = files.crash_clone(Rng(seed + count))
            cuts.append(Cut(count, f"{operation} {path}", rest, clock.now_ms(), history.copy()))

    files = MemFileSystem(clock)
    async with BrokerUnit(files=files, flush_disk_type=flush, **SETTINGS) as unit:
        load = load_on(unit, history, Rng(seed), has_rolls=True, pause_ms=PAUSE_MS)
        await load.start()
        files.on_operation = operate
        await asyncio.sleep(LOAD_S)
        files.on_operation = None
        await load.stop()
    return cuts, count


async def check(cut: Cut, seed: int, flush: FlushDiskType) -> int:
    """Go on after a cut, and compare. Return the number of repeated messages."""
    rng = Rng(seed + cut.number)
    unit = BrokerUnit(files=cut.files, flush_disk_type=flush, **SETTINGS)
    delivered = await go_on(unit, cut.history, rng, wall_ms=cut.at_ms + 1 + rng.below(DOWN_MS_MAX))
    assert_kept(cut.history, delivered, [cut.at_ms], MARKS_MS)
    return len(delivered) - len({(message.topic, message.body, message.failures) for message in delivered})


@pytest.mark.timeout(0 if SEEDS > 1 or CUTS != 20 else 300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
@pytest.mark.parametrize(
    ("is_kill", "flush"),
    [(True, FlushDiskType.ASYNC_FLUSH), (False, FlushDiskType.SYNC_FLUSH)],
    ids=["kill", "power cut"],
)
def test_what_waits_comes_and_what_must_not_never_does(seed: int, flush: FlushDiskType, *, is_kill: bool) -> None:
    _, count = virtually(lambda: run(seed, flush, lambda number: False, is_kill=is_kill))
    numbers = list(range(1, count + 1))
    if CUTS:
        Rng(seed).shuffle(numbers)
        numbers = sorted(numbers[:CUTS])
    repeated, taken = 0, 0
    for first in range(0, len(numbers), CLONES_MAX):
        part = set(numbers[first : first + CLONES_MAX])
        cuts, _ = virtually(lambda part=part: run(seed, flush, part.__contains__, is_kill=is_kill))
        taken += len(cuts)
        for cut in cuts:
            try:
                repeated += virtually(lambda cut=cut: check(cut, seed, flush))
            except Exception as error:
                where = f"seed {seed}, cut before operation {cut.number} of {count} ({cut.operation})"
                raise AssertionError(f"{where}: {error}") from error
    assert taken == len(numbers), f"{taken} cuts of {len(numbers)}: the load does not repeat itself"
    print(f"seed {seed}: {taken} cuts at {count} operations, {repeated} messages repeated")
