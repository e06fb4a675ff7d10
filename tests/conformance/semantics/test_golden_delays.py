"""Delay levels of a store that Apache RocketMQ wrote: ours delivers what waits there, and writes what Apache writes."""

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.record import iter_records
from gantry.remoting.bodies.fastjson import to_strict_json
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.layout import UNIT
from tests.support.brokerunit import BrokerUnit

GOLDEN = Path(__file__).parents[1] / "golden"
LEVELS = " ".join(f"{seconds}s" for seconds in range(1, 19))
LATER_MS = 1_796_000_000_000
"""A time after the last record of the golden store."""
# Its queues of the schedule topic, and what Apache's broker had delivered of each when it stopped: everything.
DELIVERED = {1: 13, 2: 10, 3: 14}
TOPIC = "GoldenDelay"


def golden_unit(root: Path) -> BrokerUnit:
    unit = BrokerUnit(
        files=OsFileSystem(), store_path_root_dir=str(root), mapped_file_size_commit_log=262_144, max_hash_slot_num=500,
        max_index_num=2_000, message_delay_level=LEVELS, timer_wheel_enable=False,
    )  # fmt: skip
    unit.clock.set_wall(LATER_MS)
    return unit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def read(unit: BrokerUnit, topic: str, queue_id: int, offset: int = 0) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        result = unit.store.get(topic, queue_id, offset, 32)
        if not result.records:
            return found
        found += iter_records(result.body)
        offset = result.next_offset


def content(message: StoredMessage) -> tuple[Any, ...]:
    """Return what a delivery keeps of a message."""
    return (
        message.body, message.properties, message.flag, message.sys_flag, message.born_at_ms, message.born_host,
        message.store_host.port, message.reconsume_times, message.topic, message.queue_id,
    )  # fmt: skip


async def test_what_waits_in_a_store_of_apache_is_delivered_as_apache_delivers_it(root: Path) -> None:
    """The progress goes back to 0, so that ours delivers everything that Apache delivered, once more."""
    (root / "config/delayOffset.json").write_text('{"offsetTable":{1:0,2:0,3:0\n\t}\n}')
    async with golden_unit(root) as unit:
        topics = {
            (message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]))
            for level in DELIVERED
            for message in read(unit, SCHEDULE_TOPIC, level - 1)
        }
        by_apache = {queue: read(unit, *queue) for queue in topics}
        await asyncio.sleep(2)
        delivered_count = 0
        for queue, old in by_apache.items():
            new = read(unit, *queue, offset=len(old))
            delivered_count += len(new)
            expected = [content(message) for message in old if "REAL_TOPIC" in message.properties]
            key = lambda each: (each[1]["UNIQ_KEY"], each[7])
            assert [_without_host(each) for each in sorted(map(content, new), key=key)] == [
                _without_host(each) for each in sorted(expected, key=key)
            ], queue
        assert unit.broker.tables.delay_offsets.offsets == DELIVERED
        assert delivered_count == sum(DELIVERED.values())


def _without_host(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    # The port of the store host is that of the broker that delivers.
    return (*fields[:6], *fields[7:])


async def test_nothing_is_delivered_twice_after_apache(root: Path) -> None:
    before = (root / "config/delayOffset.json").read_text()
    async with golden_unit(root) as unit:
        end = unit.store.max_physical_offset
        await asyncio.sleep(25)
        assert unit.store.max_physical_offset == end
    assert (root / "config/delayOffset.json").read_text() == before


async def test_a_waiting_message_of_ours_equals_that_of_apache(root: Path) -> None:
    async with golden_unit(root) as unit:
        (golden, *_) = read(unit, SCHEDULE_TOPIC, 1)
        properties = {name: golden.properties[name] for name in ("UNIQ_KEY", "DELAY", "TAGS", "KEYS", "WAIT")}
        queue_id = int(golden.properties["REAL_QID"])
        await unit.send(TOPIC, golden.body, queue_id=queue_id, properties=properties, born_timestamp=golden.born_at_ms)
        (ours,) = read(unit, SCHEDULE_TOPIC, 1, DELIVERED[2])
        assert {**ours.properties, "CLUSTER": "GoldenCluster"} == golden.properties
        for name in ("body", "body_crc", "flag", "sys_flag", "born_at_ms", "reconsume_times"):
            assert getattr(ours, name) == getattr(golden, name), name
        for message, offset in ((golden, 0), (ours, DELIVERED[2])):
            unit_of_message = UNIT.unpack(unit.store.units(SCHEDULE_TOPIC, 1, offset, 1).data)
            assert unit_of_message == (message.physical_offset, message.size_bytes, message.stored_at_ms + 2_000)
        await asyncio.sleep(23)
    saved = (root / "config/delayOffset.json").read_text()
    assert json.loads(to_strict_json(saved.encode()))["offsetTable"] == {"1": 13, "2": 11, "3": 14}
    assert saved.endswith('\t"offsetTable":{1:13,2:11,3:14\n\t}\n}')
