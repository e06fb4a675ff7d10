"""Promises about messages for a set time, one test each, on virtual time."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from gantry.model.message import StoredMessage
from gantry.model.recallhandle import RecallHandle, encode_recall_handle
from gantry.model.record import iter_records
from gantry.remoting.bodies.timer import WaitingMessages
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.timer import RecallMessageHeader, RescheduleMessageHeader, WaitingMessagesHeader
from gantry.runtime.rng import Rng
from gantry.storeformat.timerfiles import decode_timer_check, decode_timer_metrics
from tests.support.brokerunit import IDENTITY, BrokerUnit
from tests.support.memfilesystem import MemFileSystem

DAY_S = 86_400
KEY = "0A000005000000000000000000000001"


async def received(unit: BrokerUnit, queue_id: int = 0) -> Sequence[StoredMessage]:
    """Return the messages that a consumer of the topic has got."""
    found: list[StoredMessage] = []
    while True:
        answer = await unit.pull("T", len(found), queue_id=queue_id, sys_flag=4, max_msg_nums=32)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += iter_records(answer.body_bytes)


async def bodies(unit: BrokerUnit) -> list[bytes]:
    return [message.body for message in await received(unit)]


def at(unit: BrokerUnit, ms: int) -> dict[str, str]:
    """Return the properties of a message that asks for delivery in that many ms."""
    return {"TIMER_DELIVER_MS": str(unit.clock.now_ms() + ms)}


async def pass_time(unit: BrokerUnit, seconds: int) -> None:
    """Let time pass, and use the connection often enough."""
    for _ in range(seconds // 10):
        await asyncio.sleep(10)
        await unit.pull()


async def recall(unit: BrokerUnit, handle: str, topic: str = "T") -> Any:
    return await unit.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic=topic, recall_handle=handle))


async def listed(unit: BrokerUnit, **fields: Any) -> WaitingMessages:
    answer = await unit.ask(RequestCode.GANTRY_WAITING_MESSAGES, WaitingMessagesHeader(**{"second": 0, **fields}))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return WaitingMessages.decode(answer.body_bytes)


@pytest.mark.parametrize(
    ("name", "value", "delay_ms"),
    [
        ("TIMER_DELAY_SEC", "3", 3000),
        ("TIMER_DELAY_MS", "2500", 2500),
        ("TIMER_DELIVER_MS", None, 4321),
        ("__STARTDELIVERTIME", None, 4321),
    ],
)
async def test_a_message_is_delivered_at_its_time_and_at_most_a_second_later(
    name: str, value: str | None, delay_ms: int
) -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        sent_at_ms = unit.clock.now_ms()
        reply = await unit.send(body=b"later", properties={name: value or str(sent_at_ms + delay_ms)})
        assert reply.code == ResponseCode.SUCCESS
        await asyncio.sleep(delay_ms / 1000 - 0.05)
        assert await bodies(unit) == []
        await asyncio.sleep(1.1)
        (message,) = await received(unit)
        assert message.body == b"later"
        assert sent_at_ms + delay_ms <= message.stored_at_ms <= sent_at_ms + delay_ms + 1000


async def test_a_delivered_message_has_the_properties_that_apaches_broker_gives_it() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        now_ms = unit.clock.now_ms()
        await unit.send(queue_id=2, properties={"TIMER_DELAY_MS": "1500", "KEYS": "k", "UNIQ_KEY": KEY, "WAIT": "true"})
        await asyncio.sleep(3)
        (message,) = await received(unit, queue_id=2)
        second_ms = (now_ms + 1500) // 1000 * 1000
        assert message.properties.pop("TIMER_DEQUEUE_MS") == str(message.stored_at_ms)
        assert message.properties == {
            "CLUSTER": "C",
            "KEYS": "k",
            "MSG_REGION": "DefaultRegion",
            "REAL_QID": "2",
            "REAL_TOPIC": "T",
            "TIMER_DELAY_MS": "1500",
            "TIMER_ENQUEUE_MS": str(now_ms // 1000 * 1000),
            "TIMER_OUT_MS": str(second_ms),
            "TRACE_ON": "true",
            "UNIQ_KEY": KEY,
            "WAIT": "true",
        }


async def test_a_time_in_the_past_delivers_at_once() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for delay_ms in (-5000, 0):
            reply = await unit.send(body=b"now", properties=at(unit, delay_ms))
            assert reply.code == ResponseCode.SUCCESS
            assert "recallHandle" not in reply.ext_fields
        await unit.send(body=b"now", properties={"TIMER_DELAY_SEC": "-1"})
        assert await bodies(unit) == [b"now"] * 3


async def test_a_time_beyond_40_days_is_refused_by_name_and_nothing_is_stored() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        before = unit.store.max_physical_offset
        refused = await unit.send(properties={"TIMER_DELAY_SEC": str(40 * DAY_S + 1)})
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark == (
            "timer message illegal, the delay time should not be bigger than the max delay 3456000000ms; or if set del "
            "msg, the delay time should be bigger than the current time; the delay is 3456001000ms"
        )
        assert unit.store.max_physical_offset == before
        assert (await unit.send(properties={"TIMER_DELAY_SEC": str(40 * DAY_S)})).code == ResponseCode.SUCCESS


async def test_a_message_for_40_days_is_rolled_and_delivered_once() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        due_ms = unit.clock.now_ms() + 40 * DAY_S * 1000
        await unit.send(body=b"far", properties={"TIMER_DELIVER_MS": str(due_ms)})
        for _ in range(79):
            await asyncio.sleep(1)
            unit.clock.set_wall(unit.clock.now_ms() + DAY_S * 500)
            await asyncio.sleep(1)
            assert await bodies(unit) == []
        unit.clock.set_wall(due_ms - 2000)
        await asyncio.sleep(4)
        (message,) = await received(unit)
        assert due_ms <= message.stored_at_ms <= due_ms + 1000
        assert int(message.properties["TIMER_ROLL_TIMES"]) >= 19


async def test_messages_of_one_second_arrive_in_the_order_in_which_they_were_sent() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for number in range(700):
            await unit.send(body=b"%d" % number, properties=at(unit, 5000 - unit.clock.now_ms() % 1000 - 1))
        await asyncio.sleep(8)
        assert await bodies(unit) == [b"%d" % number for number in range(700)]


async def test_a_delay_level_comes_before_a_set_time() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        reply = await unit.send(properties={"DELAY": "0", "TIMER_DELAY_SEC": "2"})
        assert "recallHandle" in reply.ext_fields
        reply = await unit.send(properties={"DELAY": "3", "TIMER_DELAY_SEC": "2"})
        assert "recallHandle" not in reply.ext_fields


async def test_a_recalled_message_is_never_delivered_and_its_neighbours_are() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        properties = at(unit, 5000)
        handles = []
        for number in range(3):
            reply = await unit.send(body=b"%d" % number, properties=properties)
            handles.append(reply.ext_fields["recallHandle"])
        answer = await recall(unit, handles[1])
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        await asyncio.sleep(7)
        assert await bodies(unit) == [b"0", b"2"]


async def reschedule(unit: BrokerUnit, handle: str, deliver_at_ms: int) -> Any:
    header = RescheduleMessageHeader(topic="T", recall_handle=handle, deliver_at=deliver_at_ms)
    return await unit.ask(RequestCode.GANTRY_RESCHEDULE_MESSAGE, header)


@pytest.mark.parametrize("before_ms", [990, 600, 150, 101, 100, 99, 50, 10, 1, 0, -1, -30, -200, -1500])
async def test_a_recall_is_taken_until_the_message_is_delivered_and_its_answer_is_true(before_ms: int) -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        second_ms = unit.clock.now_ms() // 1000 * 1000 + 5000
        properties = {"TIMER_DELIVER_MS": str(second_ms + 500)}  # Waits at this second, and is delivered at its end.
        handle = (await unit.send(body=b"recalled?", properties=properties)).ext_fields["recallHandle"]
        await unit.send(body=b"other", properties=properties)
        await asyncio.sleep((second_ms + 1000 - before_ms - unit.clock.now_ms()) / 1000)
        answer = await recall(unit, handle)
        await asyncio.sleep(3)
        if answer.ext_fields["gantryOutcome"] == "recalled":
            assert answer.code == ResponseCode.SUCCESS
            assert await bodies(unit) == [b"other"]
        else:
            assert (answer.code, answer.remark) == (
                ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid",
            )  # fmt: skip
            assert answer.ext_fields["gantryOutcome"] == "gone"
            assert await bodies(unit) == [b"recalled?", b"other"]
        assert (answer.code == ResponseCode.SUCCESS) == (before_ms > 0) or before_ms == 0
        metrics = await unit.ask(RequestCode.GET_TIMER_METRICS)
        assert [topic.count for topic in decode_timer_metrics(metrics.body_bytes)[1].values()] == [0]


async def test_a_recall_in_the_last_second_holds_although_the_broker_crashes() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        second_ms = unit.clock.now_ms() // 1000 * 1000 + 3000
        properties = {"TIMER_DELIVER_MS": str(second_ms + 1)}
        handle = (await unit.send(body=b"recalled", properties=properties)).ext_fields["recallHandle"]
        await unit.send(body=b"other", properties=properties)
        await asyncio.sleep((second_ms + 980 - unit.clock.now_ms()) / 1000)
        assert (await recall(unit, handle)).code == ResponseCode.SUCCESS
        files, wall_ms = unit.files.crash_clone(Rng(1)), unit.clock.now_ms()
    async with BrokerUnit(files=files) as unit:
        unit.clock.set_wall(wall_ms)
        await asyncio.sleep(3)
        assert await bodies(unit) == [b"other"]


async def test_of_two_recalls_of_a_message_one_has_recalled_it() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        handle = (await unit.send(properties=at(unit, 5000))).ext_fields["recallHandle"]
        answers = await asyncio.gather(recall(unit, handle), recall(unit, handle))
        answers.append(await recall(unit, handle))
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3
        assert sorted(answer.ext_fields["gantryOutcome"] for answer in answers) == ["gone", "gone", "recalled"]
        files, wall_ms = unit.files, unit.clock.now_ms()
    async with BrokerUnit(files=files) as unit:
        unit.clock.set_wall(wall_ms)
        await asyncio.sleep(1)
        assert (await recall(unit, handle)).ext_fields["gantryOutcome"] == "gone"
        await asyncio.sleep(8)
        assert await bodies(unit) == []


async def test_a_recall_says_whether_its_durability_is_unknown() -> None:
    async with BrokerUnit(sync_flush_timeout=1000) as unit:
        await unit.make_topic("T")
        handle = (await unit.send(properties=at(unit, 60_000))).ext_fields["recallHandle"]
        unit.flush_is_stuck = True
        assert (await recall(unit, handle)).ext_fields["gantryOutcome"] == "unknown"
        unit.flush_is_stuck = False


@pytest.mark.parametrize("moved_s", [-5, 2, 30, 300])
async def test_a_message_that_gets_another_time_comes_once_at_this_time(moved_s: int) -> None:
    async with BrokerUnit(timer_roll_window_slot=60) as unit:
        await unit.make_topic("T")
        properties = {**at(unit, 200_000), "UNIQ_KEY": KEY, "a": "b", "TAGS": "x"}
        handle = (await unit.send(body=b"moved", queue_id=2, properties=properties)).ext_fields["recallHandle"]
        answer = await reschedule(unit, handle, unit.clock.now_ms() + moved_s * 1000)
        assert (answer.code, answer.ext_fields["gantryOutcome"]) == (ResponseCode.SUCCESS, "recalled")
        assert ("recallHandle" in answer.ext_fields) == (moved_s > 0)
        await pass_time(unit, max(moved_s, 0) + 10)
        (message,) = await received(unit, queue_id=2)
        assert (message.body, message.message_id, message.tag, message.properties["a"]) == (b"moved", KEY, "x", "b")
        await pass_time(unit, 300)
        assert len(await received(unit, queue_id=2)) == 1


async def test_of_two_new_times_at_once_one_counts_and_the_message_comes_once() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        handle = (await unit.send(properties=at(unit, 9000))).ext_fields["recallHandle"]
        at_ms = unit.clock.now_ms() + 3000
        answers = await asyncio.gather(*(reschedule(unit, handle, at_ms + more) for more in (0, 0, 20_000)))
        assert sorted(answer.code for answer in answers) == [
            ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION, ResponseCode.ILLEGAL_OPERATION,
        ]  # fmt: skip
        await pass_time(unit, 40)
        assert len(await bodies(unit)) == 1


async def test_a_new_time_that_comes_too_late_stores_nothing() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        handle = (await unit.send(properties=at(unit, 1500))).ext_fields["recallHandle"]
        await asyncio.sleep(3)
        before = unit.store.max_physical_offset
        answer = await reschedule(unit, handle, unit.clock.now_ms() + 5000)
        assert (answer.code, answer.ext_fields["gantryOutcome"]) == (ResponseCode.ILLEGAL_OPERATION, "gone")
        assert unit.store.max_physical_offset == before


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_recall_without_an_index_holds_and_does_not_say_that_the_message_is_gone(*, restarts: bool) -> None:
    async with BrokerUnit(message_index_enable=False) as unit:
        files: MemFileSystem = unit.files
        await unit.make_topic("T")
        sent = await unit.send("T", b"m", properties=at(unit, 20_000))
        handle = sent.ext_fields["recallHandle"]
        if not restarts:
            await assert_recalled_without_index(unit, handle)
    if restarts:
        async with BrokerUnit(files=files, message_index_enable=False) as unit:
            await assert_recalled_without_index(unit, handle)


async def assert_recalled_without_index(unit: BrokerUnit, handle: str) -> None:
    new_time = RescheduleMessageHeader(topic="T", recall_handle=handle, deliver_at=unit.clock.now_ms() + 30_000)
    refused = await unit.ask(RequestCode.GANTRY_RESCHEDULE_MESSAGE, new_time)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "messageIndexEnable" in (refused.remark or "")
    answer = await unit.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic="T", recall_handle=handle))
    assert (answer.code, answer.ext_fields["gantryOutcome"]) == (ResponseCode.SUCCESS, "unknown")
    assert "messageIndexEnable" in (answer.remark or "")
    await asyncio.sleep(60)
    assert unit.store.max_offset("T", 0) == 0


async def test_a_message_does_not_go_back_to_a_second_from_which_it_was_recalled() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        first_ms = unit.clock.now_ms() // 1000 * 1000 + 5500
        handle = (await unit.send(properties={"TIMER_DELIVER_MS": str(first_ms)})).ext_fields["recallHandle"]
        same = await reschedule(unit, handle, first_ms)
        moved = await reschedule(unit, handle, first_ms + 5000)
        back = await reschedule(unit, moved.ext_fields["recallHandle"], first_ms)
        assert [answer.code for answer in (same, moved, back)] == [
            ResponseCode.TOPIC_EXIST_ALREADY, ResponseCode.SUCCESS, ResponseCode.TOPIC_EXIST_ALREADY,
        ]  # fmt: skip
        await pass_time(unit, 20)
        assert len(await bodies(unit)) == 1


async def test_a_rolled_message_can_be_recalled() -> None:
    async with BrokerUnit(timer_roll_window_slot=60) as unit:
        await unit.make_topic("T")
        reply = await unit.send(body=b"far", properties=at(unit, 400_000))
        await pass_time(unit, 200)
        assert (await recall(unit, reply.ext_fields["recallHandle"])).code == ResponseCode.SUCCESS
        await unit.send(body=b"near", properties=at(unit, 200_000))
        await pass_time(unit, 300)
        assert await bodies(unit) == [b"near"]


@pytest.mark.parametrize(
    ("due_s", "recalled_at_s", "is_read"),
    [(50, 1, True), (22, 5, True), (15, 1, True), (15, 1, False)],
    ids=["both are rolled", "the message is rolled", "none is rolled", "the recall is unread"],
)
async def test_a_recalled_message_stays_recalled_if_the_broker_was_down_at_its_time(
    due_s: int, recalled_at_s: int, is_read: bool
) -> None:
    async with BrokerUnit(timer_roll_window_slot=20) as unit:
        await unit.make_topic("T")
        properties = at(unit, due_s * 1000)
        reply = await unit.send(body=b"recalled", properties=properties)
        await unit.send(body=b"other", properties=properties)
        await asyncio.sleep(recalled_at_s)
        assert (await recall(unit, reply.ext_fields["recallHandle"])).code == ResponseCode.SUCCESS
        if is_read:
            await asyncio.sleep(2)
        files, wall_ms = unit.files.crash_clone(Rng(1)), unit.clock.now_ms()
    async with BrokerUnit(files=files, timer_roll_window_slot=20) as unit:
        unit.clock.set_wall(wall_ms + 60_000)
        await asyncio.sleep(3)
        assert await bodies(unit) == [b"other"]


async def test_a_wrong_handle_is_refused_by_name_and_nothing_is_stored() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await unit.make_topic("Other")
        reply = await unit.send(properties=at(unit, 1500))
        handle = reply.ext_fields["recallHandle"]
        before = unit.store.max_physical_offset
        refused = [
            await recall(unit, "!!", "T"),
            await recall(unit, handle, "Other"),
            await recall(unit, handle, "Gone"),
        ]
        await asyncio.sleep(3)
        refused.append(await recall(unit, handle))
        assert [answer.code for answer in refused] == [
            ResponseCode.ILLEGAL_OPERATION,
            ResponseCode.ILLEGAL_OPERATION,
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.ILLEGAL_OPERATION,
        ]
        assert [answer.remark for answer in refused[1:]] == [
            "recall failed, topic not match",
            "recall failed, the topic[Gone] not exist",
            "recall failed, timestamp invalid",
        ]
        assert "recall handle is invalid" in str(refused[0].remark)
        assert before < unit.store.max_physical_offset  # The message itself was delivered, and nothing else.
        assert len(await bodies(unit)) == 1


async def test_a_handle_beyond_the_longest_delay_is_refused_with_the_time_and_the_limit() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        at_ms = unit.clock.now_ms() + 41 * DAY_S * 1000
        answer = await recall(unit, encode_recall_handle(RecallHandle("T", IDENTITY.name, at_ms, "K")))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert answer.remark == (
            f"recall failed, timestamp invalid: {at_ms} is 3542400000 ms ahead, and not below 3456000000"
        )
        assert unit.store.max_offset("rmq_sys_wheel_timer", 0) == 0


async def test_waiting_messages_fire_after_a_restart_and_what_was_due_meanwhile_fires_at_once() -> None:
    files: MemFileSystem | None = None
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for seconds in (2, 60, 3 * DAY_S):
            await unit.send(body=b"%d" % seconds, properties=at(unit, seconds * 1000))
        files, wall_ms = unit.files, unit.clock.now_ms()
    async with BrokerUnit(files=files) as unit:
        unit.clock.set_wall(wall_ms + 30_000)
        await asyncio.sleep(1)
        assert await bodies(unit) == [b"2"]
        await asyncio.sleep(31)
        assert await bodies(unit) == [b"2", b"60"]
        unit.clock.set_wall(wall_ms + 2 * DAY_S * 1000 + 1000)
        await asyncio.sleep(2)
        unit.clock.set_wall(wall_ms + 3 * DAY_S * 1000)
        await asyncio.sleep(2)
        assert await bodies(unit) == [b"2", b"60", b"%d" % (3 * DAY_S)]


async def test_a_message_that_has_fired_does_not_fire_again_however_often_the_broker_is_killed() -> None:
    """Each kill comes after the delivery and before its mark, the check point."""
    files: MemFileSystem | None = None
    wall_ms = 0
    for life in range(4):
        async with BrokerUnit(files=files) as unit:
            if files is None:
                await unit.make_topic("T")
                await unit.send(body=b"1", properties={"UNIQ_KEY": KEY, **at(unit, 4000)})
                await unit.send(body=b"2", properties={"UNIQ_KEY": KEY, **at(unit, 4000)})
                await asyncio.sleep(3.3)
                # The check point of this message is the last one before the others fire.
                await unit.send(body=b"later", properties=at(unit, 3_600_000))
            else:
                unit.clock.set_wall(wall_ms)
            await asyncio.sleep(0.9)
            assert await bodies(unit) == [b"1", b"2"], f"life {life}"
            unit.files.sync_everything()
            files, wall_ms = unit.files.crash_clone(Rng(life)), unit.clock.now_ms()
            check = decode_timer_check(files.read("/data/store/config/timercheck"))
            assert check.read_ms < wall_ms // 1000 * 1000, "the delivery is marked already"


async def test_messages_survive_a_broker_that_was_down_for_20_days() -> None:
    files: MemFileSystem | None = None
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for seconds in (60, 120, 20 * DAY_S):
            await unit.send(body=b"%d" % seconds, properties=at(unit, seconds * 1000))
        await asyncio.sleep(2)
        files, wall_ms = unit.files, unit.clock.now_ms()
    async with BrokerUnit(files=files, file_reserved_time=2000) as unit:
        unit.clock.set_wall(wall_ms + 20 * DAY_S * 1000)
        await asyncio.sleep(5)
        assert sorted(await bodies(unit)) == sorted([b"60", b"120", b"%d" % (20 * DAY_S)])


async def test_a_clock_that_is_set_back_delivers_late_and_never_early() -> None:
    async with BrokerUnit(timer_interval_ms_min=1_000) as unit:
        await unit.make_topic("T")
        await asyncio.sleep(10)
        real_ms = unit.clock.now_ms()
        unit.clock.set_wall(real_ms - 3_600_000)
        await unit.send(body=b"x", properties=at(unit, 1_800_000))
        for _ in range(179):
            await asyncio.sleep(10)
            assert await bodies(unit) == []
        await pass_time(unit, 1900)
        assert await bodies(unit) == [b"x"]


async def test_the_messages_of_a_deleted_topic_are_dropped_and_counted() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await unit.make_topic("Gone")
        await unit.send("Gone", body=b"x", properties=at(unit, 5000))
        await unit.send("T", body=b"y", properties=at(unit, 5000))
        await asyncio.sleep(1)
        answer = await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Gone"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(7)
        assert await bodies(unit) == [b"y"]
        assert not unit.files.is_dir("/data/store/consumequeue/Gone")


async def test_a_congested_second_takes_no_more_messages() -> None:
    async with BrokerUnit(timer_congest_num_each_slot=5) as unit:
        await unit.make_topic("T")
        properties = {"TIMER_DELIVER_MS": str(unit.clock.now_ms() // 1000 * 1000 + 60_500)}
        codes = []
        for _ in range(40):
            reply = await unit.send(properties=properties)
            codes.append(reply.code)
            await asyncio.sleep(0.2)
        assert codes[:6] == [0] * 6
        assert codes[-1] == ResponseCode.SYSTEM_ERROR
        assert "under flow control" in str(reply.remark)
        assert f"; {codes.count(0)} wait for this second" in str(reply.remark)
        assert 6 <= codes.count(0) <= 10


async def test_many_messages_of_one_second_are_paced_and_none_is_lost() -> None:
    count = 3_000
    async with BrokerUnit(broker_fast_failure_enable=False) as unit:
        await unit.make_topic("T")
        properties = {"TIMER_DELIVER_MS": str(unit.clock.now_ms() // 1000 * 1000 + 20_000)}
        sends = [unit.send(body=b"%d" % number, properties=properties) for number in range(count)]
        assert {answer.code for answer in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}
        await asyncio.sleep((int(properties["TIMER_DELIVER_MS"]) - unit.clock.now_ms()) / 1000 - 0.5)
        assert unit.store.max_offset("T", 0) == 0
        # In virtual time a slice takes none, and the pause after it 1 ms: other work runs between any two slices.
        seen = [0]
        while seen[-1] < count and len(seen) < 10_000:
            await asyncio.sleep(0.001)
            seen.append(unit.store.max_offset("T", 0))
        assert 0 < max(after - before for before, after in pairwise(seen)) <= count // 20
        assert await bodies(unit) == [b"%d" % number for number in range(count)]


async def test_waiting_messages_are_listed_by_time_in_pages_and_recalled_ones_are_not() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await unit.make_topic("Other")
        base_ms = unit.clock.now_ms() // 1000 * 1000
        handles = {}
        for seconds in (90, 30, 30, 60, 30):
            body = b"%d-%d" % (seconds, len(handles))
            properties = {"TIMER_DELIVER_MS": str(base_ms + seconds * 1000 + 1), "TAGS": "a", "KEYS": "k"}
            reply = await unit.send(body=body, properties=properties)
            handles[body] = reply.ext_fields["recallHandle"]
        await unit.send("Other", properties={"TIMER_DELIVER_MS": str(base_ms + 45_001)})
        await recall(unit, handles[b"30-2"])
        await asyncio.sleep(0.5)
        everything = await listed(unit)
        assert [each.topic for each in everything.messages] == ["T", "T", "Other", "T", "T"]
        assert [each.delivery_at - base_ms for each in everything.messages] == [31_000, 31_000, 46_000, 61_000, 91_000]
        found: list[str] = []
        place: dict[str, Any] = {}
        while True:
            page = await listed(unit, topic="T", max_messages=1, **place)
            found += [each.recall_handle for each in page.messages]
            if page.next_second is None:
                break
            place = {"second": page.next_second, "position": page.next_position}
        assert found == [handles[body] for body in (b"30-4", b"30-1", b"60-3", b"90-0")]
        refused = await unit.ask(RequestCode.GANTRY_WAITING_MESSAGES, WaitingMessagesHeader(second=0, max_messages=257))
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_check_point_metrics_and_figures_tell_what_waits() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for _ in range(3):
            await unit.send(properties=at(unit, 60_000))
        await asyncio.sleep(5)
        answer = await unit.ask(RequestCode.GET_TIMER_CHECK_POINT)
        check = decode_timer_check(answer.body_bytes)
        assert (check.queue_offset, check.log_flushed) == (3, 3 * 52)
        answer = await unit.ask(RequestCode.GET_TIMER_METRICS)
        _, counts = decode_timer_metrics(answer.body_bytes)
        assert {topic: count.count for topic, count in counts.items()} == {"T": 3}
        figures = unit.broker.collect_runtime_info()
        assert figures["timerCongestNum"] == "3"
        assert figures["timerOffsetBehind"] == "0"
        assert int(figures["timerReadBehind"]) <= 1
        await asyncio.sleep(60)
        assert unit.broker.collect_runtime_info()["timerCongestNum"] == "0"


async def test_a_disk_that_is_full_delays_due_messages_and_loses_none() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        for number in range(20):
            await unit.send(body=b"%d" % number, properties=at(unit, 5000))
        await asyncio.sleep(1)
        refusal = unit.store._writer.refusal
        unit.store._writer.refusal = "the disk is full"
        unit.store._write_blockers.refresh = lambda: None
        await asyncio.sleep(60)
        unit.store._writer.refusal = refusal
        await asyncio.sleep(2)
        assert await bodies(unit) == [b"%d" % number for number in range(20)]
