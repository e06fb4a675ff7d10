"""Promises of modes: the broker says which queues a client consumes, and whether it pulls or pops."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting.bodies import MessageRequestMode, TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RemotingError
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat

MODES_FILE = "/data/store/config/messageRequestMode.json"
# The file and the answer of Apache RocketMQ 5.3.3 for the same mode.
APACHE_FILE = (
    b'{\n\t"messageRequestModeMap":{\n\t\t"T":{\n\t\t\t"g":{\n\t\t\t\t"consumerGroup":"g",\n\t\t\t\t"mode":"POP",\n'
    b'\t\t\t\t"popShareQueueNum":2,\n\t\t\t\t"topic":"T"\n\t\t\t}\n\t\t}\n\t}\n}'
)
APACHE_ANSWER = (
    b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":2,"topic":"T"}}}}'
)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 4)
        yield unit


async def join(unit: BrokerUnit, *clients: str) -> None:
    for client in clients:
        answer = await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat(client, "g", "T"), connection=unit.connect())
        assert answer.code == ResponseCode.SUCCESS


async def set_mode(unit: BrokerUnit, mode: str = "POP", share: int = 0, topic: str = "T") -> RemotingCommand:
    body = MessageRequestMode(consumer_group="g", mode=mode, pop_share_queue_num=share, topic=topic).encode()
    return await unit.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)


async def query(unit: BrokerUnit, client: str = "a", **changes: Any) -> Any:
    asked = {
        "clientId": client, "consumerGroup": "g", "messageModel": "CLUSTERING", "strategyName": "AVG", "topic": "T",
        **changes,
    }  # fmt: skip
    answer = await unit.ask(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(asked).encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json.loads(answer.body_bytes).get("messageQueueAssignments")


async def assigned(unit: BrokerUnit, client: str = "a", **changes: Any) -> list[tuple[str, int]]:
    found = await query(unit, client, **changes)
    return [(item["mode"], item["messageQueue"]["queueId"]) for item in found]


async def test_without_a_mode_each_client_pulls_its_share(unit: BrokerUnit) -> None:
    await join(unit, "a", "b")
    assert await assigned(unit, "a") == [("PULL", 0), ("PULL", 1)]
    assert await assigned(unit, "b") == [("PULL", 2), ("PULL", 3)]
    assert await assigned(unit, "b", strategyName="AVG_BY_CIRCLE") == [("PULL", 1), ("PULL", 3)]
    assert await assigned(unit, "stranger") == []


async def test_clients_that_pop_get_all_queues_as_one(unit: BrokerUnit) -> None:
    await join(unit, "a", "b")
    assert (await set_mode(unit)).code == ResponseCode.SUCCESS
    assert await assigned(unit, "a") == await assigned(unit, "b") == [("POP", -1)]


async def test_clients_may_share_some_queues_only(unit: BrokerUnit) -> None:
    await join(unit, "a", "b", "c", "d")
    await set_mode(unit, share=1)
    assert await assigned(unit, "a") == [("POP", 0), ("POP", 1)]
    assert await assigned(unit, "d") == [("POP", 3), ("POP", 0)]


async def test_every_client_gets_a_queue_even_if_there_are_too_few(unit: BrokerUnit) -> None:
    await join(unit, *"abcdef")
    await set_mode(unit, share=1)
    assert await assigned(unit, "f") == [("POP", 1)]


async def test_a_broadcasting_client_gets_all_queues(unit: BrokerUnit) -> None:
    assert len(await query(unit, messageModel="BROADCASTING")) == 4


@pytest.mark.parametrize("changes", [{"topic": "None"}, {"consumerGroup": "none"}, {"strategyName": "MINE"}])
async def test_a_client_keeps_its_queues_if_the_broker_can_not_tell(unit: BrokerUnit, changes: dict[str, str]) -> None:
    await join(unit, "a")
    assert await query(unit, **changes) is None


async def test_queues_of_other_brokers_are_assigned_too() -> None:
    names = FakeNamesrv()
    async with BrokerUnit(client=names, namesrv_addr="10.0.0.1:9876") as unit:
        await unit.make_topic("T", 4)
        await join(unit, "a")
        await set_mode(unit)
        found = await query(unit)
        queues = [
            MessageQueue("T", item["messageQueue"]["brokerName"], item["messageQueue"]["queueId"]) for item in found
        ]
        assert queues == [MessageQueue("T", "broker-a", -1), MessageQueue("T", "broker-b", -1)]
        names.is_down = True
        assert len(await query(unit)) == 2, "the route is known"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
        ({"share": -2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "a b"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_bad_mode_is_refused(unit: BrokerUnit, changes: dict[str, Any], code: int) -> None:
    assert (await set_mode(unit, **changes)).code == code


async def test_modes_are_kept_as_apaches_broker_keeps_them(unit: BrokerUnit) -> None:
    await set_mode(unit, share=2)
    assert unit.files.read(MODES_FILE) == APACHE_FILE
    assert (await unit.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body == APACHE_ANSWER


async def test_modes_survive_a_restart() -> None:
    async with BrokerUnit() as unit:
        files = unit.files
    files.write(MODES_FILE, APACHE_FILE)
    async with BrokerUnit(files=files) as unit:
        assert (await unit.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body == APACHE_ANSWER


class FakeNamesrv:
    """A name server that knows the topic on two brokers."""

    def __init__(self) -> None:
        self.is_down = False

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        if self.is_down:
            raise RemotingError(f"{address}: nobody there")
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return RemotingCommand.response_to(command, ResponseCode.SUCCESS)
        queues = tuple(QueueData(name, 2, 2, 6, 0) for name in ("broker-a", "broker-b"))
        brokers = tuple(BrokerData("C", name, {0: "10.0.0.5:1"}) for name in ("broker-a", "broker-b"))
        body = TopicRouteData(TopicRoute(queues, brokers)).encode()
        return RemotingCommand.response_to(command, ResponseCode.SUCCESS, body=body)

    def connected(self, address: str) -> None:
        return None
