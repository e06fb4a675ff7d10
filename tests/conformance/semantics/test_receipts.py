"""Promises of consuming by receipt: two gateways before a real broker, in virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.runtime.rng import Rng
from tests.support.pullunit import PullUnit


@pytest.fixture
async def home() -> AsyncIterator[PullUnit]:
    async with PullUnit() as home:
        yield home


def bodies(taken):
    return sorted(message.body.decode() for message, _ in taken)


def receipts(taken):
    return [receipt for _, receipt in taken]


def outcomes(settled):
    return [one.outcome for one in settled]


async def test_a_receipt_is_good_once_on_any_gateway(home):
    one, other = home.gateways
    await home.send("a", "b", "c")
    taken = await one.pull()
    assert bodies(taken) == ["a", "b", "c"]
    assert await other.pull() == []
    assert outcomes(await other.ack(receipts(taken))) == ["acked"] * 3
    for settle in (one.ack, one.nack, one.extend):
        assert outcomes(await settle(receipts(taken))) == ["gone"] * 3
    await asyncio.sleep(60)
    assert await one.pull() == []


async def test_a_receipt_is_gone_when_its_time_is_over(home):
    one, other = home.gateways
    await home.send("a")
    taken = await one.pull(invisible_ms=10_000)
    await asyncio.sleep(11)
    assert outcomes(await one.ack(receipts(taken))) == ["gone"]
    [(message, receipt)] = await other.pull()
    assert (message.body, message.reconsume_times, message.topic) == (b"a", 1, "T")
    assert outcomes(await one.ack([receipt])) == ["acked"]


async def test_receipts_of_another_group_and_changed_ones_touch_nothing(home):
    one, _ = home.gateways
    await home.send("a")
    [(_, receipt)] = await one.pull()
    changed = receipt[:40] + ("A" if receipt[40] != "A" else "B") + receipt[41:]
    assert outcomes(await one.ack([changed, "x"])) == ["refused"] * 2
    assert outcomes(await one.ack([receipt], "h")) == ["refused"]
    assert outcomes(await one.ack([receipt, receipt])) == ["acked", "gone"]


async def test_a_returned_message_comes_after_its_delay_and_counts_an_attempt(home):
    one, other = home.gateways
    await home.send("a")
    taken = await one.pull()
    assert outcomes(await other.nack(receipts(taken), delay_ms=3_000)) == ["nacked"]
    assert outcomes(await one.ack(receipts(taken))) == ["gone"]
    await asyncio.sleep(2)
    assert await one.pull() == []
    await asyncio.sleep(1.5)
    again = await one.pull()
    assert [message.reconsume_times for message, _ in again] == [1]
    # Without a delay: the second step of the ladder, 30 s.
    assert outcomes(await other.nack(receipts(again))) == ["nacked"]
    await asyncio.sleep(29)
    assert await one.pull() == []
    await asyncio.sleep(2)
    last = await one.pull()
    assert [message.reconsume_times for message, _ in last] == [2]
    assert outcomes(await one.nack(receipts(last), delay_ms=0)) == ["nacked"]
    await asyncio.sleep(0.5)
    assert [message.reconsume_times for message, _ in await one.pull()] == [3]


async def test_an_extension_counts_from_now_on(home):
    one, other = home.gateways
    await home.send("a")
    taken = await one.pull(invisible_ms=10_000)
    await asyncio.sleep(8)
    [extended] = await other.extend(receipts(taken), invisible_ms=10_000)
    assert extended.outcome == "extended"
    assert outcomes(await one.ack(receipts(taken))) == ["gone"]
    await asyncio.sleep(8)
    assert await one.pull() == []
    assert outcomes(await one.ack([extended.new_receipt])) == ["acked"]


async def test_a_pull_that_waits_gets_a_message_when_it_is_stored(home):
    one, other = home.gateways
    waiting = [asyncio.create_task(gateway.pull(wait_ms=30_000)) for gateway in (one, one, other)]
    await asyncio.sleep(7)
    await home.send("a")
    done, left = await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
    assert [bodies(task.result()) for task in done] == [["a"]]
    await home.send("b", "c")
    await asyncio.wait(left, timeout=2)
    assert sorted(body for task in waiting if task.done() for body in bodies(task.result())) == ["a", "b", "c"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_client_that_leaves_loses_no_message(home):
    one, other = home.gateways
    task = asyncio.create_task(one.pull(wait_ms=30_000))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await home.send("a")
    assert bodies(await other.pull()) == ["a"]


async def test_an_attempt_gets_its_messages_again_on_any_gateway(home):
    one, other = home.gateways
    await home.send(*"abcdefgh")
    first = await one.pull(max_messages=3, attempt_id="x")
    again = await other.pull(max_messages=3, attempt_id="x")
    assert sorted(receipts(again)) == sorted(receipts(first))
    assert outcomes(await one.ack(receipts(again)[:1])) == ["acked"]
    await home.crash_gateway(1)
    left = await home.gateways[1].pull(max_messages=3, attempt_id="x")
    assert sorted(receipts(left)) == sorted(receipts(again)[1:])
    await home.crash_broker(Rng(1))
    assert sorted(receipts(await one.pull(max_messages=3, attempt_id="x"))) == sorted(receipts(left))
    assert set(bodies(await one.pull())).isdisjoint(bodies(first))


async def test_in_order_a_queue_waits_for_its_acks(home):
    one, other = home.gateways
    for body in "abcd":
        await home.send(body)  # All of them in queue 0.
    first = await one.pull(max_messages=2, is_orderly=True)
    assert bodies(first) == ["a", "b"]
    assert await other.pull(is_orderly=True) == []
    assert outcomes(await other.ack(receipts(first)[:1])) == ["acked"]
    assert await other.pull(is_orderly=True) == []
    waiting = asyncio.create_task(other.pull(wait_ms=5_000, is_orderly=True))
    await asyncio.sleep(1)
    assert outcomes(await one.ack(receipts(first)[1:])) == ["acked"]
    async with asyncio.timeout(2):
        assert bodies(await waiting) == ["c", "d"]


async def test_receipts_survive_a_crash_of_everything(home):
    await home.send(*"abcd")
    taken = await home.gateways[0].pull(invisible_ms=3_600_000)
    await home.crash_broker(Rng(2))
    for number in range(2):
        await home.crash_gateway(number)
    one, other = home.gateways
    assert await one.pull() == []
    assert outcomes(await other.ack(receipts(taken))) == ["acked"] * 4
    await home.crash_broker(Rng(3))
    assert outcomes(await one.ack(receipts(taken))) == ["gone"] * 4
