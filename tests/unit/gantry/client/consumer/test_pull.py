"""Reading queues from explicit offsets."""

import asyncio

import pytest

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.errors import BrokerError, BrokerUnavailableError, InvalidArgumentError, RequestTimeoutError
from gantry.model.address import Address, pack_host
from gantry.model.group import parse_tag_expression
from gantry.model.message import MessageQueue, encode_properties
from gantry.model.record import encode_record
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from tests.support.scriptedpeer import ScriptedOutcome, ok, refuse

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("T", "a", 1)
HOST = pack_host(Address("127.0.0.1", 10911))
WHERE = {"suggestWhichBrokerId": "0", "nextBeginOffset": "44", "minOffset": "10", "maxOffset": "90"}


def record(offset: int, tag: str) -> bytes:
    return encode_record(
        queue_id=1, flag=0, queue_offset=offset, physical_offset=offset * 100, sys_flag=0, born_at_ms=1, born_host=HOST,
        stored_at_ms=2, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=b"x", topic=b"T",
        properties=encode_properties({"TAGS": tag, "UNIQ_KEY": "K"}), whole_record_crc=True,
    )  # fmt: skip


def found(*tags: str):
    body = b"".join(record(42 + at, tag) for at, tag in enumerate(tags))
    return lambda request: ok(request, ext=WHERE, body=body)


@pytest.fixture
def consumer(engine, cluster, groups) -> PullConsumer:
    return PullConsumer(engine, "g")


async def test_found_messages_come_with_the_next_offset(consumer, transport):
    transport.at("a:10911", {PULL: found("A", "B")})
    result = await consumer.pull(QUEUE, 42, max_messages=8, max_bytes=1000, expression="A || B")
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (PullStatus.FOUND, 44, 10, 90)
    assert [message.queue_offset for message in result.messages()] == [42, 43]
    (request,) = transport.sent(PULL)
    assert request.ext_fields == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "1",
        "queueOffset": "42",
        "maxMsgNums": "8",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "A || B",
        "expressionType": "TAG",
        "maxMsgBytes": "1000",
    }


async def test_a_pull_may_return_more_than_other_brokers_would_give(consumer, transport):
    transport.at("a:10911", {PULL: found("A")})
    await consumer.pull(QUEUE, 42, max_messages=32, wide_messages=256)
    (request,) = transport.sent(PULL)
    assert (request.ext_fields["maxMsgNums"], request.ext_fields["gantryMaxMsgNums"]) == ("32", "256")


async def test_tags_with_an_equal_hash_are_filtered_out(consumer, transport):
    transport.at("a:10911", {PULL: found("Aa", "BB")})
    result = await consumer.pull(QUEUE, 42, expression="Aa")
    assert [message.tag for message in result.messages()] == ["Aa"]
    every = await consumer.pull(QUEUE, 42, expression=parse_tag_expression("T", "*"))
    assert len(list(every.messages())) == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [(19, PullStatus.NO_NEW_MSG), (20, PullStatus.NO_MATCHED_MSG), (21, PullStatus.OFFSET_ILLEGAL)],
)
async def test_an_empty_pull_has_a_status_and_a_next_offset(consumer, transport, code, status):
    transport.at("a:10911", {PULL: lambda request: RemotingCommand.response_to(request, code, ext=WHERE)})
    result = await consumer.pull(QUEUE, 42)
    assert (result.status, result.next_offset, bytes(result.body)) == (status, 44, b"")
    assert list(result.messages()) == []


async def test_a_held_pull_may_take_its_hold_time_and_five_seconds_more(consumer, transport):
    transport.latency_s["a:10911"] = 19
    transport.at("a:10911", {PULL: found("A")})
    result = await consumer.pull(QUEUE, 42, suspend_ms=15_000)
    assert result.status is PullStatus.FOUND
    assert transport.sent(PULL)[0].ext_fields["sysFlag"] == "6"
    with pytest.raises(RequestTimeoutError):
        await consumer.pull(QUEUE, 42)


@pytest.mark.parametrize("code", [1, 2, 16, 17, 24, 26, 29])
async def test_refusals_are_errors_with_their_code(consumer, transport, code):
    transport.at("a:10911", {PULL: refuse(code)})
    with pytest.raises(BrokerError) as caught:
        await consumer.pull(QUEUE, 0)
    assert caught.value.code == code


async def test_an_answer_without_its_fields_is_an_error_with_its_sender(consumer, transport):
    transport.at("a:10911", {PULL: ok})
    with pytest.raises(BrokerError, match=r"a:10911.*suggestWhichBrokerId"):
        await consumer.pull(QUEUE, 0)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"offset": -1}, "offset"), ({"max_messages": 0}, "max_messages"), ({"expression": "||"}, "filter")],
)
async def test_invalid_arguments_are_refused(consumer, options, field):
    options = {"offset": 0, **options}
    with pytest.raises(InvalidArgumentError, match=field):
        await consumer.pull(QUEUE, options.pop("offset"), **options)


async def test_an_unavailable_broker_is_looked_up_once(consumer, cluster, transport, engine):
    await engine.route("T")
    await asyncio.sleep(2)
    with pytest.raises(BrokerUnavailableError):
        await consumer.pull(MessageQueue("T", "zzz", 0), 0)
    asked = len(transport.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    with pytest.raises(BrokerUnavailableError):
        await consumer.pull(MessageQueue("T", "zzz", 0), 0)
    assert len(transport.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == asked


async def test_a_slave_is_read_if_requested_or_if_there_is_no_master(consumer, cluster, transport):
    cluster.routes["T"] = TopicRoute((QueueData("a", 2, 2, 6),), (BrokerData("C", "a", {0: "a:10911", 1: "s:1"}),))
    transport.at("s:1", {PULL: found("A")})
    assert (await consumer.pull(QUEUE, 42, broker_id=1)).status is PullStatus.FOUND
    cluster.routes["T"] = TopicRoute((QueueData("a", 2, 2, 6),), (BrokerData("C", "a", {1: "s:1"}),))
    await asyncio.sleep(31)
    assert (await consumer.pull(QUEUE, 42, broker_id=0)).status is PullStatus.FOUND
    with pytest.raises(BrokerUnavailableError):
        await consumer.pull(QUEUE, 42)


async def test_offsets_are_asked_of_the_master(consumer, groups, transport):
    assert await consumer.min_offset(QUEUE) == 10
    assert await consumer.max_offset(QUEUE) == 100
    assert await consumer.search_offset(QUEUE, 5_000, "UPPER") == 5
    assert transport.sent(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0].ext_fields["boundaryType"] == "UPPER"
    assert await consumer.committed_offset(QUEUE) is None
    await consumer.commit_offset(QUEUE, 12)
    assert await consumer.committed_offset(QUEUE) == 12
    await consumer.offsets.commit_offset("g", QUEUE, 13, one_way=True)
    assert groups.committed["g", "T", "a", 1] == 13
    with pytest.raises(InvalidArgumentError):
        await consumer.commit_offset(QUEUE, -1)


@pytest.mark.parametrize(("answer", "expected"), [("1700", 1700), ("-1", None)])
async def test_the_earliest_store_time_may_be_missing(consumer, transport, answer, expected):
    def script(request: RemotingCommand) -> ScriptedOutcome:
        return ok(request, ext={"timestamp": answer})

    transport.at("a:10911", {RequestCode.GET_EARLIEST_MSG_STORETIME: script})
    assert await consumer.offsets.earliest_stored_at_ms(QUEUE) == expected


async def test_a_negative_committed_offset_is_none(consumer, groups):
    groups.committed["g", "T", "a", 1] = -1
    assert await consumer.committed_offset(QUEUE) is None


async def test_other_refusals_of_a_committed_offset_are_errors(consumer, transport):
    transport.at("a:10911", {RequestCode.QUERY_CONSUMER_OFFSET: refuse(2)})
    with pytest.raises(BrokerError):
        await consumer.committed_offset(QUEUE)


def test_a_group_needs_a_name():
    with pytest.raises(InvalidArgumentError, match="group"):
        PullConsumer(None, "")
