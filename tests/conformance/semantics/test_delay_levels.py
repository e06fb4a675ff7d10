"""Promises of delay levels: when a message is delivered, what it looks like, and what survives a crash."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.address import Address, pack_host
from gantry.model.batch import encode_batch
from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.message import StoredMessage
from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import UNIT
from services.broker.store.results import PutResult, PutStatus
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit, send_header

LEVELS = len(DELAY_LEVELS_MS)
PERIOD_MS = 100
"""The broker looks for due messages at this interval."""
SEEDS = range(20)
OFFSETS_FILE = "/data/store/config/delayOffset.json"


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


async def send(unit: BrokerUnit, level: int | str, body: bytes = b"m", topic: str = "T", **changes: Any) -> None:
    answer = await unit.send(topic, body, properties={"DELAY": str(level), "TAGS": "A"}, **changes)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def stored(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    while True:
        result = unit.store.get(topic, queue_id, len(messages), 32)
        if not result.records:
            return messages
        messages += iter_records(result.body)


def bodies(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(unit, topic, queue_id)]


async def change(unit: BrokerUnit, levels: str) -> None:
    body = f"messageDelayLevel={levels}\n".encode()
    answer = await unit.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def stay_until_saved(unit: BrokerUnit) -> None:
    """Wait until delayOffset.json has the current progress."""
    await asyncio.sleep(unit.settings.flush_delay_offset_interval / 1000 * 2 + 1)


class TestDelivery:
    async def test_a_message_of_each_level_is_delivered_after_the_delay_of_its_level(self) -> None:
        async with BrokerUnit(timer_interval_ms_min=2_000) as unit:
            await unit.make_topic("T")
            for level in range(1, LEVELS + 1):
                await send(unit, level, b"%d" % level)
            began_ms = unit.clock.now_ms()
            await asyncio.sleep(DELAY_LEVELS_MS[-1] / 1000 + 3)
            delivered = stored(unit)
            assert [message.body for message in delivered] == [b"%d" % level for level in range(1, LEVELS + 1)]
            for message, delay_ms in zip(delivered, DELAY_LEVELS_MS, strict=True):
                late_ms = message.stored_at_ms - began_ms - delay_ms
                assert 0 <= late_ms <= 2_100, message.body

    async def test_a_message_is_delivered_within_a_tenth_of_a_second_after_its_time(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        due_ms = unit.clock.now_ms() + 1000
        await asyncio.sleep(2)
        (message,) = stored(unit)
        assert 0 <= message.stored_at_ms - due_ms <= PERIOD_MS

    async def test_a_waiting_consumer_gets_the_message_at_once(self, unit: BrokerUnit) -> None:
        await send(unit, 2)
        answer = await unit.pull("T", sys_flag=6, suspend_timeout_millis=15_000)
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"m"]

    async def test_a_level_above_the_highest_one_means_the_highest_one(self, unit: BrokerUnit) -> None:
        for level in (19, 2**31, "7" * 400):
            await send(unit, level)
        waiting = stored(unit, SCHEDULE_TOPIC, LEVELS - 1)
        assert [message.properties["DELAY"] for message in waiting] == [str(LEVELS)] * 3

    async def test_the_waiting_and_the_delivered_record_are_those_of_rocketmq(self, unit: BrokerUnit) -> None:
        await send(unit, 3, queue_id=2, flag=5, born_timestamp=7)
        (waiting,) = stored(unit, SCHEDULE_TOPIC, 2)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "2")
        data = unit.store.units(SCHEDULE_TOPIC, 2, 0, 1).data
        assert UNIT.unpack(data)[2] == waiting.stored_at_ms + DELAY_LEVELS_MS[2]
        await asyncio.sleep(11)
        (delivered,) = stored(unit, queue_id=2)
        assert delivered.properties == waiting.properties
        for name in ("body", "flag", "sys_flag", "born_at_ms", "born_host", "store_host", "reconsume_times"):
            assert getattr(delivered, name) == getattr(waiting, name), name

    async def test_a_set_time_beside_a_level_is_removed(self, unit: BrokerUnit) -> None:
        unit.broker.special_properties.add("TIMER_DELAY_SEC")
        await unit.send(properties={"DELAY": "1", "TIMER_DELAY_SEC": "5"})
        (waiting,) = stored(unit, SCHEDULE_TOPIC)
        assert "TIMER_DELAY_SEC" not in waiting.properties

    async def test_producers_from_ipv6_keep_their_address(self, unit: BrokerUnit) -> None:
        unit.connection.server.attributes["born_host"] = pack_host(Address("fd00::2", 4711))
        await send(unit, 1)
        await asyncio.sleep(2)
        assert [str(message.born_host) for message in stored(unit)] == ["[fd00::2]:4711"]

    @pytest.mark.parametrize("properties", ["DELAY\x01x\x02", "DELAY\x01 \x02", f"DELAY\x01{'9' * 5_000}\x02"])
    async def test_a_level_that_is_no_number_is_refused_by_name(self, unit: BrokerUnit, properties: str) -> None:
        answer = await unit.send(properties=properties)
        assert (answer.code, "property DELAY=" in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert unit.store.max_physical_offset == 0

    async def test_a_level_in_a_batch_is_refused_by_name(self, unit: BrokerUnit) -> None:
        for properties, item in (({"DELAY": "3"}, b""), (None, b"DELAY\x013\x02")):
            header = send_header(properties=properties, batch=True)
            answer = await unit.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=encode_batch([(0, b"a", item)]))
            assert (answer.code, "property DELAY=3" in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert unit.store.max_physical_offset == 0


class TestChangedLevels:
    async def test_a_waiting_message_keeps_its_time(self, unit: BrokerUnit) -> None:
        await send(unit, 1, b"long")
        await change(unit, "20s 30s")
        await asyncio.sleep(1.2)
        assert bodies(unit) == [b"long"]
        await send(unit, 1, b"longer")
        await change(unit, "1s")
        await asyncio.sleep(19)
        assert bodies(unit) == [b"long"]
        await asyncio.sleep(2)
        assert bodies(unit) == [b"long", b"longer"]

    async def test_a_new_message_has_the_new_time_and_the_new_highest_level(self, unit: BrokerUnit) -> None:
        await change(unit, "3s 4s")
        await send(unit, 18)
        await asyncio.sleep(3.9)
        assert bodies(unit) == []
        await asyncio.sleep(0.3)
        assert bodies(unit) == [b"m"]

    async def test_messages_of_a_removed_level_are_delivered(self, unit: BrokerUnit) -> None:
        await send(unit, 5)
        await change(unit, "1s")
        await asyncio.sleep(61)
        assert bodies(unit) == [b"m"]

    async def test_more_levels_than_rocketmq_has_work(self, unit: BrokerUnit) -> None:
        await change(unit, " ".join(["1s"] * 30))
        await send(unit, 30)
        await asyncio.sleep(1.3)
        assert bodies(unit) == [b"m"]

    async def test_a_wrong_setting_is_refused_and_changes_nothing(self, unit: BrokerUnit) -> None:
        for levels in ("", "1x", "1s " * 1001):
            body = f"messageDelayLevel={levels}\n".encode()
            answer = await unit.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            assert answer.code != ResponseCode.SUCCESS
        await send(unit, 1)
        await asyncio.sleep(1.3)
        assert bodies(unit) == [b"m"]


class TestNeighbours:
    """A message that can't be delivered never stops the messages behind it."""

    async def test_a_deleted_topic_takes_its_waiting_messages_with_it(self, unit: BrokerUnit) -> None:
        await unit.make_topic("Gone")
        await send(unit, 1, topic="Gone")
        await send(unit, 1, b"next")
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Gone"})
        await asyncio.sleep(2)
        assert bodies(unit) == [b"next"]
        assert unit.store.max_offset("Gone", 0) == 0
        progress = unit.broker.tables.delay_offsets.offsets
        assert progress == {1: 2}

    async def test_a_topic_with_fewer_queues_gets_the_message_in_one_of_them(self, unit: BrokerUnit) -> None:
        await send(unit, 1, queue_id=3)
        await unit.make_topic("T", queues=2)
        await asyncio.sleep(2)
        assert bodies(unit, queue_id=1) == [b"m"]

    async def test_a_topic_that_may_not_be_written_gets_its_messages(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        ext = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": "4", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
        await asyncio.sleep(2)
        assert bodies(unit) == [b"m"]

    async def test_a_store_that_takes_no_messages_delays_them(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        put = unit.store.put
        unit.store.put = lambda *message, **fields: PutResult(PutStatus.NOT_WRITABLE, reason="the disk is full")  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert bodies(unit) == []
        unit.store.put = put  # type: ignore[method-assign]
        await asyncio.sleep(0.2)
        assert bodies(unit) == [b"m"]

    async def test_a_damaged_record_is_passed_over(self, unit: BrokerUnit) -> None:
        for body in (b"first", b"damaged", b"last"):
            await send(unit, 1, body)
        (_, at, _) = (message.physical_offset for message in stored(unit, SCHEDULE_TOPIC))
        file = unit.store._log.files.find(at)
        assert file is not None
        file.memory[at + 90 - file.start : at + 91 - file.start] = b"X"
        await asyncio.sleep(2)
        assert bodies(unit) == [b"first", b"last"]


class TestPace:
    async def test_many_due_messages_leave_the_loop_to_others(self) -> None:
        count = 2_000
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            await asyncio.gather(*(send(unit, 1, b"%d" % number) for number in range(count)))
            await asyncio.sleep(0.5)
            # In virtual time a slice takes none, and the pause after it 1 ms: other work runs between any two slices.
            seen: list[int] = []
            while len(seen) < count // 64 + 800:
                seen.append(unit.store.max_offset("T", 0))
                await asyncio.sleep(0.001)
            steps = [after - before for before, after in itertools.pairwise(seen)]
            assert 0 < max(steps) <= 64
            assert bodies(unit) == [b"%d" % number for number in range(count)]

    async def test_a_level_with_many_messages_does_not_hold_up_another_one(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            await asyncio.gather(*(send(unit, 2) for _ in range(1_000)))
            await asyncio.sleep(3.9)
            await send(unit, 1, b"alone", queue_id=1)
            pulled = await unit.pull("T", queue_id=1, sys_flag=6, timeout_ms=2_000)
            assert [message.body for message in iter_records(pulled.body_bytes)] == [b"alone"]
            assert unit.store.max_offset("T", 0) < 300


class TestProgress:
    async def test_it_is_saved_every_ten_seconds_and_shown(self, unit: BrokerUnit) -> None:
        for level in (1, 1, 3):
            await send(unit, level)
        await asyncio.sleep(1.5)
        info = json.loads((await unit.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body_bytes)["table"]
        assert info["scheduleMessageOffset_1"] == "2,2"
        assert "scheduleMessageOffset_3" not in info
        assert not unit.files.exists(OFFSETS_FILE)
        await stay_until_saved(unit)
        version = unit.broker.tables.delay_offsets.version
        assert unit.files.read(OFFSETS_FILE).decode() == (
            f'{{\n\t"dataVersion":{{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":{version.timestamp}\n\t}},\n'
            '\t"offsetTable":{1:2,3:1\n\t}\n}'
        )
        answer = await unit.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert b'"offsetTable":{1:2,3:1}' in answer.body_bytes

    async def test_it_gets_a_new_version_after_200_deliveries(self, unit: BrokerUnit) -> None:
        await asyncio.gather(*(send(unit, 1) for _ in range(401)))
        await asyncio.sleep(2)
        assert unit.broker.tables.delay_offsets.version.counter == 2

    @pytest.mark.parametrize("mode", FlushDiskType)
    async def test_it_moves_only_when_the_delivered_message_is_on_the_disk(self, mode: FlushDiskType) -> None:
        async with BrokerUnit(flush_disk_type=mode) as unit:
            await unit.make_topic("T")
            await send(unit, 1)
            unit.store.request_flush()
            flush = unit.store._group_commit.request
            unit.store._group_commit.request = lambda: None  # type: ignore[method-assign]
            await asyncio.sleep(3)
            assert unit.store.max_physical_offset > unit.store.flushed_offset, "the delivered record is only written"
            assert unit.broker.tables.delay_offsets.offsets == {}
            unit.store._group_commit.request = flush  # type: ignore[method-assign]
            await asyncio.sleep(11)
            assert unit.broker.tables.delay_offsets.offsets == {1: 1}
            assert bodies(unit) == [b"m"], "a disk that is slow repeats nothing"

    async def test_waiting_messages_survive_a_restart_and_keep_their_time(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            for level in (1, 2, 3):
                await send(unit, level, b"%d" % level)
            sent_ms = unit.clock.now_ms()
            await asyncio.sleep(2)
        async with BrokerUnit(files=unit.files) as again:
            assert bodies(again) == [b"1"]
            await asyncio.sleep(9)
            assert bodies(again) == [b"1", b"2", b"3"]
            due_ms = [sent_ms + delay_ms for delay_ms in DELAY_LEVELS_MS[:3]]
            late_ms = [message.stored_at_ms - due for message, due in zip(stored(again), due_ms, strict=True)]
            assert all(0 <= late <= 2 * PERIOD_MS for late in late_ms), late_ms

    async def test_messages_that_became_due_while_the_broker_was_away_are_delivered_at_its_start(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            await send(unit, 4)
        await asyncio.sleep(3600)
        async with BrokerUnit(files=unit.files) as again:
            await asyncio.sleep(0.2)
            assert bodies(again) == [b"m"]

    async def test_a_progress_beyond_the_queue_skips_no_new_message(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            await send(unit, 1, b"old")
            await asyncio.sleep(2)
        unit.files.write(OFFSETS_FILE, b'{"offsetTable":{1:9,3:-5}}')
        async with BrokerUnit(files=unit.files) as again:
            for number in range(12):
                await send(again, 1, b"%d" % number)
            await asyncio.sleep(2)
            assert bodies(again) == [b"old", *(b"%d" % number for number in range(12))]

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_a_crash_repeats_messages_and_loses_none(self, seed: int) -> None:
        """The power fails at a random moment of deliveries, and once more during the deliveries after it."""
        rng = Rng(seed)
        sent: list[bytes] = []
        files: Any = None
        for life in range(3):
            async with BrokerUnit(files=files, flush_delay_offset_interval=100 + rng.below(1_000)) as unit:
                await unit.make_topic("T")
                for number in range(rng.below(60)):
                    body = b"%d-%d" % (life, number)
                    await send(unit, 1 + rng.below(3), body)
                    sent.append(body)
                    await asyncio.sleep(rng.below(100) / 1000)
                await asyncio.sleep(rng.below(8_000) / 1000)
                files = unit.files.crash_clone(rng)
        async with BrokerUnit(files=files) as unit:
            await asyncio.sleep(11)
            delivered = bodies(unit)
        assert set(delivered) == set(sent)
        assert all(delivered.count(body) <= 4 for body in sent), "each crash repeats a message once at most"
