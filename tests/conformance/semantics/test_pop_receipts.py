"""Promises of receipts: many acknowledged at once, and invisible times that are changed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.popreceipt import PopReceipt
from gantry.remoting.bodies import BatchAck, BatchAckRequest, BatchAckResponse
from gantry.remoting.bodies.pop import encode_offsets
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import ChangeInvisibleTimeResponseHeader
from services.broker.store.results import PutResult, PutStatus
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import ack, acked, bodies, change, make_group, pop


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await make_group(unit)
        yield unit


async def send(unit: BrokerUnit, count: int) -> None:
    for number in range(count):
        assert (await unit.send("T", f"m{number}".encode())).code == ResponseCode.SUCCESS


def batch(receipt: PopReceipt, *offsets: int, **changes: Any) -> BatchAck:
    values: dict[str, Any] = {
        "mask": encode_offsets(receipt.start_offset, offsets), "group": "g", "invisible_ms": receipt.invisible_ms,
        "popped_at_ms": receipt.popped_at_ms, "queue_id": receipt.queue_id, "retry": receipt.retry,
        "revive_queue_id": receipt.revive_queue_id, "start_offset": receipt.start_offset, "topic": "T",
    }  # fmt: skip
    return BatchAck(**{**values, **changes})


async def batch_ack(unit: BrokerUnit, *acks: BatchAck) -> RemotingCommand:
    body = BatchAckRequest(acks=list(acks), broker_name="broker-a").encode()
    return await unit.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)


def new_receipt(old: PopReceipt, answer: RemotingCommand) -> PopReceipt:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    header = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
    return old._replace(
        start_offset=old.queue_offset,
        popped_at_ms=header.pop_time,
        invisible_ms=header.invisible_time,
        revive_queue_id=header.revive_qid,
    )


class TestBatch:
    async def test_many_messages_are_acknowledged_with_one_request(self, unit: BrokerUnit) -> None:
        await send(unit, 6)
        items = await pop(unit, invisible_time=1_000)
        answer = await batch_ack(unit, batch(items[0].receipt, 0, 2, 4))
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, None)
        await asyncio.sleep(2)
        assert bodies(await pop(unit)) == ["m1", "m3", "m5"]

    async def test_each_bad_receipt_is_refused_and_the_others_are_taken(self, unit: BrokerUnit) -> None:
        await send(unit, 3)
        receipt = (await pop(unit, invisible_time=1_000))[0].receipt
        answer = await batch_ack(
            unit,
            batch(receipt, 0, 9),
            batch(receipt, 1, popped_at_ms=5),
            batch(receipt, 0),
            batch(receipt, 2, topic="None"),
        )
        assert answer.code == ResponseCode.SUCCESS
        refused = BatchAckResponse.decode(answer.body_bytes).refused
        assert [(item.ack, item.offset, item.code) for item in refused] == [
            (0, 9, ResponseCode.NO_MESSAGE), (1, 1, ResponseCode.NO_MESSAGE), (2, 0, ResponseCode.NO_MESSAGE),
            (3, 2, ResponseCode.TOPIC_NOT_EXIST),
        ]  # fmt: skip
        await asyncio.sleep(2)
        assert bodies(await pop(unit)) == ["m1", "m2"]

    async def test_a_batch_without_a_good_receipt_has_the_code_of_the_first(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        receipt = (await pop(unit))[0].receipt
        assert (await batch_ack(unit, batch(receipt, 5))).code == ResponseCode.NO_MESSAGE
        assert (await batch_ack(unit)).code == ResponseCode.NO_MESSAGE
        assert (await batch_ack(unit, batch(receipt, mask="?"))).code == ResponseCode.MESSAGE_ILLEGAL

    async def test_a_batch_with_too_many_messages_changes_nothing(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        receipt = (await pop(unit))[0].receipt
        answer = await batch_ack(unit, batch(receipt, *range(4097)))
        assert (answer.code, "4096" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert (await ack(unit, receipt)).code == ResponseCode.SUCCESS

    async def test_if_the_store_takes_nothing_the_messages_are_still_out(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(unit, 1)
        receipt = (await pop(unit))[0].receipt
        with monkeypatch.context() as patch:
            patch.setattr(unit.store, "put", lambda *_, **__: PutResult(PutStatus.NOT_WRITABLE, reason="full"))
            answer = await ack(unit, receipt)
        assert (answer.code, "full" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
        assert (await ack(unit, receipt)).code == ResponseCode.SUCCESS


class TestChange:
    async def test_a_longer_time_hides_the_message_longer(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        (item,) = await pop(unit, invisible_time=1_000)
        receipt = new_receipt(item.receipt, await change(unit, item.receipt, 5_000))
        await asyncio.sleep(4.5)
        assert await pop(unit) == []
        assert (await ack(unit, receipt)).code == ResponseCode.SUCCESS
        await asyncio.sleep(5)
        assert await pop(unit) == []

    async def test_no_time_gives_the_message_out_at_once(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        (item,) = await pop(unit, invisible_time=60_000)
        new_receipt(item.receipt, await change(unit, item.receipt, 0))
        await asyncio.sleep(0.3)
        (again,) = await pop(unit)
        assert again.message.reconsume_times == 1

    async def test_the_old_receipt_is_not_good_any_more(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        (item,) = await pop(unit)
        receipt = new_receipt(item.receipt, await change(unit, item.receipt, 5_000))
        assert (await ack(unit, item.receipt)).code == ResponseCode.NO_MESSAGE
        assert (await change(unit, item.receipt, 5_000)).code == ResponseCode.NO_MESSAGE
        assert (await ack(unit, receipt)).code == ResponseCode.SUCCESS

    async def test_a_change_in_the_millisecond_of_the_pop_is_a_new_receipt(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        (item,) = await pop(unit)
        receipt = item.receipt
        for _ in range(5):
            receipt = new_receipt(receipt, await change(unit, receipt, 5_000))
        await acked(unit, [item._replace(receipt=receipt)])

    @pytest.mark.parametrize("invisible_ms", [-1, 12 * 3_600_000 + 1])
    async def test_a_time_out_of_range_is_refused(self, unit: BrokerUnit, invisible_ms: int) -> None:
        await send(unit, 1)
        (item,) = await pop(unit)
        answer = await change(unit, item.receipt, invisible_ms)
        assert (answer.code, str(invisible_ms) in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        await acked(unit, [item])
