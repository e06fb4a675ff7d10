"""Promises of attempts: a pop that is repeated under its name gets the same messages again, and nobody else does."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.remoting.codes import ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import acked, ask_pop, bodies, change, make_group, pop


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await prepare(unit)
        yield unit


async def prepare(unit: BrokerUnit) -> None:
    await unit.make_topic("T", 4)
    await make_group(unit, "g")
    for number in range(10):
        answer = await unit.send("T", f"m{number}".encode(), queue_id=number % 4)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_repeated_pop_gets_the_same_messages_with_the_same_receipts(unit: BrokerUnit) -> None:
    first = await pop(unit, max_msg_nums=6, attempt_id="a")
    await asyncio.sleep(3)
    again = await pop(unit, max_msg_nums=6, attempt_id="a", connection=unit.connect())
    assert sorted(again, key=lambda item: item.receipt) == sorted(first, key=lambda item: item.receipt)
    others = await pop(unit, attempt_id="b")
    assert not set(bodies(others)) & set(bodies(first))


async def test_messages_that_are_settled_do_not_come_again(unit: BrokerUnit) -> None:
    first = await pop(unit, max_msg_nums=3, attempt_id="a")
    await acked(unit, first[:1])
    assert (await change(unit, first[1].receipt, 60_000)).code == ResponseCode.SUCCESS
    assert bodies(await pop(unit, max_msg_nums=3, attempt_id="a")) == bodies(first[2:])


async def test_after_the_invisible_time_the_name_is_free(unit: BrokerUnit) -> None:
    first = await pop(unit, max_msg_nums=2, attempt_id="a", invisible_time=5_000)
    await asyncio.sleep(5.5)
    later = await pop(unit, max_msg_nums=32, attempt_id="a")
    assert {item.receipt for item in later}.isdisjoint(item.receipt for item in first)
    assert sorted(bodies(later)) == sorted(f"m{number}" for number in range(10))
    assert sorted(item.message.reconsume_times for item in later) == [0] * 8 + [1] * 2


async def test_a_name_is_that_of_its_group(unit: BrokerUnit) -> None:
    await make_group(unit, "h")
    first = await pop(unit, max_msg_nums=2, attempt_id="a")
    other = await pop(unit, group="h", max_msg_nums=2, attempt_id="a")
    assert {item.receipt for item in first}.isdisjoint(item.receipt for item in other)


async def test_a_replay_takes_nothing_new(unit: BrokerUnit) -> None:
    for order in (False, True):
        assert await pop(unit, attempt_id="never", gantry_replay=True, order=order) == []
    first = await pop(unit, max_msg_nums=2, attempt_id="a")
    assert bodies(await pop(unit, attempt_id="a", gantry_replay=True)) == bodies(first)


async def test_retries_keep_the_name_too(unit: BrokerUnit) -> None:
    await pop(unit, invisible_time=1_000)
    await asyncio.sleep(1.5)
    first = await pop(unit, max_msg_nums=4, attempt_id="a")
    assert [item.message.reconsume_times for item in first] == [1] * 4
    again = await pop(unit, max_msg_nums=4, attempt_id="a")
    assert [(item.message.topic, item.receipt) for item in again] == [("T", item.receipt) for item in first]
    await acked(unit, again)
    assert set(bodies(await pop(unit, attempt_id="a"))).isdisjoint(bodies(first))


async def test_in_order_the_same_queues_are_given_again(unit: BrokerUnit) -> None:
    first = await pop(unit, max_msg_nums=4, attempt_id="a", order=True)
    for _ in range(3):
        again = await pop(unit, max_msg_nums=4, attempt_id="a", order=True)
        assert sorted(bodies(again)) == sorted(bodies(first))
    await acked(unit, again)
    assert set(bodies(await pop(unit, max_msg_nums=4, attempt_id="b", order=True))).isdisjoint(bodies(first))


async def test_a_name_that_is_too_long_is_refused(unit: BrokerUnit) -> None:
    answer = await ask_pop(unit, attempt_id="x" * 256)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "attemptId" in str(answer.remark)
