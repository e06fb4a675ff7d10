"""The owners of queues: only what brokers and clients report, no guesses."""

from typing import Any

import pytest

from gantry.client.engine import ClientEngine
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ClientConnection, ConsumerConnection
from gantry.remoting.bodies.connections import ConsumerRunningInfo, ProcessQueueInfo
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers import owners
from spark.datasource.brokers.owners import GroupOwners, ask_owners, owners_of_queue, owners_of_topic
from tests.support.scriptedpeer import ScriptedCluster, ok, refuse
from tests.support.surveyed import SurveyedBroker

CLIENTS = {"c1": "10.0.0.1:4711", "c2": "/10.0.0.2:4712"}
QUEUES = {"c1": {("a", 0): False, ("b", 0): False}, "c2": {("a", 1): False, ("a", 0): True}}


def connected(*clients: str) -> ConsumerConnection:
    return ConsumerConnection(tuple(ClientConnection(client_addr=CLIENTS[one], client_id=one) for one in clients))


def info(request: Any) -> Any:
    """Answer request 307 as the client does: its queues, and its dropped ones."""
    own = QUEUES[request.ext_fields["clientId"]]
    queues = {MessageQueue("T", *place): ProcessQueueInfo(droped=dropped) for place, dropped in own.items()}
    return ok(request, body=ConsumerRunningInfo(queues=queues).encode())


@pytest.fixture
def brokers(cluster: ScriptedCluster) -> list[SurveyedBroker]:
    made = [SurveyedBroker(cluster, name, {"T": 2}) for name in ("a", "b")]
    for broker in made:
        broker.connections["g"] = connected("c1", "c2")
        broker.does({RequestCode.GET_CONSUMER_RUNNING_INFO: info})
    return made


async def found(engine: ClientEngine) -> GroupOwners:
    return (await ask_owners(engine, ["g"]))["g"]


def shown(rows: list[dict[str, Any]] | None) -> list[tuple[str, str, int | None]] | None:
    return None if rows is None else [(row["client_id"], row["host"], row["queues"]) for row in rows]


async def test_clients_report_their_queues(engine: ClientEngine, brokers: list[SurveyedBroker]) -> None:
    group = await found(engine)
    assert shown(owners_of_topic(group, "T")) == [("c1", "10.0.0.1", 2), ("c2", "10.0.0.2", 1)]
    assert shown(owners_of_topic(group, "U")) == [("c1", "10.0.0.1", 0), ("c2", "10.0.0.2", 0)]
    # c1 owns the queue that c2 has released.
    assert shown(owners_of_queue(group, "T", "a", 0)) == [("c1", "10.0.0.1", 1)]
    assert shown(owners_of_queue(group, "T", "a", 1)) == [("c2", "10.0.0.2", 1)]
    assert owners_of_queue(group, "T", "b", 1) == []


async def test_a_silent_client_has_unknown_queues(
    engine: ClientEngine, brokers: list[SurveyedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "ASK_TIMEOUT_MS", 50)

    def only_one(request: Any) -> Any:
        return info(request) if request.ext_fields["clientId"] == "c1" else None

    for broker in brokers:
        broker.does({RequestCode.GET_CONSUMER_RUNNING_INFO: only_one})
    group = await found(engine)
    assert shown(owners_of_topic(group, "T")) == [("c1", "10.0.0.1", 2), ("c2", "10.0.0.2", None)]
    assert shown(owners_of_queue(group, "T", "a", 0)) == [("c1", "10.0.0.1", 1)]
    assert owners_of_queue(group, "T", "a", 1) is None
    for broker in brokers:
        broker.does({RequestCode.GET_CONSUMER_RUNNING_INFO: refuse(ResponseCode.SYSTEM_ERROR)})
    assert shown(owners_of_topic(await found(engine), "T")) == [("c1", "10.0.0.1", None), ("c2", "10.0.0.2", None)]


async def test_a_silent_broker_may_know_further_clients(engine: ClientEngine, brokers: list[SurveyedBroker]) -> None:
    brokers[1].does({RequestCode.GET_CONSUMER_CONNECTION_LIST: refuse(ResponseCode.SYSTEM_ERROR)})
    group = await found(engine)
    assert shown(owners_of_queue(group, "T", "a", 1)) == [("c2", "10.0.0.2", 1)]
    assert owners_of_queue(group, "T", "b", 1) is None
    brokers[0].does({RequestCode.GET_CONSUMER_CONNECTION_LIST: refuse(ResponseCode.SYSTEM_ERROR)})
    assert owners_of_topic(await found(engine), "T") is None


async def test_a_broker_that_is_not_registered_is_silent(engine: ClientEngine, brokers: list[SurveyedBroker]) -> None:
    group = (await ask_owners(engine, ["g"], brokers=["a", "gone"]))["g"]
    assert owners_of_queue(group, "T", "gone", 0) is None
    for broker in brokers:
        broker.connections.clear()
    group = (await ask_owners(engine, ["g"], brokers=["a", "gone"]))["g"]
    assert owners_of_topic(group, "T") is None
    assert owners_of_queue(group, "T", "a", 0) is None


async def test_a_group_without_connections_has_no_owners(engine: ClientEngine, brokers: list[SurveyedBroker]) -> None:
    for broker in brokers:
        broker.connections.clear()
    group = await found(engine)
    assert owners_of_topic(group, "T") == []
    assert owners_of_queue(group, "T", "a", 0) == []
