"""Requests 900003 and 900004: open transactions, and remembered decisions."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.model.names import TRANS_HALF_TOPIC
from gantry.remoting.bodies.transaction import KnownDecision, OpenTransaction, OpenTransactions
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.transaction import OpenTransactionsHeader, TransactionDecisionHeader
from services.broker.transaction import listing
from tests.support.brokerunit import BrokerUnit
from tests.support.transactions import COMMIT, ROLLBACK, TransactionProducer

SETTINGS = {
    "transaction_check_interval": 2_000,
    "transaction_time_out": 1_000,
    "transaction_op_batch_interval": 300,
    "channel_expired_timeout": 1 << 30,
}


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T")
        yield unit


@pytest.fixture
async def producer(unit: BrokerUnit) -> TransactionProducer:
    producer = TransactionProducer(unit)
    await producer.join()
    return producer


async def page(unit: BrokerUnit, offset: int = 0, count: int | None = None) -> OpenTransactions:
    header = OpenTransactionsHeader(offset=offset, max_transactions=count)
    answer = await unit.ask(RequestCode.GANTRY_OPEN_TRANSACTIONS, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return OpenTransactions.decode(answer.body_bytes)


async def listed(unit: BrokerUnit, count: int | None = None) -> list[OpenTransaction]:
    found: list[OpenTransaction] = []
    offset: int | None = 0
    while offset is not None:
        part = await page(unit, offset, count)
        assert part.next_offset is None or part.next_offset > offset
        found += part.transactions
        offset = part.next_offset
    return found


async def test_an_open_transaction_is_listed_with_its_place(unit, producer):
    half = await producer.begin(properties={"UNIQ_KEY": "K1"}, queue_id=2)
    (one,) = await listed(unit)
    assert (one.message_id, one.group, one.topic, one.queue_id) == ("K1", "pg", "T", 2)
    assert (one.queue_offset, one.physical_offset) == (0, int(half.ext_fields["msgId"][-16:], 16))
    assert (one.checks, one.next_check_at) == (0, one.born_at + 1_000)


async def test_decided_transactions_are_not_listed_even_before_their_op_message(unit, producer):
    halves = [await producer.begin(properties={"UNIQ_KEY": f"K{index}"}) for index in range(3)]
    await producer.end(halves[0], COMMIT)
    await producer.end(halves[2], ROLLBACK)
    assert [one.message_id for one in await listed(unit)] == ["K1"]
    await asyncio.sleep(1)
    assert [one.message_id for one in await listed(unit)] == ["K1"]


async def test_a_checked_transaction_is_listed_once_with_its_newest_half_message(unit, producer):
    await producer.begin(properties={"UNIQ_KEY": "K1"})
    await asyncio.sleep(5)
    (one,) = await listed(unit)
    assert one.checks == len(producer.checks) == 2
    assert one.queue_offset == unit.store.max_offset(TRANS_HALF_TOPIC, 0) - 1
    assert one.next_check_at == one.stored_at + 2_000


async def test_the_immunity_of_a_transaction_moves_its_next_check(unit, producer):
    await producer.begin(properties={"UNIQ_KEY": "K1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    (one,) = await listed(unit)
    assert one.next_check_at == one.born_at + 60_000


@pytest.mark.parametrize("count", [1, 3, 256])
async def test_pages_leave_nothing_out(unit, producer, count, monkeypatch):
    monkeypatch.setattr(listing, "READ_MAX", 4)
    halves = [await producer.begin(properties={"UNIQ_KEY": f"K{index:02}"}) for index in range(40)]
    for half in halves[5:25]:
        await producer.end(half, ROLLBACK)
    found = [one.message_id for one in await listed(unit, count)]
    assert found == [f"K{index:02}" for index in range(40) if not 5 <= index < 25]


@pytest.mark.parametrize(("offset", "count"), [(-1, None), (0, 0), (0, 257)])
async def test_an_invalid_page_is_refused(unit, offset, count):
    header = OpenTransactionsHeader(offset=offset, max_transactions=count)
    answer = await unit.ask(RequestCode.GANTRY_OPEN_TRANSACTIONS, header)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_decisions_are_remembered(unit, producer):
    first = await producer.begin(properties={"UNIQ_KEY": "K1"})
    second = await producer.begin(properties={"UNIQ_KEY": "K2"})
    await producer.begin(properties={"UNIQ_KEY": "K3"})
    await producer.end(first, COMMIT)
    await producer.end(second, ROLLBACK)
    known = {}
    for key in ("K1", "K2", "K3", "K4"):
        answer = await unit.ask(RequestCode.GANTRY_TRANSACTION_DECISION, TransactionDecisionHeader(message_id=key))
        known[key] = KnownDecision.decode(answer.body_bytes).decision
    assert known == {"K1": COMMIT, "K2": ROLLBACK, "K3": None, "K4": None}
