"""The timer in a whole broker: pacing, limits, repair, damage, and stores of Apache's broker."""

import asyncio
import errno
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.timer import RecallMessageHeader
from gantry.runtime.errors import StartupError
from services.broker.features import FEATURES
from services.broker.timer import engine
from services.broker.timer import feature as timer
from services.broker.timer.feature import window_ms
from services.broker.timer.unitlog import UnitLog
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock

SLOTS = 4096
GOLDEN = Path(__file__).parents[4] / "conformance/golden"


def broker(**settings: Any) -> BrokerUnit:
    small = partial(timer.build, slots=SLOTS)
    features = tuple(small if each is timer.build else each for each in FEATURES)
    return BrokerUnit(**{"features": features, "timer_roll_window_slot": 600, **settings})


async def received(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        answer = await unit.pull(topic, len(found), queue_id=queue_id)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += iter_records(answer.body_bytes)


def later(unit: BrokerUnit, ms: int) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(unit.clock.now_ms() + ms)}


async def test_no_file_is_created_before_a_message_waits() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        await unit.send()
        await asyncio.sleep(5)
        assert not any(unit.files.exists(f"/data/store/{name}") for name in ("timerwheel", "timerlog"))
        assert not unit.files.exists("/data/store/config/timercheck")
        await unit.send(properties=later(unit, 5000))
        await asyncio.sleep(1)
        assert all(unit.files.exists(f"/data/store/{name}") for name in ("timerwheel", "timerlog", "config/timercheck"))


async def test_a_second_with_many_messages_is_paced_and_a_stop_repeats_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_CHUNK_MESSAGES", 16)
    async with broker() as unit:
        await unit.make_topic("T")
        properties = {"TIMER_DELIVER_MS": str(unit.clock.now_ms() // 1000 * 1000 + 10_001)}
        for number in range(600):
            await unit.send(body=b"%d" % number, properties=properties)
        arrived = asyncio.ensure_future(unit.pull(sys_flag=6, suspend_timeout_millis=30_000))
        await arrived
        first = len(await received(unit))
        assert 0 < first < 600
        files, wall_ms = unit.files, unit.clock.now_ms()
    async with broker(files=files) as unit:
        unit.clock.set_wall(wall_ms)
        await asyncio.sleep(5)
        assert [message.body for message in await received(unit)] == [b"%d" % number for number in range(600)]


async def test_a_lost_wheel_is_made_anew_from_the_timer_log() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        for number in range(10):
            await unit.send(body=b"%d" % number, properties=later(unit, 20_000 + 700 * number))
        await asyncio.sleep(1)
        files, wall_ms = unit.files, unit.clock.now_ms()
    files.remove("/data/store/timerwheel")
    async with broker(files=files) as unit:
        unit.clock.set_wall(wall_ms)
        assert unit.broker.collect_runtime_info()["timerCongestNum"] == "10"
        await asyncio.sleep(40)
        assert len(await received(unit)) == 10


async def test_a_lost_timer_log_is_made_anew_from_the_queue() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        for number in range(10):
            await unit.send(body=b"%d" % number, properties=later(unit, 20_000 + 700 * number))
        await asyncio.sleep(1)
        files, wall_ms = unit.files, unit.clock.now_ms()
    files.remove("/data/store/timerlog/00000000000000000000")
    async with broker(files=files) as unit:
        unit.clock.set_wall(wall_ms)
        await asyncio.sleep(40)
        assert sorted(message.body for message in await received(unit)) == [b"%d" % number for number in range(10)]


async def test_a_wheel_of_another_size_stops_the_start_by_name() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        await unit.send(properties=later(unit, 20_000))
        await asyncio.sleep(1)
        files = unit.files
    with pytest.raises(StartupError, match="timerwheel has 131072 bytes"):
        async with BrokerUnit(files=files):
            pass


async def test_files_of_the_timer_log_are_removed_when_nothing_in_them_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLEAN_MS", 1000)
    async with broker(mapped_file_size_timer_log=4096) as unit:
        await unit.make_topic("T")
        await unit.send(body=b"last", properties=later(unit, 400_000))
        for number in range(200):
            await unit.send(body=b"%d" % number, properties=later(unit, 3000 + 10 * number))
        await asyncio.sleep(10)
        assert len(unit.files.list_dir("/data/store/timerlog")) == 3
        await unit.send(properties=later(unit, 3000))
        for _ in range(40):
            await asyncio.sleep(10)
            await unit.pull()
        assert len(unit.files.list_dir("/data/store/timerlog")) == 1
        assert {message.body for message in await received(unit)} >= {b"last"}


async def test_messages_wait_in_the_queue_while_the_place_of_their_slot_is_taken() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        await unit.send(body=b"old", properties=later(unit, 100_000))
        await asyncio.sleep(1)
        files, wall_ms = unit.files, unit.clock.now_ms()
    # The place of the old slot comes round while it has not fired.
    async with broker(files=files, timer_roll_window_slot=600) as unit:
        unit.clock.set_wall(wall_ms + (SLOTS - 300) * 1000)
        await unit.send(body=b"new", properties=later(unit, 399_000))
        for _ in range(45):
            await asyncio.sleep(10)
            await unit.pull()
        assert [message.body for message in await received(unit)] == [b"old", b"new"]


async def test_messages_fire_while_the_timer_log_can_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(log: UnitLog) -> None:
        if log.end:
            raise OSError(errno.ENOSPC, "No space left on device", "/data/store/timerlog")

    async with broker() as unit:
        await unit.make_topic("T")
        with monkeypatch.context() as patched:
            patched.setattr(UnitLog, "write_out", full)
            for number in range(100):
                await unit.send(body=b"%d" % number, properties=later(unit, 3000))
            await asyncio.sleep(10)
            some = [message.body for message in await received(unit)]
            assert 0 < len(some) < 100
        await asyncio.sleep(10)
        assert [message.body for message in await received(unit)] == [b"%d" % number for number in range(100)]


async def test_properties_that_leave_no_room_for_those_of_the_delivery_are_refused() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        codes = []
        for size in (32_000, 32_700):
            properties = {**later(unit, 2000), "UNIQ_KEY": "K", "a": "b" * size}
            codes.append((await unit.send(properties=properties)).code)
        assert codes == [ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL]
        await asyncio.sleep(4)
        assert len(await received(unit)) == 1


async def test_a_record_of_the_queue_that_is_no_timed_message_stops_nothing() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        forged = (
            {},
            {"TIMER_OUT_MS": "x", "REAL_TOPIC": "T", "REAL_QID": "0"},
            {"TIMER_OUT_MS": "5", "REAL_TOPIC": "T"},
        )
        for properties in forged:
            await unit.send("rmq_sys_wheel_timer", properties=properties)
        await unit.send(body=b"good", properties=later(unit, 1500))
        await asyncio.sleep(4)
        assert [message.body for message in await received(unit)] == [b"good"]


async def test_a_message_for_a_queue_that_the_topic_lost_goes_to_another_one() -> None:
    async with broker() as unit:
        await unit.make_topic("T", queues=4)
        await unit.send(body=b"x", queue_id=3, properties=later(unit, 5000))
        await unit.make_topic("T", queues=2)
        await asyncio.sleep(7)
        assert [message.body for message in await received(unit, queue_id=1)] == [b"x"]


async def test_switches_refuse_by_name() -> None:
    async with broker(timer_wheel_enable=False, recall_message_enable=False) as unit:
        await unit.make_topic("T")
        refused = await unit.send(properties=later(unit, 5000))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable is false" in str(refused.remark)
        header = RecallMessageHeader(topic="T", recall_handle="x")
        answer = await unit.ask(RequestCode.RECALL_MESSAGE, header)
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "recall failed, operation is forbidden",
        )


async def test_without_the_wheel_waiting_messages_stay_and_with_it_they_are_delivered() -> None:
    async with broker() as unit:
        await unit.make_topic("T")
        await unit.send(body=b"x", properties=later(unit, 5000))
        await asyncio.sleep(1)
        files, wall_ms = unit.files, unit.clock.now_ms()
    for is_enabled in (False, True):
        async with broker(files=files, timer_wheel_enable=is_enabled) as unit:
            unit.clock.set_wall(wall_ms)
            await asyncio.sleep(10)
            assert len(await received(unit)) == int(is_enabled)


async def test_a_part_of_a_long_wait_ends_before_its_record_expires() -> None:
    async with broker(file_reserved_time=3, timer_roll_window_slot=172_800) as unit:
        assert window_ms(unit.settings) == 2 * 3_600_000
    async with broker(timer_roll_window_slot=1) as unit:
        assert window_ms(unit.settings) == 172_800_000


async def test_a_store_of_apaches_broker_goes_on_waiting_here() -> None:
    clock = VirtualClock()
    files = MemFileSystem(clock)
    files.make_dirs("/data")
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        for member in archive:
            path = f"/data/{member.name}"
            if member.isdir():
                files.make_dirs(path)
            else:
                content = archive.extractfile(member)
                assert content is not None
                files.make_dirs(path.rpartition("/")[0])
                files.write(path, content.read(), durable=True)
    golden = {
        "broker_name": "golden-a",
        "mapped_file_size_commit_log": 262_144,
        "mapped_file_size_consume_queue": 6000,
        "mapped_file_size_timer_log": 1 << 20,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
        "file_reserved_time": 8760,
    }
    async with BrokerUnit(files=files, **golden) as unit:
        stopped_ms = 1_795_255_800_000
        unit.clock.set_wall(stopped_ms + 60_000)
        await asyncio.sleep(3)
        before = sum([len(await received(unit, "GoldenTimer", queue)) for queue in (0, 1)])
        assert unit.broker.collect_runtime_info()["timerCongestNum"] == "3"
        # The three messages are rolled: they were sent for two days and a few seconds later.
        for _ in range(6):
            unit.clock.set_wall(unit.clock.now_ms() + 12 * 3_600_000)
            await asyncio.sleep(3)
        after = sum([len(await received(unit, "GoldenTimer", queue)) for queue in (0, 1)])
        assert after - before == 3
