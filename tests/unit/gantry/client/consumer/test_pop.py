"""Popping: the requests, the receipts of messages, and refused acknowledgements."""

import pytest

from gantry.client.consumer.pop import PopConsumer, PopStatus
from gantry.client.errors import BrokerError, InvalidArgumentError
from gantry.model.address import Address, pack_host
from gantry.model.message import encode_properties
from gantry.model.popreceipt import PopReceipt
from gantry.model.record import encode_record
from gantry.remoting.bodies import BatchAckRequest, BatchAckResponse, RefusedAck
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.scriptedpeer import ok, refuse

HOST = pack_host(Address("10.0.0.1", 10911))
RECEIPT = PopReceipt(4, 1000, 15000, 3, "0", "a", 0, 5)
FOUND = {
    "popTime": "1000", "invisibleTime": "15000", "reviveQid": "3", "restNum": "9", "startOffsetInfo": "0 0 4;1 0 7",
    "msgOffsetInfo": "0 0 5,6;1 0 7",
}  # fmt: skip


def record(offset: int, **properties: str) -> bytes:
    encoded = encode_properties({"UNIQ_KEY": f"ID{offset}", **properties})
    return encode_record(0, 0, offset, 99, 0, 7, HOST, 8, HOST, 0, 0, b"m", b"T", encoded, None, 1, False)


@pytest.fixture
def consumer(engine, cluster) -> PopConsumer:
    cluster.topic("T", "a", "b")
    return PopConsumer(engine, "g")


async def test_a_pop_asks_for_what_the_caller_wants(consumer, transport):
    transport.at("a:10911", {RequestCode.POP_MESSAGE: refuse(ResponseCode.POLLING_TIMEOUT)})
    result = await consumer.pop("T", "a", max_messages=5, invisible_ms=9, poll_ms=8, expression="A", attempt_id="x")
    assert (result.status, result.messages) == (PopStatus.NO_NEW_MSG, ())
    (request,) = transport.sent(RequestCode.POP_MESSAGE)
    assert request.ext_fields.pop("bornTime").isdigit()
    assert request.ext_fields == {
        "consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "5", "invisibleTime": "9", "pollTime": "8",
        "initMode": "0", "expType": "TAG", "exp": "A", "order": "false", "attemptId": "x",
    }  # fmt: skip


async def test_each_message_has_its_receipt(consumer, transport):
    popped_before = "7 1000 15000 3 1 a 0 7"
    body = record(5) + record(6) + record(7, POP_CK=popped_before, **{"1ST_POP_TIME": "11"})
    transport.at("a:10911", {RequestCode.POP_MESSAGE: lambda request: ok(request, ext=FOUND, body=body)})
    result = await consumer.pop("T", "a")
    assert [item.receipt for item in result.messages] == [
        RECEIPT, RECEIPT._replace(queue_offset=6), PopReceipt(7, 1000, 15000, 3, "1", "a", 0, 7),
    ]  # fmt: skip
    assert [item.first_popped_at_ms for item in result.messages] == [1000, 1000, 11]
    assert (result.status, result.left_count) == (PopStatus.FOUND, 9)


async def test_the_delivery_number_of_an_ordered_message_is_that_of_its_queue(consumer, transport):
    ext = FOUND | {"startOffsetInfo": "0 0 5", "orderCountInfo": "0 0 0;0 qo0%6 2", "reviveQid": "999"}
    body = record(5) + record(6)
    transport.at("a:10911", {RequestCode.POP_MESSAGE: lambda request: ok(request, ext=ext, body=body)})
    result = await consumer.pop("T", "a", order=True)
    assert [item.deliveries for item in result.messages] == [1, 3]


async def test_a_message_with_another_tag_of_the_same_hash_is_acknowledged_and_left_out(consumer, transport):
    body = record(5, TAGS="Aa") + record(6, TAGS="BB")
    transport.at(
        "a:10911",
        {RequestCode.POP_MESSAGE: lambda request: ok(request, ext=FOUND, body=body), RequestCode.BATCH_ACK_MESSAGE: ok},
    )
    result = await consumer.pop("T", "a", expression="Aa")
    assert [item.receipt.queue_offset for item in result.messages] == [5]
    (request,) = transport.sent(RequestCode.BATCH_ACK_MESSAGE)
    assert [ack.offsets() for ack in BatchAckRequest.decode(request.body).acks] == [[6]]


@pytest.mark.parametrize("ext", [{"startOffsetInfo": "0 1 4"}, {"startOffsetInfo": "no"}])
async def test_an_answer_without_receipts_is_an_error(consumer, transport, ext):
    transport.at("a:10911", {RequestCode.POP_MESSAGE: lambda request: ok(request, ext=FOUND | ext, body=record(5))})
    with pytest.raises(BrokerError, match="can't be read"):
        await consumer.pop("T", "a")


async def test_an_acknowledgement_names_the_real_topic(consumer, transport):
    transport.at("a:10911", {RequestCode.ACK_MESSAGE: ok})
    await consumer.ack("T", RECEIPT._replace(retry="2"))
    (request,) = transport.sent(RequestCode.ACK_MESSAGE)
    assert request.ext_fields == {
        "consumerGroup": "g", "topic": "%RETRY%g+T", "queueId": "0", "extraInfo": "4 1000 15000 3 2 a 0 5",
        "offset": "5",
    }  # fmt: skip


async def test_a_batch_of_acknowledgements_is_one_request_and_tells_the_refused_ones(consumer, transport):
    def answer(request):
        refused = [RefusedAck(ack=0, code=208, offset=6, remark="gone"), RefusedAck(ack=1, code=13, remark="no queue")]
        return ok(request, body=BatchAckResponse(refused=refused).encode())

    transport.at("a:10911", {RequestCode.BATCH_ACK_MESSAGE: answer})
    other = RECEIPT._replace(queue_id=1)
    receipts = [("T", RECEIPT), ("T", RECEIPT._replace(queue_offset=6)), ("T", other)]
    refused = await consumer.batch_ack("a", receipts)
    assert {index: error.code for index, error in refused.items()} == {1: 208, 2: 13}
    (request,) = transport.sent(RequestCode.BATCH_ACK_MESSAGE)
    body = BatchAckRequest.decode(request.body)
    assert [(ack.topic, ack.queue_id, ack.offsets()) for ack in body.acks] == [("T", 0, [5, 6]), ("T", 1, [5])]
    assert body.acks[0].mask == "Bg=="


async def test_a_batch_of_another_broker_is_refused(consumer):
    with pytest.raises(InvalidArgumentError, match="broker b"):
        await consumer.batch_ack("b", [("T", RECEIPT)])
    assert await consumer.batch_ack("b", []) == {}


async def test_a_batch_refused_as_a_whole_is_an_error(consumer, transport):
    transport.at("a:10911", {RequestCode.BATCH_ACK_MESSAGE: refuse(ResponseCode.SYSTEM_BUSY)})
    with pytest.raises(BrokerError):
        await consumer.batch_ack("a", [("T", RECEIPT)])


async def test_a_changed_invisible_time_gives_a_new_receipt(consumer, transport):
    answer = {"popTime": "2000", "invisibleTime": "12", "reviveQid": "4"}
    transport.at("a:10911", {RequestCode.CHANGE_MESSAGE_INVISIBLETIME: lambda request: ok(request, ext=answer)})
    assert await consumer.change_invisible_time("T", RECEIPT, 12) == PopReceipt(5, 2000, 12, 4, "0", "a", 0, 5)
    ordered = RECEIPT._replace(revive_queue_id=999)
    assert await consumer.change_invisible_time("T", ordered, 12) == PopReceipt(4, 2000, 12, 999, "0", "a", 0, 5)
