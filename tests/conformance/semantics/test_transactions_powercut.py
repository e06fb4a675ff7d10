"""The power is cut at every sixth file operation of half message, decision, op message and check.

After each cut the test checks: a committed message whose decision was answered is delivered; no message is delivered
that was rolled back or is undecided; each transaction without an answered decision is still checked, or was decided.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/conformance/semantics/test_transactions_powercut.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds instead of the few that every test run can afford.
"""

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.remoting.codes import ResponseCode
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.transactions import COMMIT, ROLLBACK, UNKNOWN, TransactionProducer, bodies

SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 2)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
TRANSACTIONS = 12
CUT_EVERY = 6
CHECK_S = 1
SETTINGS: dict[str, Any] = {
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "transaction_check_interval": 1000 * CHECK_S,
    "transaction_time_out": 300,
    "transaction_op_batch_interval": 200,
    "flush_consumer_offset_interval": 700,
    "channel_expired_timeout": 1 << 30,
}


class Ledger:
    """The producer's own record: how it decides each transaction, and which decisions were answered."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.begun: list[bytes] = []
        self.decisions: dict[bytes, int] = {}
        self.answered: set[bytes] = set()

    def decide(self, half: StoredMessage) -> int:
        """Answer a check: as before, or now. A producer never changes its mind."""
        if half.body not in self.decisions:
            self.decisions[half.body] = (COMMIT, ROLLBACK, UNKNOWN)[self.rng.below(3)]
            if self.decisions[half.body] == UNKNOWN:
                del self.decisions[half.body]
                return UNKNOWN
        return self.decisions[half.body]


async def workload(unit: BrokerUnit, ledger: Ledger) -> None:
    """Begin transactions, decide some of them at once, some late, and some only when the broker asks."""
    producer = TransactionProducer(unit, decide=ledger.decide)
    await producer.join()

    async def transact(number: int) -> None:
        body = b"%d" % number
        half = await producer.begin(body=body)
        ledger.begun.append(body)
        await asyncio.sleep(ledger.rng.below(4))
        way = ledger.rng.below(4)
        if way == 3:
            return
        decision = ledger.decisions.setdefault(body, ROLLBACK if way == 2 else COMMIT)
        answer = await producer.end(half, decision)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        ledger.answered.add(body)

    for first in range(0, TRANSACTIONS, 4):
        await asyncio.gather(*[transact(number) for number in range(first, first + 4)])
    await asyncio.sleep(CHECK_S + 1)


async def check(files: MemFileSystem, ledger: Ledger, rng: Rng) -> None:
    """Go on after a cut, with a producer that answers every check, and compare what is delivered."""
    decisions = dict(ledger.decisions)
    begun, answered = list(ledger.begun), set(ledger.answered)

    def decide(half: StoredMessage) -> int:
        return decisions.setdefault(half.body, COMMIT if rng.below(2) else ROLLBACK)

    async with BrokerUnit(files=files, **SETTINGS) as unit:
        producer = TransactionProducer(unit, decide=decide)
        await producer.join()
        delivered = Counter(bodies(unit))
        for body in answered:
            assert (body in delivered) == (decisions[body] == COMMIT), f"{body!r} was answered before the cut"
        await asyncio.sleep(2 * CHECK_S + 1.5)
        delivered = Counter(bodies(unit))
        for body in begun:
            assert body in decisions, f"{body!r}: nobody asked about an open transaction"
            assert (body in delivered) == (decisions[body] == COMMIT), body
        for body, count in delivered.items():
            assert decisions.get(body) == COMMIT, f"{body!r} was delivered and never committed"
            assert count <= 2, f"{body!r} was delivered {count} times"
        checked = len(producer.checks)
        await asyncio.sleep(2 * CHECK_S)
        assert len(producer.checks) == checked, "all transactions are decided, and the broker still asks"


@pytest.mark.parametrize("seed", [FIRST_SEED + number for number in range(SEEDS)])
async def test_the_power_is_cut_at_every_sixth_operation(seed: int) -> None:
    rng, cuts = Rng(seed), Rng(seed + 1)
    clones: list[tuple[MemFileSystem, Ledger]] = []
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T")
        ledger = Ledger(rng)

        def cut(operation: str, path: str) -> None:
            if unit.files.operations % CUT_EVERY == seed % CUT_EVERY:
                copy = Ledger(rng)
                copy.begun, copy.decisions = list(ledger.begun), dict(ledger.decisions)
                copy.answered = set(ledger.answered)
                clones.append((unit.files.crash_clone(cuts), copy))

        unit.files.on_operation = cut
        await workload(unit, ledger)
        unit.files.on_operation = None
    print(f"seed {seed}: {len(clones)} cuts")
    assert len(clones) > 10
    for files, before in clones:
        await check(files, before, cuts)
