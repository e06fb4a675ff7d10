"""Sending messages that the gateway has already encoded, without decoding them."""

import pytest

from gantry.client.errors import InvalidArgumentError, NotStartedError, Outcome, SendError
from gantry.client.producer import Producer
from gantry.client.sendrequest import EncodedSend
from gantry.model.batch import decode_batch, encode_batch
from gantry.model.message import MessageQueue
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.scriptedpeer import ScriptedOutcome, ok, refuse

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
ONE = EncodedSend(SEND, "T", b"hello", "UNIQ_KEY\x01ID1\x02", 0, 0, ("ID1",))
TWO = EncodedSend(BATCH, "T", encode_batch([(0, b"a", b"x\x011\x02"), (0, b"b", b"")]), "", 0, 0, ("ID1", "ID2"))


def store(request: RemotingCommand) -> ScriptedOutcome:
    ids = ",".join(f"{number:032X}" for number in range(2 if request.code == BATCH else 1))
    return ok(request, ext={"msgId": ids, "queueId": request.ext_fields["e"], "queueOffset": "7"})


@pytest.fixture
def producer(engine, cluster, transport) -> Producer:
    cluster.topic("T", "a", "b")
    for name in "ab":
        transport.at(f"{name}:10911", {SEND: store, BATCH: store})
    return Producer(engine, "pg")


async def test_encoded_bytes_are_sent_unchanged(producer, transport):
    placement = await producer.send_prepared(ONE)
    assert (placement.message_ids, placement.outcome, placement.first_offset) == (("ID1",), Outcome.STORED, 7)
    (request,) = transport.sent(SEND)
    assert (request.body_bytes, request.ext_fields["i"]) == (b"hello", "UNIQ_KEY\x01ID1\x02")


async def test_a_batch_has_one_result_for_each_message(producer, transport):
    placement = await producer.send_prepared(TWO, queue=MessageQueue("T", "b", 1))
    assert [(one.message_id, one.queue_offset) for one in placement.results()] == [("ID1", 7), ("ID2", 8)]
    (request,) = transport.sent(BATCH)
    assert (request.ext_fields["n"], request.ext_fields["e"]) == ("b", "1")
    assert [item.body for item in decode_batch(request.body_bytes)] == [b"a", b"b"]


async def test_a_refused_send_is_retried_elsewhere_unless_its_queue_is_fixed(producer, transport):
    transport.at("a:10911", {SEND: refuse(ResponseCode.SYSTEM_BUSY, "busy")})
    assert (await producer.send_prepared(ONE)).queue.broker_name == "b"
    with pytest.raises(SendError) as caught:
        await producer.send_prepared(ONE, queue=MessageQueue("T", "a", 0))
    assert caught.value.outcome is Outcome.NOT_STORED
    with pytest.raises(InvalidArgumentError):
        await producer.send_prepared(ONE, queue=MessageQueue("X", "a", 0))


async def test_a_one_way_send_is_handed_over(producer, transport):
    await producer.send_prepared_one_way(ONE, queue=MessageQueue("T", "a", 0))
    (request,) = transport.sent(SEND)
    assert request.is_one_way
    transport.at("a:10911", {})
    with pytest.raises(SendError):
        await producer.send_prepared_one_way(EncodedSend(SEND, "NOWHERE", b"x", "", 0, 0, ("ID",)))


async def test_a_stopped_engine_sends_nothing(producer, engine):
    await engine.stop()
    with pytest.raises(NotStartedError):
        await producer.send_prepared(ONE)
