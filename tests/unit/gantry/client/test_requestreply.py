"""Requests wait for their replies, whatever comes first; a reply that is too late is refused."""

import asyncio
from typing import Any

import pytest

from gantry.client import replies
from gantry.client.engine import ClientEngine
from gantry.client.errors import (
    BackpressureError,
    InvalidArgumentError,
    NoRouteError,
    Outcome,
    RequestTimeoutError,
    SendError,
)
from gantry.client.producer import Producer
from gantry.client.requestreply import Requester, reply_to
from gantry.model.address import Address
from gantry.model.compression import Compression, compress
from gantry.model.message import CrcState, Message, StoredMessage, decode_properties, encode_properties
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import PushReplyHeader
from tests.support.scriptedpeer import Script, ScriptedCluster, ScriptedOutcome, ScriptedTransport, ok, refuse

SEND, PUSH = RequestCode.SEND_MESSAGE_V2, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
QUESTION = Message("T", b"who?", {"TAGS": "A"})


def push(properties: dict[str, str], body: bytes = b"me", *, sys_flag: int = 0) -> RemotingCommand:
    header = PushReplyHeader(
        producer_group="pg", topic="C_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=sys_flag, born_timestamp=5, flag=7, born_host="10.0.0.9:5", store_host="10.0.0.5:10911",
        store_timestamp=6, properties=encode_properties(properties).decode(),
    )  # fmt: skip
    return RemotingCommand.request(PUSH, header, body=body)


class World:
    """Two brokers, of which one has the topic; both have the topic of replies."""

    def __init__(self, engine: ClientEngine, cluster: ScriptedCluster, transport: ScriptedTransport) -> None:
        cluster.topic("T", "a")
        cluster.topic("C_REPLY_TOPIC", "a", "b", queues=1)
        self.transport = transport
        self.producer = Producer(engine, "pg")
        self.requester = Requester(engine, self.producer)

    def on_send(self, script: Script) -> None:
        self.transport.at("a:10911", {SEND: script})

    def asked(self) -> dict[str, str]:
        """Return the properties of the last request that was sent."""
        return decode_properties(self.transport.sent(SEND)[-1].ext_fields["i"].encode())


@pytest.fixture
async def world(engine: ClientEngine, cluster: ScriptedCluster, transport: ScriptedTransport) -> World:
    world = World(engine, cluster, transport)
    await world.producer.start()
    world.on_send(stored)
    return world


def stored(request: RemotingCommand) -> ScriptedOutcome:
    return ok(request, ext={"msgId": "0" * 32, "queueId": request.ext_fields["e"], "queueOffset": "7"})


async def test_the_reply_after_the_send_ends_the_request(world: World, engine: ClientEngine) -> None:
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=3_000))
    await asyncio.sleep(0.5)
    asked = world.asked()
    assert (asked["TAGS"], asked["TTL"], asked["REPLY_TO_CLIENT"]) == ("A", "3000", engine.client_id)
    assert len(asked["CORRELATION_ID"]) == 36
    assert not asking.done()
    answer = world.transport.push(push({"CORRELATION_ID": asked["CORRELATION_ID"], "X": "y"}))
    assert answer.code == ResponseCode.SUCCESS
    reply = await asking
    assert (reply.inflated_body(), reply.properties["X"], reply.flag) == (b"me", "y", 7)
    assert (reply.born_at_ms, reply.stored_at_ms, reply.born_host) == (5, 6, "10.0.0.9:5")


async def test_a_reply_before_the_answer_to_the_send_ends_the_request_too(world: World) -> None:
    """RocketMQ 5.3.3 fails such a request at once."""

    def push_first(request: RemotingCommand) -> ScriptedOutcome:
        properties = decode_properties(request.ext_fields["i"].encode())
        world.transport.push(push({"CORRELATION_ID": properties["CORRELATION_ID"]}))
        return None

    world.on_send(push_first)
    reply = await world.requester.request(QUESTION, timeout_ms=3_000)
    assert reply.body == b"me"


async def test_all_brokers_of_the_cluster_know_the_client_before_the_request(world: World) -> None:
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=1_000))
    await asyncio.sleep(0.5)
    codes = [(address, request.code) for address, request in world.transport.requests]
    for address in ("a:10911", "b:10911"):
        assert codes.index((address, RequestCode.HEART_BEAT)) < codes.index(("a:10911", SEND))
    beat = HeartbeatData.decode(world.transport.sent(RequestCode.HEART_BEAT, "b:10911")[0].body_bytes)
    assert "pg" in beat.producer_groups
    beats = len(world.transport.sent(RequestCode.HEART_BEAT))
    with pytest.raises(RequestTimeoutError):
        await asking
    with pytest.raises(RequestTimeoutError):
        await world.requester.request(QUESTION, timeout_ms=1_000)
    assert len(world.transport.sent(RequestCode.HEART_BEAT)) == beats, "later requests need none"


async def test_without_a_reply_the_request_ends_in_time_and_a_late_reply_is_refused(world: World) -> None:
    with pytest.raises(RequestTimeoutError, match="topic T: no reply within 1000 ms"):
        await world.requester.request(QUESTION, timeout_ms=1_000)
    late = world.transport.push(push({"CORRELATION_ID": world.asked()["CORRELATION_ID"]}))
    assert (late.code, "no request waits" in late.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert world.transport.push(push({"A": "b"})).code == ResponseCode.SYSTEM_ERROR


async def test_a_second_reply_changes_nothing(world: World) -> None:
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=3_000))
    await asyncio.sleep(0.5)
    properties = {"CORRELATION_ID": world.asked()["CORRELATION_ID"]}
    answers = [world.transport.push(push(properties, body)).code for body in (b"first", b"second")]
    assert (answers, (await asking).body) == ([0, 0], b"first")


async def test_a_request_that_is_not_stored_fails_at_once(world: World) -> None:
    world.on_send(refuse(ResponseCode.MESSAGE_ILLEGAL))
    with pytest.raises(SendError) as caught:
        await world.requester.request(QUESTION, timeout_ms=3_000)
    assert caught.value.outcome is Outcome.NOT_STORED


@pytest.mark.parametrize("has_reply", [True, False])
async def test_a_request_that_may_be_stored_waits_for_the_reply(world: World, has_reply: bool) -> None:
    world.on_send(refuse(ResponseCode.SYSTEM_ERROR))
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=5_000))
    await asyncio.sleep(4)
    assert not asking.done()
    if has_reply:
        world.transport.push(push({"CORRELATION_ID": world.asked()["CORRELATION_ID"]}))
        assert (await asking).body == b"me"
        return
    with pytest.raises(SendError) as caught:
        await asking
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_bad_requests_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_ms"):
        await world.requester.request(QUESTION, timeout_ms=0)
    with pytest.raises(NoRouteError):
        await world.requester.request(Message("Nowhere", b"x"), timeout_ms=1_000)
    monkeypatch.setattr(replies, "WAITING_MAX", 0)
    with pytest.raises(BackpressureError):
        await world.requester.request(QUESTION, timeout_ms=1_000)
    assert world.transport.sent(SEND) == []


async def test_a_cancelled_request_waits_no_longer(world: World) -> None:
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=3_000))
    await asyncio.sleep(0.5)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert world.transport.push(push({"CORRELATION_ID": world.asked()["CORRELATION_ID"]})).code != 0


async def test_a_compressed_reply_is_inflated(world: World) -> None:
    asking = asyncio.ensure_future(world.requester.request(QUESTION, timeout_ms=3_000))
    await asyncio.sleep(0.5)
    body = compress(b"me" * 5_000, Compression.ZLIB, 5)
    properties = {"CORRELATION_ID": world.asked()["CORRELATION_ID"]}
    world.transport.push(push(properties, body, sys_flag=Compression.ZLIB.sys_flag))
    assert (await asking).inflated_body() == b"me" * 5_000


def message(**properties: str) -> StoredMessage:
    host = Address("10.0.0.5", 10911)
    return StoredMessage(
        "T", 0, 3, 100, 90, 0, 0, 0, 1, host, 2, host, 0, 0, b"who?", properties, 1, CrcState.OK
    )  # fmt: skip


REQUEST: dict[str, Any] = {"CLUSTER": "C", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker@1", "TTL": "3000"}


async def test_a_reply_goes_to_the_topic_of_replies_with_the_code_of_replies(
    world: World, transport: ScriptedTransport
) -> None:
    for address in ("a:10911", "b:10911"):
        transport.at(address, {RequestCode.SEND_REPLY_MESSAGE_V2: stored})
    reply = reply_to(message(**REQUEST, KEYS="k"), b"me", {"X": "y", "CORRELATION_ID": "other"})
    result = await world.producer.send(reply)
    (request,) = transport.sent(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert (request.ext_fields["b"], result.queue.topic) == ("C_REPLY_TOPIC", "C_REPLY_TOPIC")
    assert decode_properties(request.ext_fields["i"].encode()) == {
        "X": "y", "MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker@1", "TTL": "3000",
        "UNIQ_KEY": result.message_id,
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_a_message_that_is_no_request_has_no_reply(missing: str) -> None:
    properties = {name: value for name, value in REQUEST.items() if name != missing}
    with pytest.raises(InvalidArgumentError, match=f"has no property {missing}"):
        reply_to(message(**properties), b"me")
