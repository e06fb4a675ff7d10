"""Offsets set by an operator: they stay, are refused while members are connected, and are in the audit trail."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantry.client import LocalOffsets, PushConsumer
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.http import AsyncGantryClient, StreamClient
from gantry.model.group import MessageModel, parse_tag_expression
from gantry.model.message import MessageQueue, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.stack import Stack

TOPIC = "RESET"


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as http:
        assert http.put(f"/v1/topics/{TOPIC}", json={"brokers": ["broker-a"]}).status_code == 201
        for _ in range(20):
            message = {"body": "m", "queue": {"broker": "broker-a", "id": 0}}
            assert http.post(f"/v1/topics/{TOPIC}/messages", json=message).status_code == 201
    return stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
async def engine(stack: Stack) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    yield engine
    await engine.stop()


def reset(http: httpx.Client, group: str, offset: str, queue_id: int = 0) -> httpx.Response:
    place = {"topic": TOPIC, "broker": "broker-a", "queue_id": queue_id, "offset": offset}
    return http.put(f"/v1/groups/{group}/offsets", json={"offsets": [place]})


def committed(http: httpx.Client, group: str) -> Any:
    items = http.get(f"/v1/groups/{group}/offsets", params={"topic": TOPIC}).json()["items"]
    return next(item["committed_offset"] for item in items if item["queue_id"] == 0)


def made(http: httpx.Client, group: str) -> str:
    assert http.put(f"/v1/groups/{group}", json={}).status_code == 201
    return group


async def test_a_connected_remoting_member_prevents_a_reset(http: httpx.Client, engine: ClientEngine) -> None:
    group = made(http, "BY_REMOTING")
    assert reset(http, group, "5").json()["committed"] == 1

    async def changed(assigned: Any, revoked: Any) -> None:
        pass

    data = parse_tag_expression(TOPIC, "*", 1)
    member = GroupMember(engine, group, [data], client_id="10.0.0.1@reset", on_change=changed)
    await member.start()
    refused = await asyncio.to_thread(reset, http, group, "1")
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (409, "members-connected")
    assert "10.0.0.1@reset" in refused.json()["detail"]
    assert committed(http, group) == "5"
    await member.close()
    assert (await asyncio.to_thread(reset, http, group, "1")).json()["committed"] == 1
    assert committed(http, group) == "1"


async def test_a_reset_is_not_undone_by_the_next_ack_of_a_stream(http: httpx.Client, stack: Stack) -> None:
    """The reset was once answered 200, and the stream's next acknowledgement committed over it."""
    group = made(http, "BY_STREAM")
    async with (
        AsyncGantryClient.from_stack(stack.directory) as client,
        StreamClient.from_stack(stack.directory) as stream,
    ):
        subscription = await stream.subscribe(group, TOPIC, start="first", batch=5)
        batch = await subscription.next(timeout_ms=30_000)
        assert batch is not None
        refused = await asyncio.to_thread(reset, http, group, "15")
        assert refused.status_code == 409
        [member] = await client.list_clients(group)
        assert member.client_id in refused.json()["detail"]
        await subscription.ack(batch)
        await subscription.unsubscribe()
        async with asyncio.timeout(30):
            while True:
                if not await client.list_clients(group):
                    break
                await asyncio.sleep(0.05)
    assert reset(http, group, "15").json()["committed"] == 1
    assert committed(http, group) == "15"


async def test_members_that_differ_are_named_over_http(http: httpx.Client, engine: ClientEngine) -> None:
    group = made(http, "DIFFERING")

    async def changed(assigned: Any, revoked: Any) -> None:
        pass

    async def ask() -> Any:
        return (await asyncio.to_thread(http.get, f"/v1/groups/{group}/consistency")).json()

    assert await ask() == {"consistent": True, "since": None, "differences": [], "missing": []}
    members = [
        GroupMember(engine, group, [parse_tag_expression(TOPIC, tags, 1)], client_id=client_id, on_change=changed)
        for client_id, tags in (("10.0.0.1@alike", "A||B"), ("10.0.0.1@alike2", "B||A"), ("10.0.0.1@other", "A"))
    ]
    for member in members:
        await member.start()
    found = await ask()
    (difference,) = found["differences"]
    assert (found["consistent"], difference["kind"], difference["topic"]) == (False, "filters", TOPIC)
    sides = {side["value"]: side for side in difference["sides"]}
    assert set(sides["A || B"]["clients"]) == {"10.0.0.1@alike", "10.0.0.1@alike2"}
    assert (sides["A"]["clients"], sides["A"]["clients_count"]) == (["10.0.0.1@other"], 1)
    assert found["since"] >= sides["A || B"]["since"]
    await members[-1].close()
    assert (await ask())["consistent"] is True
    for member in members[:-1]:
        await member.close()


async def differs(http: httpx.Client, stack: Stack, group: str) -> tuple[Any, bool]:
    """Return the only difference of a group's members, or None, and whether the metrics of its broker name the group."""
    found = (await asyncio.to_thread(http.get, f"/v1/groups/{group}/consistency")).raise_for_status().json()
    assert found["consistent"] is not bool(found["differences"])
    # The metrics port is 7 above the port of the broker.
    host, _, port = stack.facts["brokers"][0]["address"].rpartition(":")
    async with httpx.AsyncClient(trust_env=False) as client:
        metrics = (await client.get(f"http://{host}:{int(port) + 7}/metrics")).raise_for_status().text
    lines = [line for line in metrics.splitlines() if line.startswith("gantry_broker_group_differs_since_seconds{")]
    (difference,) = found["differences"] or [None]
    return difference, any(f'consumer_group="{group}"' in line for line in lines)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


class Member:
    """A member with a listener that notes what it gets."""

    def __init__(self, engine: ClientEngine, group: str, name: str, **options: Any) -> None:
        self.seen: list[str] = []
        self.consumer = PushConsumer(engine, group, [TOPIC], self._listen, client_id=f"10.0.0.1@{name}", **options)

    async def _listen(self, message: StoredMessage) -> None:
        self.seen.append(message.body.decode())

    @property
    def queues(self) -> set[MessageQueue]:
        return {queue for queue in self.consumer.held if queue.topic == TOPIC}


async def test_members_with_different_models_are_named_and_those_that_agree_lose_nothing(
    http: httpx.Client, stack: Stack, engine: ClientEngine, tmp_path: Path
) -> None:
    group = made(http, "MIXED")
    offsets, model = LocalOffsets(str(tmp_path)), MessageModel.BROADCASTING
    one, two = Member(engine, group, "one"), Member(engine, group, "two")
    other = Member(engine, group, "all", message_model=model, local_offsets=offsets)

    async def send(kind: str) -> list[str]:
        bodies = [f"{kind}{number}" for number in range(40)]
        for body in bodies:
            answer = await asyncio.to_thread(http.post, f"/v1/topics/{TOPIC}/messages", json={"body": body})
            assert answer.status_code == 201
        return sorted(bodies)

    async with one.consumer, two.consumer:
        await until(lambda: bool(one.queues and two.queues and not one.queues & two.queues))
        queues = one.queues | two.queues
        assert await differs(http, stack, group) == (None, False)
        async with other.consumer:
            difference, is_named = await differs(http, stack, group)
            assert (difference["kind"], difference["topic"], is_named) == ("models", None, True)
            assert {side["value"]: set(side["clients"]) for side in difference["sides"]} == {
                "CLUSTERING": {"10.0.0.1@one", "10.0.0.1@two"},
                "BROADCASTING": {"10.0.0.1@all"},
            }
            wanted = await send("mixed")
            await until(lambda: len(one.seen) + len(two.seen) >= 40 and len(other.seen) >= 40)
            # The member in broadcasting mode gets no share, so each queue has a consumer and each message comes once.
            await asyncio.sleep(2)
            assert (sorted(one.seen + two.seen), sorted(other.seen)) == (wanted, wanted)
            assert one.queues | two.queues == queues
        assert await differs(http, stack, group) == (None, False)


def test_no_offset_changes_if_a_broker_can_not_list_connections(http: httpx.Client, stack: Stack) -> None:
    group = made(http, "SILENT")
    assert reset(http, group, "3").json()["committed"] == 1
    paused = stack.pid_of("broker-b")
    os.kill(paused, signal.SIGSTOP)
    try:
        assert reset(http, group, "1").status_code == 503
        assert committed(http, group) == "3"
    finally:
        os.kill(paused, signal.SIGCONT)
    assert reset(http, group, "1").json()["committed"] == 1


def test_offsets_that_are_set_are_in_the_audit_trail(http: httpx.Client) -> None:
    group = made(http, "AUDITED")
    for offset in ("7", "7", "2"):
        assert reset(http, group, offset).json()["committed"] == 1
    trail = http.get("/v1/audit", params={"kind": "group", "name": group}).json()["items"]
    changes = [entry for entry in trail if entry["action"] == "group.offsets"]
    place = {"topic": TOPIC, "broker": "broker-a", "queue_id": 0}
    assert [(entry["before"]["offsets"], entry["after"]["offsets"]) for entry in changes] == [
        ([{**place, "offset": "7"}], [{**place, "offset": "2"}]),
        ([{**place, "offset": None}], [{**place, "offset": "7"}]),
    ]
    assert {entry["actor"] for entry in changes} != {None}


def test_a_request_with_a_repeated_queue_is_refused(http: httpx.Client) -> None:
    """The result once depended on the order of the items."""
    group = made(http, "TWICE")
    place = {"topic": TOPIC, "broker": "broker-a", "queue_id": 0}
    offsets = [{**place, "offset": "1"}, {**place, "queue_id": 1, "offset": "0"}, {**place, "offset": "2"}]
    refused = http.put(f"/v1/groups/{group}/offsets", json={"offsets": offsets})
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (400, "duplicate")
    assert refused.json()["field"] == "/offsets/2"
    assert "/offsets/0" in refused.json()["detail"]
    assert committed(http, group) is None


def test_offsets_of_a_system_group_are_not_set(http: httpx.Client) -> None:
    """A broker stores its position in half messages as offsets of such a group."""
    refused = http.put(
        "/v1/groups/CID_RMQ_SYS_TRANS/offsets",
        json={"offsets": [{"topic": TOPIC, "broker": "broker-a", "queue_id": 0, "offset": "1"}]},
    )
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (403, "reserved-name")
