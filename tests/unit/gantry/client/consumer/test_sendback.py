"""Giving a message back: by request 36, and as a message for the retry topic if that fails."""

import pytest

from gantry.client.consumer.sendback import SendBack
from gantry.client.errors import SendError
from gantry.model.address import Address, pack_host
from gantry.model.message import StoredMessage, decode_properties
from gantry.model.record import decode_record, encode_record
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.scriptedpeer import ScriptedOutcome, ok, refuse

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
HOST = pack_host(Address("10.0.0.1", 10911))


def message(
    topic: str = "T", properties: bytes = b"UNIQ_KEY\x01ID\x02TAGS\x01A\x02", failures: int = 2
) -> StoredMessage:
    record = encode_record(
        1, 9, 5, 4711, 0x301, 77, HOST, 78, HOST, failures, 0, b"body", topic.encode(), properties, None, 1, False
    )
    return decode_record(record)


def store(request: RemotingCommand) -> ScriptedOutcome:
    return ok(request, ext={"msgId": "0" * 32, "queueId": request.ext_fields["e"], "queueOffset": "7"})


@pytest.fixture
def back(engine, cluster, transport) -> SendBack:
    cluster.topic("T", "a", "b")
    cluster.topic("%RETRY%g", "a", "b", queues=1)
    for name in "ab":
        transport.at(f"{name}:10911", {BACK: ok, SEND: store})
    return SendBack(engine, "g")


async def test_the_broker_that_has_the_message_gets_it_back(back, transport):
    await back.send_back(message(), "b", delay_level=4)
    (request,) = transport.sent(BACK, "b:10911")
    assert request.ext_fields == {
        "offset": "4711", "group": "g", "delayLevel": "4", "originMsgId": "ID", "originTopic": "T", "unitMode": "false",
        "maxReconsumeTimes": "16",
    }  # fmt: skip
    assert transport.sent(SEND) == []


@pytest.mark.parametrize("failure", [refuse(ResponseCode.SYSTEM_ERROR), lambda request: None])
async def test_if_that_fails_the_retry_topic_gets_it(back, transport, failure):
    transport.at("a:10911", {BACK: failure, SEND: store})
    await back.send_back(message(), "a", timeout_ms=500)
    (request,) = transport.sent(SEND)
    ext = request.ext_fields
    assert (ext["a"], ext["b"], ext["j"], ext["l"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%g", "3", "16")
    assert (ext["f"], ext["h"], request.body) == (str(0x301), "9", b"body"), "compressed as stored"
    assert decode_properties(ext["i"].encode()) == {
        "UNIQ_KEY": "ID", "TAGS": "A", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID", "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "16", "DELAY": "5",
    }  # fmt: skip


async def test_a_retry_of_a_retry_names_the_first_topic_and_message(back, transport):
    transport.down("b:10911")
    properties = b"UNIQ_KEY\x01ID\x02RETRY_TOPIC\x01Other\x02ORIGIN_MESSAGE_ID\x01FIRST\x02TRAN_MSG\x01true\x02"
    await back.send_back(message("%RETRY%g", properties), "b", delay_level=1)
    sent = decode_properties(transport.sent(SEND)[0].ext_fields["i"].encode())
    assert (sent["RETRY_TOPIC"], sent["ORIGIN_MESSAGE_ID"], sent["DELAY"]) == ("Other", "FIRST", "1")
    assert "TRAN_MSG" not in sent


async def test_a_message_that_is_given_up_becomes_a_dead_letter_on_either_way(back, transport):
    await back.send_back(message(), "a", delay_level=-1)
    assert transport.sent(BACK)[0].ext_fields["delayLevel"] == "-1"
    transport.down("a:10911")
    await back.send_back(message(), "a", delay_level=-1)
    ext = transport.sent(SEND)[0].ext_fields
    assert (ext["j"], ext["l"]) == ("3", "0"), "it failed more often than its limit allows"


async def test_an_unknown_broker_is_no_obstacle(back, transport):
    await back.send_back(message(), "gone")
    assert len(transport.sent(SEND)) == 1


async def test_the_caller_learns_that_both_ways_failed(back, transport):
    for name in "ab":
        transport.at(f"{name}:10911", {BACK: refuse(1), SEND: refuse(ResponseCode.SYSTEM_BUSY)})
    with pytest.raises(SendError):
        await back.send_back(message(), "a")


async def test_a_delay_in_ms_goes_along_with_the_next_longer_level(back, transport):
    await back.send_back(message(), "b", delay_ms=25_000)
    ext = transport.sent(BACK, "b:10911")[0].ext_fields
    assert (ext["gantryDelayMs"], ext["delayLevel"]) == ("25000", "4")
    transport.down("b:10911")
    await back.send_back(message(), "b", delay_ms=25_000)
    assert decode_properties(transport.sent(SEND)[0].ext_fields["i"].encode())["DELAY"] == "4"


async def test_without_a_limit_of_the_consumer_that_of_the_group_counts(engine, back, transport):
    group_limit = SendBack(engine, "g", failures_max=None)
    await group_limit.send_back(message(), "b")
    assert "maxReconsumeTimes" not in transport.sent(BACK, "b:10911")[0].ext_fields
    transport.down("b:10911")
    await group_limit.send_back(message(), "b")
    ext = transport.sent(SEND)[0].ext_fields
    assert "l" not in ext
    assert "MAX_RECONSUME_TIMES" not in decode_properties(ext["i"].encode())
