"""The encoding of send requests, and the meaning of their answers."""

import pytest

from gantry.client.errors import InvalidArgumentError, Outcome
from gantry.client.sendrequest import (
    EncodedSend,
    SendStatus,
    build_request,
    check_body,
    check_send_topic,
    encode_message_properties,
    prepare_batch,
    read_result,
)
from gantry.model.batch import decode_batch
from gantry.model.message import Message, MessageQueue, decode_properties
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.send import SendMessageHeaderV2

QUEUE = MessageQueue("T", "broker-a", 3)
ONE = EncodedSend(RequestCode.SEND_MESSAGE_V2, "T", b"body", "TAGS\x01A\x02", 0x301, 5, ("ID",))


def answer(code: int = 0, **ext: str) -> RemotingCommand:
    return RemotingCommand.response_to(RemotingCommand.request(310), code, ext=ext)


def test_the_request_equals_that_of_the_typed_header():
    request = build_request(ONE, QUEUE, producer_group="pg", now_ms=12, default_topic_queue_nums=4)
    header = SendMessageHeaderV2(
        producer_group="pg",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0x301,
        born_timestamp=12,
        flag=5,
        properties="TAGS\x01A\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    assert request.ext_fields == header.to_ext()
    assert (request.code, request.body, request.is_one_way) == (310, b"body", False)
    assert SendMessageHeaderV2.from_ext(request.ext_fields) == header


def test_without_topic_creation_the_default_topic_is_the_topic_itself():
    request = build_request(ONE, QUEUE, producer_group="pg", now_ms=12, default_topic_queue_nums=None, one_way=True)
    assert request.ext_fields["c"] == "T"
    assert request.is_one_way


def test_properties_get_an_id_and_the_ordering_key():
    data = encode_message_properties(Message("T", b"x", {"TAGS": "A"}), "ID", "N1")
    assert decode_properties(data) == {"TAGS": "A", "__SHARDINGKEY": "N1", "UNIQ_KEY": "ID"}
    assert data.endswith(b"\x02")


def test_properties_set_by_the_caller_stay():
    message = Message("T", b"x", {"UNIQ_KEY": "mine", "__SHARDINGKEY": "k"})
    assert decode_properties(encode_message_properties(message, None, "other")) == dict(message.properties)


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"a": ""}, "a"),
        ({"a": "b\x01"}, "a"),
        ({"": "x"}, "property"),
        ({"k": "\ud800"}, "property"),
        ({"k": "x" * 40_000}, "properties"),
    ],
)
def test_properties_that_can_not_be_encoded_are_refused_by_name(properties, field):
    with pytest.raises(InvalidArgumentError, match=field):
        encode_message_properties(Message("T", b"x", properties), "ID")


def test_bodies_and_topics_that_every_broker_refuses_are_refused():
    with pytest.raises(InvalidArgumentError, match="body"):
        check_body(b"", 10)
    with pytest.raises(InvalidArgumentError, match="11"):
        check_body(b"x" * 11, 10)
    with pytest.raises(InvalidArgumentError, match="SCHEDULE_TOPIC_XXXX"):
        check_send_topic("SCHEDULE_TOPIC_XXXX")


def test_a_batch_carries_each_message_with_its_own_id():
    items = [Message("T", b"one", {"TAGS": "A"}, 1), Message("T", b"two", {"UNIQ_KEY": "mine"})]
    prepared = prepare_batch("T", items, ["ID1", None], body_bytes_max=1_000)
    decoded = decode_batch(prepared.body)
    assert [(item.flag, bytes(item.body), decode_properties(item.properties)) for item in decoded] == [
        (1, b"one", {"TAGS": "A", "UNIQ_KEY": "ID1"}),
        (0, b"two", {"UNIQ_KEY": "mine"}),
    ]
    assert (prepared.code, prepared.message_ids) == (320, ("ID1", "mine"))
    request = build_request(prepared, QUEUE, producer_group="pg", now_ms=1, default_topic_queue_nums=None)
    assert request.ext_fields["m"] == "true"


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([], "items"),
        ([Message("T", b"x"), Message("U", b"x")], r"items\[1\]\.topic"),
        ([Message("T", b"")], r"items\[0\]\.body"),
        ([Message("T", b"x"), Message("T", b"x" * 101)], r"items\[1\]\.body"),
        ([Message("T", b"x", {"a": "\x02"})], r"items\[0\]\."),
        ([Message("T", b"x"), Message("T", b"x", flag=2**31)], r"items\[1\]\.flag: 2147483648 is not a 32-bit number"),
        ([Message("T", b"x" * 60), Message("T", b"x" * 60)], "items: "),
    ],
)
def test_an_invalid_batch_is_refused_with_the_index_of_the_message(items, match):
    with pytest.raises(InvalidArgumentError, match=match):
        prepare_batch("T", items, ["ID"] * len(items), body_bytes_max=100)


def test_a_batch_needs_an_id_for_each_message():
    items = [Message("T", b"one"), Message("T", b"two")]
    with pytest.raises(InvalidArgumentError, match=r"items\[1\]\.properties: .* UNIQ_KEY"):
        prepare_batch("T", items, ["ID1", None], body_bytes_max=1_000)


def test_an_answer_has_the_place_of_the_message():
    response = answer(msgId="7F00", queueId="3", queueOffset="42", transactionId="ID", MSG_REGION="R")
    (result,) = read_result(ONE, QUEUE, response).results()
    assert (result.status, result.outcome) == (SendStatus.SEND_OK, Outcome.STORED)
    assert (result.message_id, result.stored_id, result.queue, result.queue_offset) == ("ID", "7F00", QUEUE, 42)
    assert (result.transaction_id, result.region_id) == ("ID", "R")


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE), (12, SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
def test_a_message_stored_without_its_durability_is_unknown_with_its_status(code, status):
    (result,) = read_result(ONE, QUEUE, answer(code, msgId="7F00", queueId="3", queueOffset="42")).results()
    assert (result.status, result.outcome, result.queue_offset) == (status, Outcome.UNKNOWN, 42)


def test_a_queue_that_the_broker_chose_is_returned():
    queue = MessageQueue("T", "broker-a", -1)
    result = read_result(ONE, queue, answer(msgId="7F00", queueId="2", queueOffset="0"))
    assert result.queue == MessageQueue("T", "broker-a", 2)


def test_the_answer_to_a_batch_has_an_offset_for_each_message():
    batch = ONE._replace(code=320, message_ids=("A", "B", "C"))
    results = read_result(batch, QUEUE, answer(msgId="1,2,3", queueId="3", queueOffset="7")).results()
    assert [(one.message_id, one.stored_id, one.queue_offset) for one in results] == [
        ("A", "1", 7),
        ("B", "2", 8),
        ("C", "3", 9),
    ]


def test_a_refusal_raises_and_has_no_offset():
    assert read_result(ONE, QUEUE, answer(13)) is None


@pytest.mark.parametrize(
    "ext",
    [{}, {"msgId": "x", "queueId": "3"}, {"msgId": "x", "queueId": "z", "queueOffset": "1"}],
)
def test_a_success_without_an_offset_is_an_invalid_answer(ext):
    with pytest.raises(ValueError, match=r"answer|invalid"):
        read_result(ONE, QUEUE, answer(**ext))


def test_the_answer_to_a_batch_must_cover_all_messages():
    batch = ONE._replace(code=320, message_ids=("A", "B"))
    with pytest.raises(ValueError, match="names 1 stored messages for the 2 sent"):
        read_result(batch, QUEUE, answer(msgId="1", queueId="3", queueOffset="7"))
