"""A broker with a duplicate window is cut off at its writes, or killed, while producers send each message until it is acknowledged.

At every such moment, each message is stored exactly once within the window, and its acknowledged place stays its place.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/fault/test_duplicates_crash.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds instead of the few that every test run can afford.
"""

import asyncio
import itertools
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.errors import SendError
from gantry.client.producer import Producer
from gantry.client.sendrequest import SendResult
from gantry.model.batch import encode_batch
from gantry.model.message import Message, MessageQueue, encode_properties
from gantry.model.names import AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gantry.model.record import iter_records
from gantry.model.sysflag import TRANSACTION_PREPARED
from gantry.model.topic import DUPLICATE_WINDOW, TopicConfig
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.topic import CreateTopicHeader
from gantry.runtime.failpoints import Failpoint
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.fault.brokers import BROKER, broker
from tests.fault.load import client, read_all
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess
from tests.support.brokerunit import WITH_SMALL_WHEEL, BrokerUnit, send_header
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock, VirtualTimeLoop

SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 1)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
CUTS_MAX = 8
MESSAGES = 40
KILLS = 3
SENDERS = 4
SETTINGS: dict[str, Any] = {
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "features": WITH_SMALL_WHEEL,
    "mapped_file_size_timer_log": 4096,
}
KINDS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"DELAY": "1"},
    {"TIMER_DELAY_MS": "3000"},
    {"TRAN_MSG": "true", "PGROUP": "P"},
)
TOPIC = CreateTopicHeader(
    topic="T", default_topic=AUTO_CREATE_TOPIC, read_queue_nums=3, write_queue_nums=3, perm=6,
    topic_filter_type="SINGLE_TAG", order=False, attributes=f"+{DUPLICATE_WINDOW}=86400000",
)  # fmt: skip

Place = tuple[str, str, str]


@dataclass
class Cut:
    """The rest of one power cut, and what was acknowledged before it."""

    number: int
    operation: str
    files: MemFileSystem
    at_ms: int
    places: dict[str, Place]


@dataclass
class Sent:
    """The places of the acknowledged messages, by key."""

    places: dict[str, Place] = field(default_factory=dict)


def place_of(answer: RemotingCommand) -> Place:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext_fields["msgId"], answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]


async def send(unit: BrokerUnit, number: int, sent: Sent) -> None:
    """Send a message, as often as its number says; all answers name the same place."""
    kind = KINDS[number % len(KINDS)]
    flag = TRANSACTION_PREPARED if "TRAN_MSG" in kind else 0
    key = f"k{number}"
    for attempt in range(1 + number % 3):
        answer = await unit.send(properties={"UNIQ_KEY": key, **kind}, queue_id=(number + attempt) % 3, sys_flag=flag)
        assert sent.places.setdefault(key, place_of(answer)) == place_of(answer)


async def send_batch(unit: BrokerUnit, number: int, sent: Sent) -> None:
    """Send a batch whose keys the batch before it has in part."""
    keys = [f"b{at}" for at in range(number, number + 4)]
    body = encode_batch([(0, b"body", encode_properties({"UNIQ_KEY": key})) for key in keys])
    answer = await unit.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(batch=True, queue_id=number % 3), body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    for key, stored_id in zip(keys, answer.ext_fields["msgId"].split(","), strict=True):
        assert sent.places.setdefault(key, (stored_id, "", ""))[0] == stored_id


async def work(unit: BrokerUnit, sent: Sent, rng: Rng) -> None:
    await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)

    async def one(first: int) -> None:
        for number in range(first, MESSAGES, SENDERS):
            await send(unit, number, sent)
            if number % 10 == 0:
                await send_batch(unit, number, sent)
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))

    await asyncio.gather(*(one(first) for first in range(SENDERS)))
    await asyncio.sleep(5)


def accepted(unit: BrokerUnit) -> Counter[str]:
    """Return how often each key was accepted; deliveries have REAL_TOPIC, copies of half messages a count of checks."""
    found: Counter[str] = Counter()
    for topic, queue_id in unit.store.queues():
        if topic not in ("T", SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC):
            continue
        offset = 0
        while True:
            result = unit.store.get(topic, queue_id, offset, 32)
            for message in iter_records(result.body):
                properties = message.properties
                is_delivery = topic == "T" and "REAL_TOPIC" in properties
                if not is_delivery and "TRANSACTION_CHECK_TIMES" not in properties:
                    found[properties["UNIQ_KEY"]] += 1
            if result.next_offset >= result.max_offset:
                break
            offset = result.next_offset
    return found


async def check(cut: Cut, rng: Rng) -> None:
    """Send everything again after a cut, and once more after a second one."""
    files, places, at_ms = cut.files, dict(cut.places), cut.at_ms
    for _ in range(2):
        async with BrokerUnit(files=files, **SETTINGS) as unit:
            unit.clock.set_wall(at_ms + 500)
            # The topic itself may be lost, if the cut came before it was acknowledged.
            await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
            for number in range(MESSAGES):
                kind = KINDS[number % len(KINDS)]
                half = (kind, TRANSACTION_PREPARED) if "TRAN_MSG" in kind else ({}, 0)
                answer = await unit.send(properties={"UNIQ_KEY": f"k{number}", **half[0]}, sys_flag=half[1])
                assert places.setdefault(f"k{number}", place_of(answer)) == place_of(answer), f"k{number}"
            for key in [key for key in places if key[0] == "b"]:
                assert place_of(await unit.send(properties={"UNIQ_KEY": key}))[0] == places[key][0], key
            counts = accepted(unit)
            files, at_ms = files.crash_clone(rng), unit.clock.now_ms()
        twice = {key: count for key, count in counts.items() if count != 1}
        assert not twice, f"not stored once: {twice}"
        assert counts.keys() >= places.keys()


async def run(seed: int) -> list[Cut]:
    rng, cuts, sent, made = Rng(seed), Rng(seed + 1), Sent(), list[Cut]()
    clock = VirtualClock()

    def cut(operation: str, path: str) -> None:
        if cuts.chance(0.03):
            rest = files.crash_clone(cuts)
            made.append(Cut(files.operations, f"{operation} {path}", rest, unit.clock.now_ms(), dict(sent.places)))

    files = MemFileSystem(clock, on_operation=None)
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        files.on_operation = cut
        await work(unit, sent, rng)
        files.on_operation = None
    assert len(made) > CUTS_MAX // 2
    cuts.shuffle(made)
    return made[:CUTS_MAX]


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_power_cut_at_any_write_leaves_each_message_once(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        made = runner.run(run(seed))
    for cut in made:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            try:
                runner.run(check(cut, Rng(seed)))
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}, cut before operation {cut.number} ({cut.operation}): {error}"
                ) from error


class Sender:
    """Sends one message after the other, each until it is acknowledged."""

    def __init__(self, engine: ClientEngine, name: int) -> None:
        self.stored: dict[str, SendResult] = {}
        self.failures = 0
        self.is_done = False
        self._producer = Producer(engine, "P")
        self._name = name

    async def run(self) -> None:
        for number in itertools.count():
            if self.is_done:
                return
            key, queue = f"s{self._name}-{number}", MessageQueue("T", BROKER, number % 3)
            while key not in self.stored:
                try:
                    message = Message("T", key.encode(), properties={"UNIQ_KEY": key})
                    self.stored[key] = await self._producer.send(message, queue=queue, timeout_ms=1_000)
                except SendError:
                    self.failures += 1
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_kill_9_leaves_each_message_once(tmp_path: Path, namesrv: NamesrvProcess, rng: Rng, mode: str) -> None:
    def make(failpoints: str = "") -> BrokerProcess:
        return broker(tmp_path / BROKER, namesrv.address, flush_disk_type=mode, failpoints=failpoints)

    process = make()
    try:
        await asyncio.to_thread(process.start)
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", 3, 3, attributes={DUPLICATE_WINDOW: "86400000"}))
            senders = [Sender(engine, name) for name in range(SENDERS)]
            work = asyncio.gather(*(sender.run() for sender in senders))
            for number in range(KILLS):
                await asyncio.sleep(rng.below(300) / 1000)
                await asyncio.to_thread(process.kill)
                if mode == "SYNC_FLUSH":
                    # The next one dies when messages are on the disk and have no answer yet.
                    process = make(f"{Failpoint.BROKER_BEFORE_REPLY}:{2 + rng.below(20)}")
                    await asyncio.to_thread(process.start)
                    assert await asyncio.to_thread(process.wait) == -signal.SIGKILL, number
                    process = make()
                await asyncio.to_thread(process.start)
            await asyncio.sleep(0.5)
            for sender in senders:
                sender.is_done = True
            await work
        # A new client, because the last start chose another port.
        async with client(namesrv.address) as engine:
            found = await read_all(engine, [MessageQueue("T", BROKER, number) for number in range(3)])
        keys = Counter(each.body.decode() for each in found)
        wanted = {key for sender in senders for key in sender.stored}
        assert keys == Counter(dict.fromkeys(wanted, 1))
        replayed = sum(result.is_replayed for sender in senders for result in sender.stored.values())
        assert replayed or mode == "ASYNC_FLUSH"
        print(f"{sum(sender.failures for sender in senders)} failed sends, {replayed} replays")
    finally:
        process.kill()
