"""Promises about deleted topics and groups: nothing of the old one comes to a new one with the same name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.aio.channel import Channel
from gantry.remoting.bodies import ConsumerData, HeartbeatData
from gantry.remoting.bodies.timer import WaitingMessages
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import RecallMessageHeader, RescheduleMessageHeader, WaitingMessagesHeader
from gantry.storeformat.timerfiles import decode_timer_metrics
from tests.support.brokerunit import BrokerUnit, pull_header
from tests.support.heartbeats import consumer_beat
from tests.support.memfilesystem import MemFileSystem
from tests.support.pops import pop_header

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


async def test_a_new_time_brings_no_message_of_a_deleted_topic_into_a_topic_made_again() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        old = (await send(unit, b"old", {"TIMER_DELAY_SEC": "10"})).ext_fields["recallHandle"]
        recalled = (await send(unit, b"recalled", {"TIMER_DELAY_SEC": "10"})).ext_fields["recallHandle"]
        await delete_topic(unit)
        await unit.make_topic("T")
        header = RescheduleMessageHeader(topic="T", recall_handle=old, deliver_at=unit.clock.now_ms() + 3000)
        moved = await unit.ask(RequestCode.GANTRY_RESCHEDULE_MESSAGE, header)
        assert (moved.code, moved.ext_fields["gantryOutcome"]) == (ResponseCode.ILLEGAL_OPERATION, "gone")
        answer = await unit.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic="T", recall_handle=recalled))
        assert (answer.code, answer.ext_fields["gantryOutcome"]) == (ResponseCode.SUCCESS, "gone")
        await asyncio.sleep(15)
        assert bodies(unit) == []


@pytest.mark.parametrize("wait", [{}, *WAITS])
async def test_a_topic_made_again_has_no_message_of_the_deleted_one_under_its_keys_and_ids(
    wait: dict[str, str],
) -> None:
    async with BrokerUnit() as unit:
        ids = []
        for body in (b"old", b"new"):
            await delete_topic(unit)
            await unit.make_topic("T")
            stored_at = unit.store.max_physical_offset
            await send(unit, body, {**wait, "UNIQ_KEY": "U", "KEYS": "k"})
            ids.append(stored_at)
            await asyncio.sleep(1)
        topics = ["T"] if not wait else ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"]
        found = []
        for topic in topics:
            ext = {"topic": topic, "key": "U", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
            answer = await unit.ask(RequestCode.QUERY_MESSAGE, ext={**ext, "_UNIQUE_KEY_QUERY": "true"})
            found += [message.body for message in iter_records(answer.body_bytes)]
        assert found == [b"new"]
        old, new = [await unit.ask(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(at)}) for at in ids]
        assert (old.code, new.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS)
        assert [message.body for message in iter_records(new.body_bytes)] == [b"new"]


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


async def delete_group(unit: BrokerUnit, group: str = "g") -> None:
    ext = {"groupName": group, "cleanOffset": "true"}
    answer = await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def beat(unit: BrokerUnit, group: str = "g", *, client_id: str = "c@1", **more: Any) -> RemotingCommand:
    answer = await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat(client_id, group, "T"), **more)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


@asynccontextmanager
async def consumed() -> AsyncIterator[BrokerUnit]:
    """A broker whose group g has a connected member, c@1."""
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await beat(unit)
        assert unit.broker.tables.topics.find(RETRY) is not None
        yield unit


async def test_heart_beats_do_not_make_a_deleted_group_again() -> None:
    async with consumed() as unit:
        tables = unit.broker.tables
        await delete_group(unit)
        assert tables.consumers.find("g") is None
        answer = await beat(unit)
        assert "subscription group [g] was deleted" in (answer.remark or "")
        assert tables.groups.find("g") is None
        assert tables.topics.find(RETRY) is None
        assert tables.consumers.find("g") is None


async def test_a_heart_beat_drops_only_the_deleted_group() -> None:
    async with consumed() as unit:
        groups = tuple(_consumer(group) for group in ("g", "other"))
        body = HeartbeatData("c@1", ("producers",), groups).encode()
        assert (await unit.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        await delete_group(unit)
        tables = unit.broker.tables
        assert tables.consumers.find("other") is not None
        await unit.ask(RequestCode.HEART_BEAT, body=body)
        assert (tables.groups.find("g"), tables.consumers.find("g")) == (None, None)
        assert tables.groups.find("other") is not None
        assert tables.consumers.find("other") is not None
        assert list(tables.producers.groups()) == ["producers"]


def _consumer(group: str) -> ConsumerData:
    return HeartbeatData.decode(consumer_beat("c@1", group, "T")).consumers[0]


@pytest.mark.parametrize("request_code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE])
async def test_nor_do_the_requests_of_its_members(request_code: RequestCode) -> None:
    async with consumed() as unit:
        await send(unit, b"m", {})
        (message,) = stored(unit)
        await delete_group(unit)
        header = pull_header() if request_code == RequestCode.PULL_MESSAGE else pop_header()
        back = {"offset": str(message.physical_offset), "group": "g", "delayLevel": "0"}
        for answer in (
            await unit.ask(request_code, header),
            await unit.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext=back),
            await unit.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "g"}),
        ):
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "subscription group [g] was deleted" in (answer.remark or "")
        assert unit.broker.tables.groups.find("g") is None


async def test_a_held_pull_ends_with_its_group() -> None:
    async with consumed() as unit:
        held = asyncio.ensure_future(unit.pull(sys_flag=6))
        await asyncio.sleep(1)
        began_ms = unit.clock.monotonic_ms()
        await delete_group(unit)
        answer = await held
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert unit.clock.monotonic_ms() - began_ms < 100


async def test_a_held_pull_of_a_stranger_does_not_make_the_group_again_either() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        held = asyncio.ensure_future(unit.pull(sys_flag=6))
        await asyncio.sleep(1)
        await delete_group(unit)
        await unit.send("T", b"m")
        assert (await held).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert unit.broker.tables.groups.find("g") is None


async def test_members_are_told_at_once_that_their_group_is_deleted() -> None:
    told: list[str] = []

    def notified(channel: Channel, request: RemotingCommand) -> None:
        told.append(request.ext_fields["consumerGroup"])

    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        member = unit.connect({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})
        await beat(unit, connection=member)
        await asyncio.sleep(0.1)
        told.clear()
        await delete_group(unit)
        await asyncio.sleep(0.1)
        assert told == ["g"]


async def test_a_deleted_group_is_made_again_by_an_explicit_create() -> None:
    async with consumed() as unit:
        await delete_group(unit)
        body = b'{"groupName":"g"}'
        assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        answer = await beat(unit)
        assert answer.remark is None
        assert unit.broker.tables.consumers.find("g") is not None


@pytest.mark.parametrize("how", ["another connection", "another client", "left and came back"])
async def test_and_by_a_member_that_comes_anew(how: str) -> None:
    async with consumed() as unit:
        await delete_group(unit)
        more: dict[str, Any] = {}
        if how == "another connection":
            unit.connection.client.abort("restarted")
            await asyncio.sleep(0.1)
            unit.connection = unit.connect()
        elif how == "another client":
            more["client_id"] = "c@2"
        else:
            ext = {"clientID": "c@1", "consumerGroup": "g"}
            await unit.ask(RequestCode.UNREGISTER_CLIENT, ext=ext)
        await beat(unit, **more)
        assert unit.broker.tables.groups.find("g") is not None
        assert unit.broker.tables.groups.dismissed.count == 0
