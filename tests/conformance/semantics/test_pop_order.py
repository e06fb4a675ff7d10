"""Promises of pops in order: a queue goes on when its messages are done, and its state survives."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gantry.model.popreceipt import decode_order_counts
from gantry.remoting.codes import ResponseCode
from gantry.remoting.headers import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import ack, acked, ask_pop, bodies, change, make_group, pop, popped

ORDER_FILE = "/data/store/config/consumerOrderInfo.json"
# A file that Apache RocketMQ 5.3.3 wrote.
APACHE = (
    b'{\n\t"table":{\n\t\t"T@g":{0:{\n\t\t\t\t"a":"att-1",\n\t\t\t\t"cm":1,\n\t\t\t\t"i":6000,\n\t\t\t\t"l":1,\n'
    b'\t\t\t\t"o":[\n\t\t\t\t\t0,\n\t\t\t\t\t1\n\t\t\t\t],\n\t\t\t\t"popTime":%d\n\t\t\t}\n\t\t}\n\t}\n}'
)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await prepare(unit)
        yield unit


async def prepare(unit: BrokerUnit, queues: int = 1, count: int = 6) -> None:
    await unit.make_topic("T", queues)
    await make_group(unit)
    for number in range(count):
        assert (await unit.send("T", f"m{number}".encode(), queue_id=number % queues)).code == ResponseCode.SUCCESS


async def test_a_queue_gives_nothing_more_while_a_message_is_not_done(unit: BrokerUnit) -> None:
    items = await pop(unit, order=True, max_msg_nums=2)
    assert (bodies(items), items[0].receipt.revive_queue_id) == (["m0", "m1"], 999)
    assert await pop(unit, order=True) == []
    await acked(unit, items[:1])
    assert await pop(unit, order=True) == []
    await acked(unit, items[1:])
    assert bodies(await pop(unit, order=True, max_msg_nums=2)) == ["m2", "m3"]


async def test_other_queues_go_on() -> None:
    async with BrokerUnit() as unit:
        await prepare(unit, queues=2)
        items = await pop(unit, order=True, max_msg_nums=1)
        queue_id = items[0].message.queue_id
        assert {item.message.queue_id for item in await pop(unit, order=True)} == {1 - queue_id}


async def test_when_the_time_is_over_the_same_messages_come_in_order_again(unit: BrokerUnit) -> None:
    items = await pop(unit, order=True, max_msg_nums=3, invisible_time=2_000)
    await acked(unit, items[:1])
    waiting = asyncio.create_task(ask_pop(unit, order=True, max_msg_nums=3, poll_time=15_000))
    await asyncio.sleep(1.8)
    assert not waiting.done()
    answer = await waiting
    assert bodies(popped(answer)) == ["m1", "m2", "m3"]
    header = PopMessageResponseHeader.from_ext(answer.ext_fields)
    assert decode_order_counts(header.order_count_info) == {("0", 0, 1): 1, ("0", 0, 2): 1, ("0", 0, None): 0}
    assert (await ack(unit, items[1].receipt)).code == ResponseCode.NO_MESSAGE, "the receipt of the first delivery"


async def test_the_last_acknowledgement_wakes_a_waiting_pop(unit: BrokerUnit) -> None:
    items = await pop(unit, order=True, max_msg_nums=2)
    waiting = asyncio.create_task(ask_pop(unit, order=True, poll_time=15_000))
    await asyncio.sleep(1)
    await acked(unit, items)
    await asyncio.sleep(0.1)
    assert waiting.done()
    assert bodies(popped(waiting.result())) == ["m2", "m3", "m4", "m5"]


async def test_the_same_attempt_gets_the_same_messages(unit: BrokerUnit) -> None:
    first = await pop(unit, order=True, max_msg_nums=2, attempt_id="a")
    again = await pop(unit, order=True, max_msg_nums=2, attempt_id="a")
    assert bodies(first) == bodies(again)
    assert await pop(unit, order=True, attempt_id="b") == []
    await acked(unit, again)


async def test_a_changed_time_holds_for_one_message(unit: BrokerUnit) -> None:
    (item,) = await pop(unit, order=True, max_msg_nums=1, invisible_time=1_000)
    answer = await change(unit, item.receipt, 5_000)
    header = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
    assert (header.pop_time, header.revive_qid) == (item.receipt.popped_at_ms, 999)
    await asyncio.sleep(4)
    assert await pop(unit, order=True) == []
    await asyncio.sleep(1.2)
    assert bodies(await pop(unit, order=True, max_msg_nums=1)) == ["m0"]


async def test_a_repeated_acknowledgement_is_refused(unit: BrokerUnit) -> None:
    items = await pop(unit, order=True, max_msg_nums=2)
    await acked(unit, items[:1])
    assert (await ack(unit, items[0].receipt)).code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("is_clean", [True, False])
async def test_the_state_survives_a_restart(is_clean: bool) -> None:
    settings = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with BrokerUnit(**settings) as unit:
        await prepare(unit)
        await acked(unit, await pop(unit, order=True, max_msg_nums=1))
        items = await pop(unit, order=True, max_msg_nums=2, invisible_time=60_000)
        await acked(unit, items[:1])
        files = unit.files if is_clean else unit.files.crash_clone(Rng(1))
    async with BrokerUnit(files=files, **settings) as unit:
        assert await pop(unit, order=True) == []
        await acked(unit, items[1:])
        assert bodies(await pop(unit, order=True)) == ["m3", "m4", "m5"]


async def test_the_state_of_apaches_broker_is_read_and_written() -> None:
    async with BrokerUnit() as unit:
        await prepare(unit)
        files = unit.files
    async with BrokerUnit(files=files) as unit:
        now_ms = unit.clock.now_ms()
    files.write(ORDER_FILE, APACHE % now_ms)
    async with BrokerUnit(files=files) as unit:
        assert await pop(unit, order=True) == [], "one of two messages is out"
        assert await pop(unit, order=True, attempt_id="att-1", max_msg_nums=2) != []
        await asyncio.sleep(2)
        written = files.read(ORDER_FILE)
    assert b'"T@g":{0:{' in written
    state = json.loads(written.replace(b"{0:", b'{"0":'))["table"]["T@g"]["0"]
    assert (state["a"], state["cm"], state["o"], state["i"]) == ("att-1", 0, [0, 1], 10_000)


async def test_a_reset_frees_the_queue(unit: BrokerUnit) -> None:
    await pop(unit, order=True)
    unit.broker.resets.apply("T", "g", {0: 2})
    assert bodies(await pop(unit, order=True)) == ["m2", "m3", "m4", "m5"]
