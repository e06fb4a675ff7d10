"""The power is cut at the writes of a broker with messages for a set time, while they are sent, wait, roll and fire.

After each cut the test starts a broker on the rest, and lets all times pass. Every acknowledged message is delivered,
none more than twice, no recalled one after its recall was acknowledged, and none before its time.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/fault/test_timer_crash.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds instead of the few that every test run can afford.
"""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.timer import RecallMessageHeader
from gantry.runtime.rng import Rng
from tests.support.brokerunit import WITH_SMALL_WHEEL, BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock, VirtualTimeLoop

SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 2)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
CUTS_MAX = 16
WINDOW = 40
SETTINGS: dict[str, Any] = {
    "timer_roll_window_slot": WINDOW,
    "mapped_file_size_timer_log": 4096,
    "features": WITH_SMALL_WHEEL,
}


@dataclass
class Sent:
    """The messages of a run: due times by body, and what was acknowledged."""

    due_ms: dict[bytes, int] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    """The recall was acknowledged long enough before the message was due."""
    doubtful: set[bytes] = field(default_factory=set)
    """The recall was sent: the message may be delivered or not."""


@dataclass
class Cut:
    """The rest of one power cut."""

    number: int
    operation: str
    files: MemFileSystem
    at_ms: int
    acknowledged: set[bytes]
    recalled: set[bytes]
    doubtful: set[bytes]


async def work(unit: BrokerUnit, sent: Sent, rng: Rng) -> None:
    """Send, wait and recall for two minutes."""
    await unit.make_topic("T", queues=1)
    handles: dict[bytes, str] = {}
    for number in range(120):
        body = b"m%d" % number
        due_ms = unit.clock.now_ms() + rng.choice((0, 700, 1500, 4000, 20_000, 45_000, 100_000)) + rng.below(900)
        sent.due_ms[body] = due_ms
        reply = await unit.send(body=body, properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"K{number}"})
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        sent.acknowledged.add(body)
        if "recallHandle" in reply.ext_fields:
            handles[body] = reply.ext_fields["recallHandle"]
        if handles and rng.chance(0.15):
            await recall(unit, sent, rng.choice(sorted(handles)), handles)
        await asyncio.sleep(rng.choice((0.0, 0.1, 1.0, 2.0)))


async def recall(unit: BrokerUnit, sent: Sent, body: bytes, handles: dict[bytes, str]) -> None:
    if sent.due_ms[body] - unit.clock.now_ms() < 3000:
        return
    sent.doubtful.add(body)
    header = RecallMessageHeader(topic="T", recall_handle=handles.pop(body))
    answer = await unit.ask(RequestCode.RECALL_MESSAGE, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    sent.recalled.add(body)


async def delivered(unit: BrokerUnit) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    while True:
        answer = await unit.pull("T", len(found), max_msg_nums=32)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [(message.body, message.stored_at_ms) for message in iter_records(answer.body_bytes)]


async def check(cut: Cut, sent: Sent) -> int:
    """Start a broker after a cut, let all times pass, and compare. Return the number of repeated messages."""
    async with BrokerUnit(files=cut.files, **SETTINGS) as unit:
        unit.clock.set_wall(cut.at_ms + 2000)
        for _ in range(16):
            await asyncio.sleep(10)
            await unit.pull("T")
        found = await delivered(unit)
        assert unit.broker.collect_runtime_info()["timerCongestNum"] == "0"
    counts = Counter(body for body, _ in found)
    lost = cut.acknowledged - set(counts) - cut.doubtful
    assert not lost, f"never delivered: {sorted(lost)}"
    assert all(count <= 2 for count in counts.values()), f"more than twice: {counts.most_common(3)}"
    for body, stored_at_ms in found:
        assert stored_at_ms >= min(sent.due_ms[body], cut.at_ms), (
            f"{body!r} came {sent.due_ms[body] - stored_at_ms} ms early"
        )
    again = {body for body in cut.recalled if counts[body]}
    assert not again, f"recalled and delivered: {sorted(again)}"
    return sum(count - 1 for count in counts.values())


async def run(seed: int) -> tuple[list[Cut], Sent]:
    rng, cuts, sent, made = Rng(seed), Rng(seed + 1), Sent(), list[Cut]()
    clock = VirtualClock()
    met = 0

    def cut(operation: str, path: str) -> None:
        nonlocal met
        met += 1
        is_timers = "timer" in path
        if not cuts.chance(0.2 if is_timers else 0.02):
            return
        rest = Cut(
            files.operations,
            f"{operation} {path}",
            files.crash_clone(cuts),
            clock.now_ms(),
            set(sent.acknowledged),
            set(sent.recalled),
            set(sent.doubtful),
        )
        # A fair choice of all cuts, because each one takes a while to check.
        if len(made) < CUTS_MAX:
            made.append(rest)
        elif cuts.chance(CUTS_MAX / met / 0.1):
            made[cuts.below(CUTS_MAX)] = rest

    files = MemFileSystem(clock, on_operation=None)
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        files.on_operation = cut
        await work(unit, sent, rng)
        await asyncio.sleep(60)
        files.on_operation = None
    return made, sent


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_power_cut_loses_no_timer_and_fires_none_more_than_twice(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        made, sent = runner.run(run(seed))
    repeated = 0
    for cut in made:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            try:
                repeated += runner.run(check(cut, sent))
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}, cut before operation {cut.number} ({cut.operation}): {error}"
                ) from error
    print(f"seed {seed}: {len(made)} cuts, {len(sent.due_ms)} messages, {repeated} repeated")
    assert len(made) > CUTS_MAX // 2
