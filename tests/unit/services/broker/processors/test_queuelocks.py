from collections.abc import AsyncIterator

import pytest

from gantry.model.message import MessageQueue
from gantry.remoting.aio.limits import Counters
from gantry.remoting.bodies import LockedQueues, LockRequest
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import subscribe

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


async def lock(unit: BrokerUnit, client_id: str, *queues: MessageQueue, group: str = "g") -> list[MessageQueue]:
    answer = await unit.ask(RequestCode.LOCK_BATCH_MQ, body=LockRequest(client_id, group, queues).encode())
    assert answer.code == 0, answer.remark
    return list(LockedQueues.decode(answer.body_bytes).queues)


async def unlock(unit: BrokerUnit, client_id: str, *queues: MessageQueue) -> RemotingCommand:
    return await unit.ask(RequestCode.UNLOCK_BATCH_MQ, body=LockRequest(client_id, "g", queues).encode())


async def test_the_reply_has_the_locked_subset_and_unlock_an_empty_body(unit: BrokerUnit) -> None:
    assert await lock(unit, "c1", Q0) == [Q0]
    assert await lock(unit, "c2", Q0, Q1) == [Q1]
    answer = await unlock(unit, "c1", Q0, Q1)
    assert (answer.code, answer.body, answer.ext_fields) == (0, None, {})
    assert await lock(unit, "c2", Q0, Q1) == [Q0, Q1]


async def test_the_end_of_a_connection_or_of_a_membership_frees_no_lock(unit: BrokerUnit) -> None:
    other = unit.connect()
    request = LockRequest("c1", "g", [Q0]).encode()
    await unit.ask(RequestCode.LOCK_BATCH_MQ, body=request, connection=other)
    await unit.ask(RequestCode.UNREGISTER_CLIENT, ext={"clientID": "c1", "consumerGroup": "g"}, connection=other)
    other.client.abort("gone")
    assert await lock(unit, "c2", Q0) == []


async def test_a_deleted_group_or_topic_frees_its_locks(unit: BrokerUnit) -> None:
    await subscribe(unit, "g", "T")
    await lock(unit, "c1", Q0)
    await unit.make_topic("T", queues=2)
    assert await lock(unit, "c2", Q0) == [], "a changed topic keeps its locks"
    await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "g", "cleanOffset": "true"})
    assert await lock(unit, "c2", Q0) == [Q0]
    await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
    assert await lock(unit, "c3", Q0) == [Q0]


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"", 1, "body"),
        (b'{"clientId":"c","consumerGroup":"g"}', 1, "mqSet"),
        (LockRequest("c", "a b", [Q0]).encode(), 29, "consumerGroup: 'a b'"),
        (LockRequest("", "g", [Q0]).encode(), 29, "clientId has 0 characters"),
        (LockRequest("c", "g", [MessageQueue("", "b", 0)]).encode(), 29, "topic: ''"),
        (
            LockRequest("c", "g", [MessageQueue("T", "b", number) for number in range(10_001)]).encode(),
            29,
            "mqSet has 10001 queues",
        ),
    ],
)
async def test_a_bad_request_locks_nothing(unit: BrokerUnit, body: bytes, code: int, remark: str) -> None:
    for request in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        answer = await unit.ask(request, body=body)
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
    assert unit.broker.tables.queue_locks.count == 0


async def test_locks_are_counted(unit: BrokerUnit) -> None:
    await lock(unit, "c1", Q0, Q1)
    await lock(unit, "c2", Q0)
    values = {
        family.name: family.samples[0].value
        for family in unit.broker.collector(Counters()).collect()
        if "queue_locks" in family.name
    }
    assert values == {
        "gantry_broker_queue_locks": 2,
        "gantry_broker_refused_queue_locks": 1,
        "gantry_broker_taken_over_queue_locks": 0,
    }
