"""Promises about deleted topics and groups: nothing of the old one comes to a new one with the same name."""

import asyncio
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.bodies.timer import WaitingMessages
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.timer import RecallMessageHeader, WaitingMessagesHeader
from gantry.storeformat.timerfiles import decode_timer_metrics
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
WAITS = [{"DELAY": "2"}, {"TIMER_DELAY_MS": "5000"}]
"""Both kinds of scheduled messages. They are due after about five seconds."""


def stored(unit: BrokerUnit, topic: str = "T") -> list[StoredMessage]:
    return list(iter_records(unit.store.get(topic, 0, 0, 32).body))


def bodies(unit: BrokerUnit, topic: str = "T") -> list[bytes]:
    return [message.body for message in stored(unit, topic)]


async def send(unit: BrokerUnit, body: bytes, properties: dict[str, str]) -> Any:
    answer = await unit.send("T", body, properties=properties)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def delete_topic(unit: BrokerUnit, topic: str = "T") -> None:
    answer = await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def waiting_counts(unit: BrokerUnit) -> dict[str, int]:
    answer = await unit.ask(RequestCode.GET_TIMER_METRICS)
    return {topic: count.count for topic, count in decode_timer_metrics(answer.body_bytes)[1].items()}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_topic_made_again_gets_no_message_that_was_scheduled_before(wait: dict[str, str]) -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await send(unit, b"old", wait)
        await asyncio.sleep(1)
        await delete_topic(unit)
        await unit.make_topic("T")
        await send(unit, b"new", wait)
        await asyncio.sleep(8)
        assert bodies(unit) == [b"new"]


@pytest.mark.parametrize("wait", WAITS)
async def test_nor_does_it_after_a_restart(wait: dict[str, str]) -> None:
    async with BrokerUnit() as unit:
        files: MemFileSystem = unit.files
        await unit.make_topic("T")
        await send(unit, b"old", wait)
        await delete_topic(unit)
        await unit.make_topic("T")
    async with BrokerUnit(files=files) as unit:
        await send(unit, b"new", wait)
        await asyncio.sleep(8)
        assert bodies(unit) == [b"new"]


async def test_a_message_that_waits_in_parts_ends_with_its_topic() -> None:
    async with BrokerUnit(timer_roll_window_slot=4) as unit:
        await unit.make_topic("T")
        await send(unit, b"old", {"TIMER_DELAY_SEC": "20"})
        await asyncio.sleep(6)
        await delete_topic(unit)
        await unit.make_topic("T")
        await send(unit, b"new", {"TIMER_DELAY_SEC": "20"})
        await asyncio.sleep(25)
        assert bodies(unit) == [b"new"]
        assert await waiting_counts(unit) == {"T": 0}


async def test_what_ended_with_a_topic_is_neither_listed_nor_counted_nor_recalled() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        old = await send(unit, b"old", {"TIMER_DELAY_SEC": "10"})
        recalled = await send(unit, b"recalled", {"TIMER_DELAY_SEC": "10"})
        await recall(unit, recalled.ext_fields["recallHandle"])
        await asyncio.sleep(1)
        assert await waiting_counts(unit) == {"T": 1}
        await delete_topic(unit)
        await unit.make_topic("T")
        await send(unit, b"new", {"TIMER_DELAY_SEC": "10"})
        await recall(unit, old.ext_fields["recallHandle"])
        await asyncio.sleep(1)
        answer = await unit.ask(RequestCode.GANTRY_WAITING_MESSAGES, WaitingMessagesHeader(second=0, topic="T"))
        assert len(WaitingMessages.decode(answer.body_bytes).messages) == 1
        await asyncio.sleep(12)
        assert bodies(unit) == [b"new"]
        assert await waiting_counts(unit) == {"T": 0}


async def recall(unit: BrokerUnit, handle: str) -> None:
    answer = await unit.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic="T", recall_handle=handle))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_group_made_again_has_nothing_of_the_deleted_one() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await send(unit, b"m", {})
        (message,) = stored(unit)
        for level in ("0", "-1"):
            ext = {"offset": str(message.physical_offset), "group": "g", "delayLevel": level}
            answer = await unit.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        tables = unit.broker.tables
        tables.offsets.commit("T", "g", 0, 1, unit.clock.now_ms())
        await lock(unit)
        ext = {"groupName": "g", "cleanOffset": "true"}
        assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=ext)).code == ResponseCode.SUCCESS
        assert tables.queue_locks.count == 0
        assert tables.offsets.find("T", "g", 0) is None
        body = b'{"groupName":"g"}'
        assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        assert tables.topics.find(RETRY) is not None
        assert tables.topics.find(DLQ) is None
        await asyncio.sleep(15)
        assert bodies(unit, RETRY) == bodies(unit, DLQ) == []


async def lock(unit: BrokerUnit) -> None:
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    body = b'{"clientId":"c","consumerGroup":"g","mqSet":[' + queue + b"]}"
    answer = await unit.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert unit.broker.tables.queue_locks.count == 1
