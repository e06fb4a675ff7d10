"""The power is cut at every eleventh file operation while clients pop, acknowledge and extend.

After each cut the test checks: a message whose acknowledgement was answered never comes again; a message that was given
out does not come again within its invisible time; every other message comes again, with a receipt that acknowledges it;
a receipt from before the cut is still good. A message comes once after the cut.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/conformance/semantics/test_pop_powercut.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds instead of the few that every test run can afford.
"""

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from gantry.model.popreceipt import PopReceipt
from gantry.remoting.codes import ResponseCode
from gantry.remoting.headers import ChangeInvisibleTimeResponseHeader
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.pops import ack, ask_pop, bodies, change, make_group, pop, popped

SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 1)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
CUT_EVERY = 11
LONG_MS = 900_000
SETTINGS: dict[str, Any] = {
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "flush_consumer_offset_interval": 300,
    "channel_expired_timeout": 1 << 30,
}


class Ledger:
    """The knowledge of the clients: stored messages, those that are out, and those whose acknowledgement was answered.

    Attributes:
        stored: Bodies of messages whose send was answered.
        sent: Bodies of all messages.
        asked: Bodies of messages that a client has acknowledged, answered or not.
        acked: Those whose acknowledgement was answered.
        out: The latest receipt by body.
        changing: Bodies of messages whose invisible time is being changed.
    """

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.sent: set[str] = set()
        self.asked: set[str] = set()
        self.acked: set[str] = set()
        self.out: dict[str, PopReceipt] = {}
        self.changing: set[str] = set()

    def at_cut(self) -> "Ledger":
        """Return a copy, as the clients know it at a cut."""
        copy = Ledger()
        copy.stored, copy.sent, copy.asked = set(self.stored), set(self.sent), set(self.asked)
        copy.acked, copy.out, copy.changing = set(self.acked), dict(self.out), set(self.changing)
        return copy


async def consume(unit: BrokerUnit, ledger: Ledger, rng: Rng) -> None:
    """Pop, and acknowledge, extend, shorten or forget the messages."""
    connection = unit.connect()
    for _ in range(6):
        invisible_ms = LONG_MS if rng.below(2) else 1_500
        answer = await ask_pop(
            unit, max_msg_nums=1 + rng.below(4), invisible_time=invisible_ms, poll_time=500, connection=connection
        )
        for item in popped(answer):
            body = bodies([item])[0]
            assert body not in ledger.acked, f"{body} was acknowledged"
            earlier = ledger.out.get(body)
            assert earlier is None or earlier.expires_at_ms <= unit.clock.now_ms(), f"{body} was out to another client"
            ledger.out[body] = item.receipt
        for body, receipt in list(ledger.out.items()):
            way = rng.below(4)
            if body in ledger.asked or body in ledger.changing:
                continue
            if way == 0:
                ledger.asked.add(body)
                if (await ack(unit, receipt)).code == ResponseCode.SUCCESS:
                    ledger.acked.add(body)
                else:
                    ledger.asked.discard(body)
            elif way == 1:
                await extend(unit, ledger, body, receipt, LONG_MS if rng.below(2) else 1_000)
        await asyncio.sleep(rng.below(3) / 10)


async def extend(unit: BrokerUnit, ledger: Ledger, body: str, receipt: PopReceipt, invisible_ms: int) -> None:
    ledger.changing.add(body)
    answer = await change(unit, receipt, invisible_ms)
    ledger.changing.discard(body)
    if answer.code == ResponseCode.SUCCESS:
        new = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
        ledger.out[body] = receipt._replace(
            start_offset=receipt.queue_offset,
            popped_at_ms=new.pop_time,
            invisible_ms=new.invisible_time,
            revive_queue_id=new.revive_qid,
        )


async def workload(unit: BrokerUnit, ledger: Ledger, rng: Rng) -> None:
    async def produce() -> None:
        for number in range(30):
            body = f"m{number}"
            ledger.sent.add(body)
            answer = await unit.send("T", body.encode(), queue_id=number % 2)
            assert answer.code == ResponseCode.SUCCESS
            ledger.stored.add(body)
            await asyncio.sleep(0.05)

    await asyncio.gather(produce(), consume(unit, ledger, rng), consume(unit, ledger, rng))


async def check_hidden(files: MemFileSystem, ledger: Ledger) -> None:
    """Go on after a cut: what comes at once was not out. Some receipts from before the cut are used."""
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        soon_ms = unit.clock.now_ms() + 5_000
        hidden = {
            body
            for body, receipt in ledger.out.items()
            if receipt.expires_at_ms > soon_ms and body not in ledger.changing | ledger.asked
        }
        for body in sorted(hidden)[:3]:
            answer = await ack(unit, ledger.out[body])
            assert answer.code == ResponseCode.SUCCESS, f"{body}: {answer.remark}"
            ledger.acked.add(body)
        seen = set(await take_all(unit))
        assert not seen & hidden, "given out again within the invisible time"
        assert not seen & ledger.acked, "acknowledged before"
        ledger.acked |= seen


async def check_rest(files: MemFileSystem, ledger: Ledger) -> None:
    """Go on when all invisible times are over: everything else comes."""
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        seen = set(await take_all(unit))
        assert not seen & ledger.acked, "acknowledged before"
        missing = ledger.stored - seen - ledger.acked - ledger.asked
        assert not missing, f"lost: {missing}"
        assert seen <= ledger.sent


async def take_all(unit: BrokerUnit) -> list[str]:
    taken: list[str] = []
    await asyncio.sleep(1)
    while items := await pop(unit):
        for item in items:
            assert (await ack(unit, item.receipt)).code == ResponseCode.SUCCESS
        taken += bodies(items)
    times = Counter(taken)
    assert set(times.values()) <= {1}, times
    return taken


@pytest.mark.parametrize("seed", [FIRST_SEED + number for number in range(SEEDS)])
async def test_the_power_is_cut_while_clients_pop(seed: int) -> None:
    cuts = Rng(seed + 1)
    clones: list[tuple[MemFileSystem, Ledger]] = []
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T", 2)
        await make_group(unit, "g")
        ledger = Ledger()

        def cut(operation: str, path: str) -> None:
            if unit.files.operations % CUT_EVERY == seed % CUT_EVERY:
                clones.append((unit.files.crash_clone(cuts), ledger.at_cut()))

        unit.files.on_operation = cut
        await workload(unit, ledger, Rng(seed))
        unit.files.on_operation = None
    print(f"seed {seed}: {len(clones)} cuts")
    assert len(clones) > 10
    for files, before in clones:
        await check_hidden(files, before)
    await asyncio.sleep(LONG_MS / 1000)
    for files, before in clones:
        await check_rest(files, before)
