"""Promises about messages that are taken with receipts: the broker says which are not acknowledged, and until when."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.remoting.bodies.pop import TAKEN_PLACES_MAX, TakenMessages, TakenPlace, TakenQuery
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.order import OrderTable
from services.broker.pop.records import CheckPointKey
from services.broker.pop.taken import TakenProcessor
from services.broker.turns import Turns
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import ack, acked, change, make_group, pop

INVISIBLE_MS = 10_000
RETRY = "%RETRY%g_T"


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 1)
        await make_group(unit)
        for number in range(6):
            assert (await unit.send("T", b"m%d" % number)).code == ResponseCode.SUCCESS
        yield unit


async def ask(unit: BrokerUnit, topic: str = "T", group: str = "g", count: int = 10) -> RemotingCommand:
    places = [TakenPlace(queue_id=0, offset=offset) for offset in range(count)]
    query = TakenQuery(consumer_group=group, topic=topic, places=places)
    return await unit.ask(RequestCode.GANTRY_TAKEN_MESSAGES, body=query.encode())


async def taken(unit: BrokerUnit, topic: str = "T", group: str = "g") -> dict[int, tuple[int, int]]:
    """Return the times of the taken messages in queue 0, by offset."""
    answer = await ask(unit, topic, group)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    messages = TakenMessages.decode(answer.body_bytes).messages
    return {one.offset: (one.taken_at, one.visible_at) for one in messages}


@pytest.mark.parametrize("order", [False, True], ids=["any order", "in order"])
async def test_a_message_is_taken_until_it_is_acknowledged(unit: BrokerUnit, order: bool) -> None:
    assert await taken(unit) == {}
    await asyncio.sleep(1)
    now_ms = unit.clock.now_ms()
    items = await pop(unit, max_msg_nums=3, invisible_time=INVISIBLE_MS, order=order)
    found = await taken(unit)
    assert list(found) == [0, 1, 2]
    for taken_ms, visible_ms in found.values():
        assert now_ms <= taken_ms <= unit.clock.now_ms()
        assert visible_ms == taken_ms + INVISIBLE_MS
    await acked(unit, items[:1])
    assert list(await taken(unit)) == [1, 2]
    assert await taken(unit, group="other") == await taken(unit, topic="U") == {}
    await acked(unit, items[1:])
    assert await taken(unit) == {}


@pytest.mark.parametrize("order", [False, True], ids=["any order", "in order"])
async def test_a_changed_invisible_time_is_told(unit: BrokerUnit, order: bool) -> None:
    (item,) = await pop(unit, max_msg_nums=1, invisible_time=INVISIBLE_MS, order=order)
    await asyncio.sleep(5)
    answer = await change(unit, item.receipt, 60_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    (_, visible_ms) = (await taken(unit))[0]
    assert unit.clock.now_ms() + 59_000 <= visible_ms <= unit.clock.now_ms() + 60_000


async def test_a_message_whose_time_is_over_waits_in_the_retry_topic_and_is_taken_there(unit: BrokerUnit) -> None:
    await pop(unit, max_msg_nums=1, invisible_time=1_000)
    await asyncio.sleep(2)
    assert await taken(unit) == await taken(unit, RETRY) == {}
    items = await pop(unit, max_msg_nums=32, invisible_time=INVISIBLE_MS)
    again = next(item for item in items if item.receipt.real_topic("T", "g") != "T")
    assert list(await taken(unit, again.receipt.real_topic("T", "g"))) == [0]
    assert (await ack(unit, again.receipt)).code == ResponseCode.SUCCESS
    assert await taken(unit, again.receipt.real_topic("T", "g")) == {}


async def test_a_message_that_is_taken_again_after_a_reset_has_the_later_time(unit: BrokerUnit) -> None:
    await pop(unit, max_msg_nums=1, invisible_time=INVISIBLE_MS)
    ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "0"}
    answer = await unit.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await pop(unit, max_msg_nums=1, invisible_time=3 * INVISIBLE_MS)
    (_, visible_ms) = (await taken(unit))[0]
    assert visible_ms >= unit.clock.now_ms() + 3 * INVISIBLE_MS


async def test_it_is_known_after_a_crash(unit: BrokerUnit) -> None:
    await pop(unit, max_msg_nums=2, invisible_time=INVISIBLE_MS)
    before = await taken(unit)
    async with BrokerUnit(files=unit.files.crash_clone(unit.broker.rng)) as again:
        again.clock.set_wall(unit.clock.now_ms())
        assert await taken(again) == before


async def test_a_search_among_many_check_points_leaves_the_loop_to_others(unit: BrokerUnit) -> None:
    points = CheckPointTable()
    for number in range(20_000):
        point = CheckPoint(CheckPointKey("T", "g", number % 2, number, number), [number], INVISIBLE_MS, 0)
        point.is_stored = True
        points.add(point)
    processor = TakenProcessor(points, OrderTable(unit.files, "/data/elsewhere"), Turns())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.000_5)
            turns += 1

    counting = asyncio.ensure_future(others())
    query = TakenQuery(consumer_group="g", topic="T", places=[TakenPlace(queue_id=0, offset=19_998)])
    request = RemotingCommand.request(RequestCode.GANTRY_TAKEN_MESSAGES, body=query.encode())
    answer = await processor.taken(unit.connect().server, request)
    counting.cancel()
    assert [one.offset for one in TakenMessages.decode(answer.body_bytes).messages] == [19_998]
    assert turns >= 10


async def test_too_many_places_are_refused(unit: BrokerUnit) -> None:
    assert (await ask(unit, count=TAKEN_PLACES_MAX)).code == ResponseCode.SUCCESS
    assert (await ask(unit, count=TAKEN_PLACES_MAX + 1)).code == ResponseCode.SYSTEM_ERROR
