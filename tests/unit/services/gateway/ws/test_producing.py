"""Streams that answer questions about open transactions."""

import asyncio
from typing import Any

import pytest

from gantry.model.record import decode_record
from services.gateway.auth.keyring import KeyRecord, digest_of
from services.gateway.schemas.rights import Rights
from services.gateway.usecases.reading.messages import read_message
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.ws.effects import Produce
from services.gateway.ws.producers import ANSWER_TIMEOUT_S
from services.gateway.ws.producing import GROUPS_MAX
from tests.support.pulledrecords import record
from tests.unit.services.gateway.ws.peers import Peer, Service
from tests.unit.services.gateway.ws.streams import Stream


def check(transaction: str = "T1", *, group: str = "G", topic: str = "T") -> TransactionCheck:
    message = read_message(decode_record(record(0, b"body", topic=topic)), "broker-a")
    return TransactionCheck(transaction, group, message, 2)


async def producer(service: Service, *groups: str, **fields: Any) -> Peer:
    peer = await Peer(service, **fields).welcomed()
    peer.say(type="hello", producer_groups=list(groups or ("G",)))
    await asyncio.sleep(0.1)
    return peer


@pytest.mark.parametrize(("decision", "commits"), [("commit", True), ("rollback", False), ("unknown", None)])
async def test_the_producer_decides(decision: str, commits: bool | None) -> None:
    service = Service()
    peer = await producer(service)
    assert list(service.producers.groups()) == ["G"]
    asking = asyncio.ensure_future(service.producers.ask(check()))
    frame = await peer.frame()
    assert (frame["type"], frame["transaction"], frame["group"], frame["checks"]) == ("check", "T1", "G", 2)
    assert (frame["message"]["topic"], frame["message"]["body"]) == ("T", "body")
    peer.say(type="check_result", transaction="T1", decision=decision)
    assert await asking is commits
    await peer.hang_up()
    assert list(service.producers.groups()) == []


async def test_if_one_stream_does_not_know_or_ends_the_next_one_is_asked() -> None:
    service = Service()
    silent, ending, knowing = [await producer(service) for _ in range(3)]
    asking = asyncio.ensure_future(service.producers.ask(check()))
    await silent.frame()
    await asyncio.sleep(ANSWER_TIMEOUT_S)
    await ending.frame()
    await ending.hang_up()
    await knowing.frame()
    knowing.say(type="check_result", transaction="T1", decision="commit")
    assert await asking is True
    silent.say(type="check_result", transaction="T1", decision="rollback", id=1)
    late = await silent.frame()
    assert (late["id"], late["problem"]["status"]) == (1, 404)
    for peer in (silent, knowing):
        await peer.hang_up()


async def test_the_producers_of_a_group_take_turns() -> None:
    service = Service()
    peers = [await producer(service) for _ in range(2)]
    for peer in (*peers, peers[0]):
        asking = asyncio.ensure_future(service.producers.ask(check()))
        await peer.frame()
        peer.say(type="check_result", transaction="T1", decision="commit")
        assert await asking
    for peer in peers:
        await peer.hang_up()


async def test_without_a_producer_of_the_group_nobody_knows() -> None:
    service = Service()
    peer = await producer(service, "OTHER")
    assert await service.producers.ask(check()) is None
    await peer.hang_up()


async def test_a_key_that_may_not_publish_to_the_topic_is_not_asked() -> None:
    service = Service()
    service.keys.replace([KeyRecord("k", digest_of("narrow"), "narrow", Rights(publish=("OTHER",)))])
    peer = await producer(service, key="narrow")
    assert await service.producers.ask(check()) is None
    await peer.hang_up()


async def test_streams_that_cannot_be_asked_hide_no_other_stream() -> None:
    service = Service()
    narrow = KeyRecord("k", digest_of("narrow"), "narrow", Rights(publish=("OTHER",)))
    service.keys.replace([narrow, KeyRecord("w", digest_of("wide"), "wide", Rights(publish=("*",)))])
    peers = [await producer(service, key=key) for key in ("narrow",) * 3 + ("wide",)]
    asking = asyncio.ensure_future(service.producers.ask(check()))
    await asyncio.sleep(0.1)
    assert not asking.done()
    await peers[-1].frame()
    peers[-1].say(type="check_result", transaction="T1", decision="commit")
    assert await asking is True
    for peer in peers:
        await peer.hang_up()


def problem_of(frames: list[dict[str, Any]]) -> tuple[int, str]:
    (error,) = frames
    return error["problem"]["status"], error["problem"]["field"]


def test_wrong_groups_are_refused_by_name() -> None:
    many = [f"G{number}" for number in range(GROUPS_MAX + 1)]
    assert problem_of(Stream().say(type="hello", producer_groups=many)) == (413, "/producer_groups")
    assert problem_of(Stream().say(type="hello", producer_groups=["G", "a b"])) == (400, "/producer_groups/1")
    stream = Stream()
    assert stream.say(type="hello", producer_groups=["G"]) == []
    assert stream.effects == [Produce(frozenset({"G"}))]


def test_an_answer_without_a_question_is_refused() -> None:
    frame = {"type": "check_result", "transaction": "T1", "decision": "commit"}
    assert problem_of(Stream().say(**frame)) == (404, "/transaction")
