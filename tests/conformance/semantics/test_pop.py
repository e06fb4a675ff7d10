"""Promises of pop: a message is out to one client at a time, and comes again if it is not acknowledged."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.model.names import REVIVE_GROUP, revive_topic
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import ack, acked, ask_pop, bodies, make_group, pop, popped

RETRY, DLQ = "%RETRY%g_T", "%DLQ%g"
REVIVE = revive_topic("C")


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await prepare(unit)
        yield unit


async def prepare(unit: BrokerUnit, queues: int = 4, **config: object) -> None:
    await unit.make_topic("T", queues)
    await make_group(unit, "g", **config)


async def send(unit: BrokerUnit, count: int, queues: int = 1, **changes: object) -> None:
    for number in range(count):
        answer = await unit.send("T", f"m{number}".encode(), queue_id=number % queues, **changes)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


class TestDelivery:
    async def test_no_message_is_given_to_two_clients_within_its_invisible_time(self, unit: BrokerUnit) -> None:
        await send(unit, 10, 4)
        other = unit.connect()
        first = await pop(unit, max_msg_nums=6)
        second = await pop(unit, connection=other)
        assert sorted(bodies(first) + bodies(second)) == sorted(f"m{number}" for number in range(10))
        assert await pop(unit) == []

    async def test_an_acknowledged_message_never_comes_again(self, unit: BrokerUnit) -> None:
        await send(unit, 5)
        await acked(unit, await pop(unit))
        await asyncio.sleep(60)
        assert await pop(unit) == []

    async def test_a_message_that_is_not_acknowledged_comes_again_when_its_time_is_over(self, unit: BrokerUnit) -> None:
        await send(unit, 2)
        first = await pop(unit, invisible_time=5_000)
        await acked(unit, first[:1])
        await asyncio.sleep(4.8)
        assert await pop(unit) == []
        await asyncio.sleep(0.5)
        (again,) = await pop(unit)
        assert bodies([again]) == ["m1"]
        assert (again.message.topic, again.message.reconsume_times, again.receipt.retry) == ("T", 1, "1")
        assert again.message.properties["1ST_POP_TIME"] == str(first[0].receipt.popped_at_ms)
        await acked(unit, [again])
        await asyncio.sleep(60)
        assert await pop(unit) == []

    async def test_after_the_maximum_a_message_is_a_dead_letter(self) -> None:
        async with BrokerUnit() as unit:
            await prepare(unit, retry_max_times=2)
            await send(unit, 1)
            for delivery in range(3):
                (item,) = await pop(unit, invisible_time=1_000)
                assert item.message.reconsume_times == delivery
                await asyncio.sleep(1.5)
            assert await pop(unit) == []
            (letter,) = iter_records(unit.store.get(DLQ, 0, 0, 32).body)
            assert (letter.body, letter.reconsume_times) == (b"m0", 3)
            assert (letter.properties["RETRY_TOPIC"], "POP_CK" in letter.properties) == ("T", False)

    async def test_a_new_retry_topic_may_have_the_second_spelling(self) -> None:
        async with BrokerUnit(enable_retry_topic_v2=True) as unit:
            await prepare(unit)
            await send(unit, 1)
            await pop(unit, invisible_time=1_000)
            await asyncio.sleep(1.5)
            (item,) = await pop(unit)
            assert item.receipt.retry == "2"
            assert unit.store.max_offset("%RETRY%g+T", 0) == 1
            await acked(unit, [item])

    async def test_groups_get_all_messages_each(self, unit: BrokerUnit) -> None:
        await send(unit, 3)
        assert len(await pop(unit, group="g")) == len(await pop(unit, group="g2")) == 3

    async def test_only_messages_with_the_wanted_tag_are_given_out(self, unit: BrokerUnit) -> None:
        for number in range(6):
            await unit.send("T", f"m{number}".encode(), properties={"TAGS": "AB"[number % 2]})
        items = await pop(unit, exp="B", exp_type="TAG", invisible_time=1_000)
        assert bodies(items) == ["m1", "m3", "m5"]
        await acked(unit, items[1:])
        await asyncio.sleep(1.5)
        assert bodies(await pop(unit, exp="B")) == ["m1"]

    async def test_an_sql_expression_decides_which_messages_are_given_out(self, unit: BrokerUnit) -> None:
        for number in range(6):
            await unit.send("T", f"m{number}".encode(), properties={"n": str(number)})
        items = await pop(unit, exp="n > 3", exp_type="SQL92")
        assert bodies(items) == ["m4", "m5"]
        await acked(unit, items)
        waiting = asyncio.create_task(ask_pop(unit, exp="n > 3", exp_type="SQL92", poll_time=15_000))
        await asyncio.sleep(1)
        await unit.send("T", b"no", properties={"n": "1"})
        await asyncio.sleep(1)
        assert not waiting.done()
        await unit.send("T", b"yes", properties={"n": "9"})
        assert bodies(popped(await waiting)) == ["yes"]

    async def test_a_group_that_starts_at_the_end_gets_later_messages_only(self, unit: BrokerUnit) -> None:
        await send(unit, 2)
        assert await pop(unit, init_mode=1) == []
        await unit.send("T", b"later")
        assert bodies(await pop(unit, init_mode=1)) == ["later"]

    async def test_queues_are_read_in_turn(self, unit: BrokerUnit) -> None:
        await send(unit, 400, 4)
        firsts = [(await pop(unit, max_msg_nums=1))[0].message.queue_id for _ in range(8)]
        assert sorted(firsts) == [0, 0, 1, 1, 2, 2, 3, 3]

    async def test_retries_are_not_starved_by_new_messages(self, unit: BrokerUnit) -> None:
        await send(unit, 300)
        await pop(unit, max_msg_nums=1, invisible_time=1_000)
        await asyncio.sleep(1.5)
        seen = [item.receipt.retry for _ in range(60) for item in await pop(unit, max_msg_nums=1)]
        assert "1" in seen

    async def test_a_pop_of_one_queue_takes_nothing_from_the_others(self, unit: BrokerUnit) -> None:
        await send(unit, 8, 4)
        assert {item.message.queue_id for item in await pop(unit, queue_id=2)} == {2}

    async def test_a_reset_gives_the_messages_again(self, unit: BrokerUnit) -> None:
        await send(unit, 3)
        await acked(unit, await pop(unit))
        unit.broker.resets.apply("T", "g", {0: 1})
        assert bodies(await pop(unit)) == ["m1", "m2"]


class TestWaiting:
    async def test_a_pop_waits_for_a_message(self, unit: BrokerUnit) -> None:
        waiting = asyncio.create_task(ask_pop(unit, poll_time=15_000))
        await asyncio.sleep(5)
        await unit.send("T", b"late", queue_id=3)
        assert bodies(popped(await waiting)) == ["late"]

    async def test_a_pop_that_waits_in_vain_ends_in_time(self, unit: BrokerUnit) -> None:
        started = unit.clock.monotonic_ms()
        answer = await ask_pop(unit, poll_time=3_000)
        assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        assert 3_000 <= unit.clock.monotonic_ms() - started <= 3_200

    async def test_a_message_wakes_one_pop_of_each_group(self, unit: BrokerUnit) -> None:
        pops = [asyncio.create_task(ask_pop(unit, group=group, poll_time=15_000)) for group in ("g", "g", "g2")]
        await asyncio.sleep(1)
        await unit.send("T", b"one")
        await asyncio.sleep(1)
        assert [task.done() for task in pops] == [True, False, True]
        await unit.send("T", b"two")
        await asyncio.sleep(1)
        assert bodies(popped(pops[1].result())) == ["two"]

    async def test_a_retry_wakes_its_own_group_only(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        await pop(unit, group="g", invisible_time=2_000)
        await acked(unit, await pop(unit, group="g2"), group="g2")
        pops = [asyncio.create_task(ask_pop(unit, group=group, poll_time=15_000)) for group in ("g", "g2")]
        await asyncio.sleep(3)
        assert [task.done() for task in pops] == [True, False]

    async def test_many_messages_wake_many_pops(self, unit: BrokerUnit) -> None:
        pops = [asyncio.create_task(ask_pop(unit, poll_time=15_000, max_msg_nums=1)) for _ in range(5)]
        await asyncio.sleep(1)
        await asyncio.gather(*(unit.send("T", f"m{number}".encode()) for number in range(5)))
        await asyncio.sleep(1)
        assert sorted(bodies(popped(task.result())[:1])[0] for task in pops) == [f"m{number}" for number in range(5)]

    async def test_a_message_with_another_tag_does_not_wake(self, unit: BrokerUnit) -> None:
        waiting = asyncio.create_task(ask_pop(unit, poll_time=15_000, exp="A"))
        await asyncio.sleep(1)
        await unit.send("T", b"m", properties={"TAGS": "B"})
        await asyncio.sleep(1)
        assert not waiting.done()
        await unit.send("T", b"m", properties={"TAGS": "A"})
        assert len(popped(await waiting)) == 1

    async def test_a_closed_connection_takes_no_message(self, unit: BrokerUnit) -> None:
        other = unit.connect()
        waiting = asyncio.create_task(ask_pop(unit, poll_time=15_000, connection=other))
        await asyncio.sleep(1)
        other.client.abort("gone")
        await asyncio.gather(waiting, return_exceptions=True)
        await unit.send("T", b"m")
        assert bodies(await pop(unit)) == ["m"]

    async def test_a_notification_tells_that_there_is_a_message_and_takes_none(self, unit: BrokerUnit) -> None:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "pollTime": "5000", "bornTime": "0"}
        waiting = asyncio.create_task(unit.ask(RequestCode.NOTIFICATION, ext=ext))
        await asyncio.sleep(1)
        await unit.send("T", b"m")
        assert (await waiting).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
        assert bodies(await pop(unit)) == ["m"]
        assert (await unit.ask(RequestCode.NOTIFICATION, ext=ext)).ext_fields["hasMsg"] == "false"

    async def test_the_number_of_waiting_pops_is_told(self, unit: BrokerUnit) -> None:
        waiting = [asyncio.create_task(ask_pop(unit, poll_time=2_000)) for _ in range(3)]
        await asyncio.sleep(1)
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "-1"}
        assert (await unit.ask(RequestCode.POLLING_INFO, ext=ext)).ext_fields == {"pollingNum": "3"}
        await asyncio.gather(*waiting)

    async def test_a_peek_takes_nothing(self, unit: BrokerUnit) -> None:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "2"}
        assert (await unit.ask(RequestCode.PEEK_MESSAGE, ext=ext)).code == ResponseCode.PULL_NOT_FOUND
        await send(unit, 3)
        answer = await unit.ask(RequestCode.PEEK_MESSAGE, ext=ext)
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"m0", b"m1"]
        assert len(await pop(unit)) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, "topic[None] not exist"),
            ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER, "greater than 32"),
            ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER, "less than 1"),
            ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
            ({"invisible_time": 0}, ResponseCode.INVALID_PARAMETER, "invisibleTime=0"),
            ({"invisible_time": 12 * 3_600_000 + 1}, ResponseCode.INVALID_PARAMETER, "invisibleTime="),
            ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"),
            ({"exp": "n >", "exp_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse"),
            ({"group": "g" * 255}, ResponseCode.INVALID_PARAMETER, "too long for a retry topic"),
        ],
    )
    async def test_a_bad_pop_is_refused_with_its_reason(
        self, unit: BrokerUnit, changes: dict[str, object], code: int, remark: str
    ) -> None:
        answer = await ask_pop(unit, **changes)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert answer.ext_fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}

    async def test_a_group_that_may_not_consume_gets_nothing(self, unit: BrokerUnit) -> None:
        await make_group(unit, "off", consume_enable=False)
        assert (await ask_pop(unit, group="off")).code == ResponseCode.NO_PERMISSION

    async def test_clients_may_not_send_to_the_revive_topic(self, unit: BrokerUnit) -> None:
        assert (await unit.send(REVIVE, b"{}")).code == ResponseCode.NO_PERMISSION

    async def test_a_receipt_sent_along_with_a_message_is_removed(self, unit: BrokerUnit) -> None:
        await unit.send("T", b"m", properties={"POP_CK": "0 1 2 3 0 broker-a 0 0", "TAGS": "A"})
        (item,) = await pop(unit)
        assert "POP_CK" not in item.message.properties


class TestReceipts:
    async def test_forged_and_foreign_receipts_touch_nothing(self, unit: BrokerUnit) -> None:
        await send(unit, 2)
        await acked(unit, await pop(unit, group="g2"), group="g2")
        items = await pop(unit, invisible_time=5_000)
        good = items[0].receipt
        changes = [
            {"start_offset": 1}, {"popped_at_ms": good.popped_at_ms + 1}, {"invisible_ms": 6_000},
            {"revive_queue_id": good.revive_queue_id + 1}, {"retry": "1"}, {"broker_name": "broker-b"},
            {"queue_id": 1}, {"queue_offset": 7},
        ]  # fmt: skip
        for change in changes:
            answer = await ack(unit, good._replace(**change))
            assert answer.code in {
                ResponseCode.NO_MESSAGE,
                ResponseCode.MESSAGE_ILLEGAL,
                ResponseCode.TOPIC_NOT_EXIST,
            }, (
                change,
                answer.remark,
            )
        assert (await ack(unit, good, group="g2")).code == ResponseCode.NO_MESSAGE
        await asyncio.sleep(6)
        assert bodies(await pop(unit)) == ["m0", "m1"], "none of them was acknowledged"

    async def test_a_repeated_and_an_expired_receipt_are_refused(self, unit: BrokerUnit) -> None:
        await send(unit, 2)
        one, two = await pop(unit, invisible_time=1_000)
        await acked(unit, [one])
        again = await ack(unit, one.receipt)
        assert again.code == ResponseCode.NO_MESSAGE
        assert "it is acknowledged, or its invisible time is over" in (again.remark or "")
        await asyncio.sleep(2)
        assert (await ack(unit, two.receipt)).code == ResponseCode.NO_MESSAGE
        assert bodies(await pop(unit)) == ["m1"], "the old receipt did not acknowledge the new delivery"

    @pytest.mark.parametrize("text", ["", "x", "0 1 2 3 0 broker-a 0"])
    async def test_a_text_that_is_no_receipt_is_refused(self, unit: BrokerUnit, text: str) -> None:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "offset": "0", "extraInfo": text}
        answer = await unit.ask(RequestCode.ACK_MESSAGE, ext=ext)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


class TestProgress:
    async def test_the_progress_in_the_revive_topic_follows(self, unit: BrokerUnit) -> None:
        await send(unit, 40, 4)
        for _ in range(10):
            await acked(unit, await pop(unit, max_msg_nums=4))
        await asyncio.sleep(40)
        offsets = unit.broker.tables.offsets
        for queue_id in range(8):
            end = unit.store.max_offset(REVIVE, queue_id)
            done = offsets.find(REVIVE, REVIVE_GROUP, queue_id)
            assert (-1 if done is None else done) == end - 1

    async def test_a_message_that_is_out_for_long_does_not_hold_the_progress_back(self) -> None:
        async with BrokerUnit(timer_interval_ms_min=500) as unit:
            await prepare(unit, 1)
            await send(unit, 2)
            (long, other) = await pop(unit, invisible_time=7_200_000)
            await acked(unit, [other])
            queue_id = long.receipt.revive_queue_id
            await asyncio.sleep(1_000)
            unit.connection = unit.connect()
            done = unit.broker.tables.offsets.find(REVIVE, REVIVE_GROUP, queue_id)
            assert done is not None
            assert done >= 1, "the first record of the check point, and the acknowledgement"
            files = unit.files
        async with BrokerUnit(files=files, timer_interval_ms_min=500) as unit:
            assert await pop(unit) == []
            assert (await ack(unit, other.receipt)).code == ResponseCode.NO_MESSAGE
            await acked(unit, [long])

    async def test_the_committed_offset_follows_the_pops(self, unit: BrokerUnit) -> None:
        await send(unit, 5)
        await pop(unit)
        assert unit.broker.tables.offsets.find("T", "g", 0) == 5

    async def test_a_deleted_topic_takes_its_pops_along(self, unit: BrokerUnit) -> None:
        await send(unit, 5)
        await pop(unit, invisible_time=3_000)
        answer = await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(5)
        assert unit.store.max_offset(RETRY, 0) == 0
