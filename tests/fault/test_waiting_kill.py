"""kill -9 of a broker with transactions, set times, delay levels and messages that are sent back, at random moments.

So kills come between half message, decision, delivery and op message, and between the delivery of a message that
waited and its mark. waitinghistory.py lists the promises. test_waiting_crash.py cuts at every operation, in virtual time.

GANTRY_TEST_KILLS=<n> kills n times instead of the few times that every test run can afford; each kill has a seed of its
own, which follows from the run's seed. After so many kills, the broker gets another store and other settings.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gantry.runtime.rng import Rng
from tests.fault.brokers import BROKER, assert_verifies, broker
from tests.fault.waitinghistory import TOPIC, WaitingHistory, assert_kept
from tests.fault.waitingload import LEVELS, ProcessLink, WaitingLoad
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess
from tests.support.transactionpeer import now_ms

KILLS = int(os.environ.get("GANTRY_TEST_KILLS") or 4)
KILLS_PER_STORE = 8
LIFE_MS_MAX = 2_500
SETTLE_S = 40.0
QUIET_S = 2.5
MARK_INTERVALS_MS = (100, 1_000)
LATE_MS = 1_500  # The machine may be busy.
SETTINGS: dict[str, Any] = {
    "message_delay_level": LEVELS,
    "transaction_check_interval": 1_000,
    "transaction_time_out": 300,
    "transaction_check_max": 200,
    "flush_interval_commit_log": 100,
}


class Victim:
    """A broker on one store that is killed and started again."""

    def __init__(self, folder: Path, namesrv: str, rng: Rng) -> None:
        self.history = WaitingHistory()
        self.kills_ms: list[int] = []
        mark_ms = rng.choice(MARK_INTERVALS_MS)
        # A message for a set time never comes again: a start finds those that have come.
        self.marks_ms = {"t": -1, "l": mark_ms + LATE_MS, "x": mark_ms + LATE_MS}
        self.process: BrokerProcess = broker(
            folder,
            namesrv,
            flush_disk_type=rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            timer_flush_interval_ms=mark_ms,
            flush_delay_offset_interval=mark_ms,
            transaction_op_batch_interval=mark_ms,
            **SETTINGS,
        )

    async def live_and_die(self, rng: Rng) -> None:
        """Run the broker under load for a random time, and kill it; sometimes kill it while it starts, too."""
        if self.kills_ms and rng.chance(0.2):
            self.process.launch()
            await asyncio.sleep(0.3 + rng.below(1_000) / 1000)
            await self._kill()
        await asyncio.to_thread(self.process.start)
        load = self._load(rng)
        if self.kills_ms:
            await load.assert_decisions_hold()
        await load.start()
        await asyncio.sleep(rng.below(LIFE_MS_MAX) / 1000)
        await self._kill()
        await load.stop()

    async def settle(self, rng: Rng) -> int:
        """Run the broker until nothing waits, and compare. Return the number of repeated deliveries."""
        await asyncio.to_thread(self.process.start)
        load = self._load(rng)
        await load.assert_decisions_hold()
        delivered = await load.settle(timeout_s=SETTLE_S, quiet_s=QUIET_S)
        assert_kept(self.history, delivered, self.kills_ms, self.marks_ms)
        assert await asyncio.to_thread(self.process.terminate) == 0, self.process.log[-2000:]
        assert_verifies(self.process.store)
        found = [message.body for message in delivered if message.topic == TOPIC]
        return len(found) - len(set(found))

    def _load(self, rng: Rng) -> WaitingLoad:
        return WaitingLoad(partial(ProcessLink, self.process.address), self.history, rng, life=len(self.kills_ms))

    async def _kill(self) -> None:
        await asyncio.to_thread(self.process.kill)
        self.kills_ms.append(now_ms())


@pytest.mark.timeout(120 + 20 * KILLS)
async def test_killed_while_messages_wait(tmp_path: Path, namesrv: NamesrvProcess, rng: Rng) -> None:
    began, kills, repeated = time.monotonic(), 0, 0
    while kills < KILLS:
        seed = rng.below(1 << 40)
        victim = Victim(tmp_path / f"{BROKER}-{kills}", namesrv.address, Rng(seed))
        try:
            for _ in range(min(KILLS - kills, KILLS_PER_STORE)):
                await victim.live_and_die(Rng(seed + kills))
                kills += 1
            repeated += await victim.settle(Rng(seed - 1))
        finally:
            victim.process.kill()
        print(f"{victim.history.summary()}; {len(victim.kills_ms)} kills, {repeated} repeated deliveries so far")
    print(f"{kills} kills under load, {time.monotonic() - began:.0f} s")
