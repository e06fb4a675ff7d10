"""Live tails and checks of transactions by the stream client, against a scripted gateway."""

import asyncio
from typing import Any

import pytest

from gantry.http import Check, GantryProblem, StreamClient, Tail
from gantry.http.streamframes import CODINGS
from gantry.http.tail import CREDIT_MESSAGES
from gantry.runtime.rng import Rng
from tests.unit.gantry.http.messages import message
from tests.unit.gantry.http.test_stream import PROBLEM, FakeSocket, Gateway, batch, state

DEADLINE_S = 30.0


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - on virtual time.
            await asyncio.sleep(0.01)


async def tailing(client: StreamClient) -> Tail:
    return await client.tail("T", expression={"sql": "a > 1"}, start="first", rate_per_s=50)


def credits_of(socket: FakeSocket) -> list[int]:
    return [frame["messages"] for frame in socket.received if frame["type"] == "credit"]


async def test_a_tail_has_no_group_and_gives_credit_back_as_it_is_read() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        tail = await tailing(client)
        socket = gateway.sockets[0]
        [request] = [frame for frame in socket.received if frame["type"] == "subscribe"]
        assert (request["mode"], request["topic"], request["filter"]) == ("tail", "T", {"sql": "a > 1"})
        assert (request["from"], request["rate_per_s"], "group" in request) == ("first", 50, False)
        first = await tail.next(timeout_ms=1_000)
        assert first is not None
        for _ in range(2):
            socket.push(batch(tail.name or "", *range(CREDIT_MESSAGES // 2)))
            assert await tail.next(timeout_ms=1_000) is not None
        await until(lambda: credits_of(socket) == [CREDIT_MESSAGES // 2 + 1, CREDIT_MESSAGES // 2])
        await tail.ack(first, wait=True)
        with pytest.raises(TypeError):
            await tail.nack(first)
        assert not [frame for frame in socket.received if frame["type"] == "ack"]


async def test_skipped_messages_are_counted_over_reconnects_and_a_tail_goes_on_with_new_messages() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        tail = await tailing(client)
        gateway.sockets[0].push(state(tail.name or "", reason="skipped", skipped=30))
        await until(lambda: tail.skipped == 30)
        gateway.sockets[0].drop(1006)
        await until(lambda: len(gateway.sockets) == 2 and tail.is_open)
        [request] = [frame for frame in gateway.sockets[1].received if frame["type"] == "subscribe"]
        assert request["from"] == "last"
        gateway.sockets[1].push(state(tail.name or "", reason="skipped", skipped=5))
        await until(lambda: tail.skipped == 35)
        assert tail.reconnects_count == 1


async def test_a_deleted_topic_ends_the_tail_with_the_problem() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        tail = await tailing(client)
        assert await tail.next(timeout_ms=1_000) is not None
        name = tail.name or ""
        gateway.sockets[0].push(
            {"type": "error", "subscription": name, "problem": {**PROBLEM, "status": 404}},
            state(name, reason="unsubscribed"),
        )
        with pytest.raises(GantryProblem, match="404"):
            await anext(tail)


@pytest.mark.parametrize("coding", ["msgpack", "json"])
async def test_checks_are_answered_for_the_producer_groups(coding: str) -> None:
    gateway = Gateway()
    asked: list[Check] = []

    async def decide(check: Check) -> Any:
        asked.append(check)
        if check.transaction == "bad":
            raise RuntimeError("the database is away")
        return "maybe" if check.transaction == "odd" else "commit"

    client = gateway.client(producer_groups=["ORDERS_TX"], on_check=decide, coding=coding)
    async with client:
        assert gateway.hello == {"producer_groups": ["ORDERS_TX"]}
        socket = gateway.sockets[0]
        for transaction in ("good", "bad", "odd"):
            half = message(0, binary=coding == "msgpack")
            socket.push(
                {"type": "check", "transaction": transaction, "group": "ORDERS_TX", "checks": 2, "message": half}
            )
        await until(lambda: sum(frame["type"] == "check_result" for frame in socket.received) == 3)
        decisions = {frame["transaction"]: frame["decision"] for frame in socket.received}
        assert decisions == {"good": "commit", "bad": "unknown", "odd": "unknown"}
        assert (asked[0].message.body, asked[0].checks) == (b"\x00body", 2)


def test_producer_groups_need_a_function_that_decides() -> None:
    with pytest.raises(ValueError, match="both or neither"):
        StreamClient("http://gw", "key", producer_groups=["G"], rng=Rng(1))
    assert set(CODINGS) == {"msgpack", "json"}
