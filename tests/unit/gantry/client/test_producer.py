"""Sending: attempts, their combined outcome, and explicitly chosen queues."""

import asyncio
import zlib

import pytest

from gantry.client.errors import (
    BackpressureError,
    BrokerError,
    BrokerUnavailableError,
    ConnectionFailedError,
    DrainedError,
    InvalidArgumentError,
    NoRouteError,
    NotStartedError,
    NotWritableError,
    Outcome,
    RequestTimeoutError,
    SendError,
)
from gantry.client.producer import Producer
from gantry.client.queueselector import at_random, by_hash
from gantry.client.sendrequest import SendStatus
from gantry.model.batch import decode_batch
from gantry.model.compression import Compression, decompress
from gantry.model.message import Message, MessageQueue, decode_properties
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting import errors as wire
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.scriptedpeer import Script, ScriptedOutcome, in_turn, ok, refuse

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
MESSAGE = Message("T", b"hello", {"TAGS": "A"})


def store(request: RemotingCommand) -> ScriptedOutcome:
    count = len(decode_batch(request.body_bytes)) if request.code == BATCH else 1
    ids = ",".join(f"{number:032X}" for number in range(count))
    return ok(request, ext={"msgId": ids, "queueId": request.ext_fields["e"], "queueOffset": "7"})


def fail(error: wire.RequestFailedError) -> Script:
    return lambda request: error


def silence(request: RemotingCommand) -> ScriptedOutcome:
    return None


@pytest.fixture
def producer(engine, cluster) -> Producer:
    return Producer(engine, "pg")


@pytest.fixture
def brokers(cluster, transport):
    """Topic T with two queues on each of two brokers, and each broker's script for sends."""

    def set_up(a: Script = store, b: Script = store) -> None:
        cluster.topic("T", "a", "b")
        for name, script in (("a", a), ("b", b)):
            transport.at(f"{name}:10911", {SEND: script, BATCH: script})

    return set_up


async def test_a_stored_message_has_its_queue_and_offset(producer, brokers, transport):
    brokers()
    result = await producer.send(MESSAGE)
    assert (result.status, result.outcome, result.queue_offset) == (SendStatus.SEND_OK, Outcome.STORED, 7)
    (request,) = transport.sent(SEND)
    properties = decode_properties(request.ext_fields["i"].encode())
    assert properties == {"TAGS": "A", "UNIQ_KEY": result.message_id}
    assert (request.ext_fields["a"], request.ext_fields["n"]) == ("pg", result.queue.broker_name)
    assert len(result.message_id) == 32


async def test_sends_go_round_all_queues(producer, brokers):
    brokers()
    results = [await producer.send(MESSAGE) for _ in range(8)]
    assert len({result.queue for result in results}) == 4
    assert len({result.message_id for result in results}) == 8


async def test_a_given_id_is_kept(producer, brokers):
    brokers()
    result = await producer.send(Message("T", b"x", {"UNIQ_KEY": "F" * 32}))
    assert result.message_id == "F" * 32


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 215, 1500])
async def test_a_temporary_refusal_is_retried_on_another_broker(producer, brokers, transport, code):
    brokers(a=refuse(code), b=refuse(code))
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    addresses = [address for address, request in transport.requests if request.code == SEND]
    assert len(addresses) == 3
    assert addresses[0] != addresses[1] != addresses[2]
    assert caught.value.outcome is (Outcome.UNKNOWN if code == 1 else Outcome.NOT_STORED)


DRAINED = refuse(16, "the broker[10.0.0.5:10911] sending message is forbidden")


async def test_a_message_that_a_drained_broker_refuses_goes_to_another_one(producer, brokers):
    brokers(a=DRAINED)
    for _ in range(4):
        assert (await producer.send(MESSAGE)).queue.broker_name == "b"


async def test_a_message_for_a_queue_of_a_drained_broker_goes_nowhere_else_and_may_be_sent_later(
    producer, brokers, transport
):
    brokers(a=DRAINED)
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)
    assert isinstance(caught.value.cause, DrainedError)
    assert len(transport.sent(SEND)) == 1


@pytest.mark.parametrize("code", [3, 13, 15, 26, 29, 9999])
async def test_other_refusals_end_the_send(producer, brokers, transport, code):
    brokers(a=refuse(code, "no"), b=refuse(code, "no"))
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert len(transport.sent(SEND)) == 1
    assert isinstance(caught.value.cause, BrokerError)
    assert caught.value.cause.code == code
    assert caught.value.retryable is False


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (fail(wire.ConnectError("a", "refused")), Outcome.NOT_STORED),
        (fail(wire.ConnectionLostError("a", "reset", sent=False)), Outcome.NOT_STORED),
        (fail(wire.ConnectionLostError("a", "reset", sent=True)), Outcome.UNKNOWN),
        (fail(wire.BackpressureError("a", "full")), Outcome.NOT_STORED),
        (refuse(1), Outcome.UNKNOWN),
        (refuse(2), Outcome.NOT_STORED),
    ],
)
async def test_one_unknown_attempt_before_certain_refusals_makes_the_outcome_unknown(producer, brokers, first, outcome):
    script = in_turn(first, refuse(13))
    brokers(a=script, b=script)
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert caught.value.outcome is outcome


async def test_a_send_stored_by_its_last_attempt_is_stored(producer, brokers, transport):
    script = in_turn(fail(wire.ConnectionLostError("a", "reset", sent=True)), refuse(2), store)
    brokers(a=script, b=script)
    result = await producer.send(MESSAGE)
    assert result.outcome is Outcome.STORED
    keys = {decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"] for request in transport.sent(SEND)}
    assert keys == {result.message_id}


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_less_durably_stored_message_is_returned_and_not_retried(producer, brokers, transport, code):
    def script(request: RemotingCommand) -> ScriptedOutcome:
        ext = {"msgId": "0" * 32, "queueId": request.ext_fields["e"], "queueOffset": "7"}
        return RemotingCommand.response_to(request, code, ext=ext)

    brokers(a=script, b=script)
    result = await producer.send(MESSAGE)
    assert (result.outcome, result.queue_offset) == (Outcome.UNKNOWN, 7)
    assert len(transport.sent(SEND)) == 1


async def test_a_success_without_an_offset_is_unknown_and_not_retried(producer, brokers, transport):
    brokers(a=ok, b=ok)
    with pytest.raises(SendError, match="queueOffset") as caught:
        await producer.send(MESSAGE)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(transport.sent(SEND)) == 1


async def test_all_attempts_share_one_budget(producer, brokers, transport):
    brokers(a=silence, b=silence)
    started = asyncio.get_running_loop().time()
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE, timeout_ms=500)
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.5, abs=0.02)
    assert isinstance(caught.value.cause, RequestTimeoutError)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.UNKNOWN, True)
    assert len(transport.sent(SEND)) == 1


async def test_the_remaining_time_is_used_on_another_broker(producer, brokers, transport):
    slow = fail(wire.RequestTimeoutError("x", "late", sent=True))
    brokers(a=slow, b=slow)
    transport.latency_s["a:10911"] = transport.latency_s["b:10911"] = 0.2
    with pytest.raises(SendError):
        await producer.send(MESSAGE, timeout_ms=500)
    assert len(transport.sent(SEND)) == 3


async def test_a_key_has_one_queue_and_one_attempt(producer, brokers, transport):
    brokers()
    results = [await producer.send(MESSAGE, ordering_key="N14228") for _ in range(5)]
    assert len({result.queue for result in results}) == 1
    assert results[0].queue == await producer.queue_for_key("T", "N14228")
    assert decode_properties(transport.sent(SEND)[0].ext_fields["i"].encode())["__SHARDINGKEY"] == "N14228"
    brokers(a=refuse(2), b=refuse(2))
    sent = len(transport.sent(SEND))
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE, ordering_key="N14228")
    assert len(transport.sent(SEND)) == sent + 1
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)


async def test_a_key_whose_broker_is_away_is_refused_and_never_sent_to_another_broker(
    producer, brokers, cluster, transport
):
    brokers()
    owners = {key: (await producer.queue_for_key("T", key)).broker_name for key in ("k1", "k2", "k3", "k4", "k5")}
    assert set(owners.values()) == {"a", "b"}
    cluster.topic("T", "a")
    del cluster.registered["b"]
    await asyncio.sleep(31)
    for key, owner in owners.items():
        if owner == "a":
            assert (await producer.send(MESSAGE, ordering_key=key)).queue.broker_name == "a"
            continue
        with pytest.raises(SendError) as caught:
            await producer.send(MESSAGE, ordering_key=key)
        assert isinstance(caught.value.cause, BrokerUnavailableError)
        assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)
    cluster.topic("T", "a", "b")
    await asyncio.sleep(2)
    for key, owner in owners.items():
        assert (await producer.send(MESSAGE, ordering_key=key)).queue.broker_name == owner


async def test_a_key_of_a_declared_broker_set_without_a_route_waits_for_it(producer, brokers, cluster, engine):
    brokers()
    cluster.topic("T", "a")
    del cluster.registered["b"]
    engine.set_desired_queues("T", {"a": 2, "b": 2})
    outcomes = set()
    for number in range(20):
        try:
            outcomes.add((await producer.send(MESSAGE, ordering_key=f"k{number}")).queue.broker_name)
        except SendError as error:
            outcomes.add(str(error.cause))
    assert outcomes == {"a", "broker b: no master of it is registered just now"}


async def test_an_explicit_queue_is_used_and_nothing_else(producer, brokers, transport):
    brokers(b=refuse(2))
    queue = MessageQueue("T", "b", 1)
    with pytest.raises(SendError):
        await producer.send(MESSAGE, queue=queue)
    assert [address for address, request in transport.requests if request.code == SEND] == ["b:10911"]
    assert (await producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))).queue == MessageQueue("T", "a", 0)


async def test_a_queue_on_a_broker_that_never_held_the_topic_is_an_argument_error(producer, brokers):
    brokers()
    with pytest.raises(InvalidArgumentError, match="'zzz'"):
        await producer.send(MESSAGE, queue=MessageQueue("T", "zzz", 0))
    with pytest.raises(InvalidArgumentError, match="queue"):
        await producer.send(MESSAGE, queue=MessageQueue("U", "a", 0))
    with pytest.raises(InvalidArgumentError, match="excludes"):
        await producer.send(MESSAGE, queue=MessageQueue("T", "a", 0), ordering_key="k")


async def test_selectors_choose_among_the_queues_that_can_be_written(producer, brokers):
    brokers()
    assert (await producer.send(MESSAGE, selector=at_random(lambda bound: bound - 1))).queue == MessageQueue(
        "T", "b", 1
    )
    first = await producer.send(MESSAGE, selector=by_hash("k"))
    assert (await producer.send(MESSAGE, selector=by_hash("k"))).queue == first.queue


async def test_a_send_to_an_unknown_topic_is_certainly_not_stored(producer, cluster):
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert isinstance(caught.value.cause, NoRouteError)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, False)


async def test_without_any_name_server_nothing_is_stored_until_one_is_back(producer, transport):
    transport.down("ns:1")
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert isinstance(caught.value.cause, ConnectionFailedError)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)


async def test_a_topic_deleted_everywhere_is_found_out_by_the_first_refusal(producer, brokers, cluster):
    brokers()
    await producer.send(MESSAGE)
    brokers(a=refuse(17), b=refuse(17))
    cluster.routes.clear()
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert isinstance(caught.value.cause, NoRouteError)
    assert caught.value.outcome is Outcome.NOT_STORED


async def test_a_master_that_moved_is_found_by_a_newer_route(producer, brokers, cluster, transport):
    cluster.topic("T", "a")
    transport.at("a:10911", {SEND: refuse(14, "I am a slave")})
    transport.at("new:1", {SEND: store})
    await producer.queue_for_key("T", "k")
    cluster.routes["T"] = TopicRoute((QueueData("a", 2, 2, 6),), (BrokerData("C", "a", {0: "new:1"}),))
    assert (await producer.send(MESSAGE)).outcome is Outcome.STORED
    assert [address for address, request in transport.requests if request.code == SEND] == ["a:10911", "new:1"]


@pytest.mark.parametrize(("perm", "retryable"), [(4, False), (6, True)])
async def test_a_topic_without_writable_queues_has_a_reason(producer, cluster, perm, retryable):
    cluster.topic("T", "a", perm=perm)
    if perm == 6:
        cluster.routes["T"] = TopicRoute((QueueData("a", 2, 2, 6),), (BrokerData("C", "a", {1: "slave:1"}),))
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert isinstance(caught.value.cause, NotWritableError)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, retryable)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message("T", b""), "body"),
        (Message("T", b"x" * 4_194_305), "body"),
        (Message("OFFSET_MOVED_EVENT", b"x"), "topic"),
        (Message("no such name", b"x"), "topic"),
        (Message("T", b"x", {"a": "\x01"}), "a"),
        (Message("T", b"x", flag=2**31), "flag: 2147483648 is not a 32-bit number"),
        (Message("T", b"x", flag=-(2**31) - 1), "flag"),
    ],
)
async def test_invalid_messages_are_refused_before_any_request(producer, brokers, transport, message, field):
    brokers()
    with pytest.raises(InvalidArgumentError, match=field):
        await producer.send(message)
    assert transport.sent(SEND) == []


def test_a_group_needs_a_name():
    with pytest.raises(InvalidArgumentError, match="group"):
        Producer(None, "no group")


async def test_large_bodies_are_compressed_and_flagged(producer, brokers, transport):
    brokers()
    body = b"ab" * 4_000
    await producer.send(Message("T", body))
    (request,) = transport.sent(SEND)
    sys_flag = int(request.ext_fields["f"])
    assert sys_flag == 0x301
    assert zlib.decompress(request.body_bytes) == decompress(request.body_bytes, sys_flag) == body


@pytest.mark.parametrize("kind", list(Compression))
async def test_every_compression_can_be_chosen(start_engine, brokers, transport, kind):
    brokers()
    producer = Producer(await start_engine(compression=kind), "pg")
    await producer.send(Message("T", b"ab" * 4_000))
    (request,) = transport.sent(SEND)
    assert decompress(request.body_bytes, int(request.ext_fields["f"])) == b"ab" * 4_000


async def test_small_or_incompressible_bodies_are_sent_uncompressed(start_engine, engine, brokers, transport):
    brokers()
    await Producer(engine, "pg").send(Message("T", engine.rng.bytes(5_000)))
    await Producer(engine, "pg").send(Message("T", b"a" * 4_095))
    await Producer(await start_engine(compress_over_bytes=0), "pg").send(Message("T", b"a" * 5_000))
    assert [request.ext_fields["f"] for request in transport.sent(SEND)] == ["0"] * 3


async def test_one_way_sends_do_not_wait(producer, brokers, transport):
    brokers()
    message_id = await producer.send_one_way(MESSAGE)
    (request,) = transport.sent(SEND)
    assert request.is_one_way
    assert decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"] == message_id


async def test_a_one_way_send_that_was_not_sent_fails(producer, brokers, transport):
    brokers()
    await producer.send(MESSAGE)
    transport.down("a:10911")
    transport.down("b:10911")
    with pytest.raises(SendError) as caught:
        await producer.send_one_way(MESSAGE)
    assert caught.value.outcome is Outcome.NOT_STORED
    with pytest.raises(SendError):
        await producer.send_one_way(Message("Nowhere", b"x"))


async def test_an_async_send_calls_back(producer, brokers):
    brokers()
    called = asyncio.get_running_loop().create_future()
    producer.send_async(MESSAGE, lambda result, error: called.set_result((result, error)))
    result, error = await called
    assert result.outcome is Outcome.STORED
    assert error is None


async def test_an_async_send_is_retried_after_a_timeout_but_not_after_a_refusal(producer, brokers, transport):
    called: list = []
    brokers(a=refuse(2), b=refuse(2))
    producer.send_async(MESSAGE, lambda result, error: called.append(error))
    await asyncio.sleep(1)
    assert [error.cause.code for error in called] == [2]
    assert len(transport.sent(SEND)) == 1
    script = in_turn(fail(wire.ConnectError("a", "refused")), store)
    brokers(a=script, b=script)
    producer.send_async(MESSAGE, lambda result, error: called.append(result))
    await asyncio.sleep(1)
    assert called[-1].outcome is Outcome.STORED


async def test_an_async_send_fails_at_once_if_possible_and_answers_later(producer, brokers, engine):
    called: list = []
    with pytest.raises(InvalidArgumentError):
        producer.send_async(Message("T", b""), lambda result, error: called.append(error))
    with pytest.raises(InvalidArgumentError, match="flag"):
        producer.send_async(Message("T", b"x", flag=2**31), lambda result, error: called.append(error))
    producer.send_async(Message("T", b"x", {"a": ""}), lambda result, error: called.append(error))
    producer.send_async(Message("Nowhere", b"x"), lambda result, error: called.append(error))
    await asyncio.sleep(1)
    assert sorted(type(error.cause).__name__ for error in called) == ["InvalidArgumentError", "NoRouteError"]
    await engine.stop()
    with pytest.raises(NotStartedError):
        producer.send_async(MESSAGE, lambda result, error: None)


async def test_a_batch_is_one_request_with_one_result_for_each_message(producer, brokers, transport):
    brokers()
    items = [Message("T", b"%d" % number) for number in range(5)]
    results = await producer.send_batch("T", items)
    (request,) = transport.sent(BATCH)
    sent = [decode_properties(item.properties)["UNIQ_KEY"] for item in decode_batch(request.body_bytes)]
    assert [result.message_id for result in results] == sent
    assert [result.queue_offset for result in results] == [7, 8, 9, 10, 11]
    assert len({result.queue for result in results}) == 1


async def test_a_batch_is_retried_elsewhere_unless_its_queue_was_chosen(producer, brokers, transport):
    brokers(a=refuse(2), b=refuse(2))
    with pytest.raises(SendError):
        await producer.send_batch("T", [MESSAGE])
    assert len(transport.sent(BATCH)) == 3
    with pytest.raises(SendError):
        await producer.send_batch("T", [MESSAGE], queue=MessageQueue("T", "b", 0))
    assert len(transport.sent(BATCH)) == 4
    with pytest.raises(InvalidArgumentError):
        await producer.send_batch("SCHEDULE_TOPIC_XXXX", [Message("SCHEDULE_TOPIC_XXXX", b"x")])


async def test_least_latency_avoids_a_failing_broker(start_engine, brokers, transport):
    brokers(b=fail(wire.ConnectError("b", "refused")))
    producer = Producer(await start_engine(latency_fault_enable=True), "pg")
    for _ in range(20):
        assert (await producer.send(MESSAGE)).queue.broker_name == "a"
    assert len(transport.sent(SEND, "b:10911")) <= 1
    brokers()
    await asyncio.sleep(11)
    used = {(await producer.send(MESSAGE)).queue.broker_name for _ in range(8)}
    assert used == {"a", "b"}


async def test_a_slow_route_counts_against_the_budget(producer, transport):
    transport.at("ns:1", {RequestCode.GET_ROUTEINFO_BY_TOPIC: silence})
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE, timeout_ms=100)
    assert isinstance(caught.value.cause, RequestTimeoutError)
    assert caught.value.outcome is Outcome.NOT_STORED


async def test_keys_of_topics_without_queues_have_no_queue(producer, cluster):
    cluster.topic("T", "a", queues=0)
    with pytest.raises(SendError) as caught:
        await producer.queue_for_key("T", "k")
    assert isinstance(caught.value.cause, NotWritableError)
    with pytest.raises(SendError):
        await producer.queue_for_key("Nowhere", "k")


async def test_a_send_refused_by_back_pressure_is_not_stored(producer, brokers):
    brokers(a=fail(wire.BackpressureError("a", "full")), b=fail(wire.BackpressureError("b", "full")))
    with pytest.raises(SendError) as caught:
        await producer.send(MESSAGE)
    assert isinstance(caught.value.cause, BackpressureError)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)


async def test_service_not_available_refreshes_the_route_for_later_sends(producer, brokers, transport):
    brokers(a=refuse(ResponseCode.SERVICE_NOT_AVAILABLE), b=refuse(ResponseCode.SERVICE_NOT_AVAILABLE))
    queue = await producer.queue_for_key("T", "k")
    await asyncio.sleep(2)
    asked = len(transport.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    with pytest.raises(SendError):
        await producer.send(MESSAGE, queue=queue)
    await asyncio.sleep(0.1)
    assert len(transport.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == asked + 1
