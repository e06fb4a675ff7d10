"""Promises of a consumer with a listener whose group is deleted under it; on virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gantry.client import LocalOffsets, PushConsumer, StartPosition
from gantry.client.engine import ClientEngine
from gantry.model.group import ConsumeFromWhere, MessageModel
from gantry.model.message import StoredMessage
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.workers import InlineWorker
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.unitcluster import UnitTransport, engine_on

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
DELETED = "the group was deleted or never made: its consumers get no messages until somebody makes it"
RESTORED = "the group exists again"
QUEUES = 8


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(timer_interval_ms_min=5_000, broker_fast_failure_enable=False) as unit:
        await unit.make_topic("T", queues=QUEUES)
        yield unit


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of requests of each code."""
    counts: Counter[int] = Counter()
    invoke = UnitTransport.invoke

    async def counted(
        self: UnitTransport, address: str, command: RemotingCommand, *, timeout_ms: int
    ) -> RemotingCommand:
        counts[command.code] += 1
        return await invoke(self, address, command, timeout_ms=timeout_ms)

    monkeypatch.setattr(UnitTransport, "invoke", counted)
    return counts


@pytest.fixture
async def engine(unit: BrokerUnit) -> AsyncIterator[ClientEngine]:
    async with engine_on(unit) as engine:
        yield engine


def push(unit: BrokerUnit, engine: ClientEngine, seen: list[bytes], *, is_broadcasting: bool = False) -> PushConsumer:
    async def listen(message: StoredMessage) -> None:
        seen.append(message.body)

    options: dict[str, Any] = {}
    if is_broadcasting:
        offsets = LocalOffsets("/offsets", files=MemFileSystem(unit.clock), worker=InlineWorker())
        options = {"message_model": MessageModel.BROADCASTING, "local_offsets": offsets}
    return PushConsumer(engine, "g", ["T"], listen, start=FIRST, client_id="one", **options)


async def delete(unit: BrokerUnit) -> None:
    ext = {"groupName": "g", "cleanOffset": "true"}
    assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=ext)).code == ResponseCode.SUCCESS


async def make(unit: BrokerUnit) -> None:
    body = b'{"groupName":"g"}'
    assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == ResponseCode.SUCCESS


def loud(lines: Any) -> Counter[str]:
    """Return the events of the client's log above the level info."""
    return Counter(
        line["event"]
        for line in lines
        if line["log_level"] not in ("debug", "info") and line["module"].startswith("client.")
    )


@pytest.mark.parametrize("is_broadcasting", [False, True])
async def test_a_consumer_says_once_that_its_group_was_deleted(unit, engine, is_broadcasting):
    seen: list[bytes] = []
    async with push(unit, engine, seen, is_broadcasting=is_broadcasting):
        for queue_id in range(QUEUES):
            await unit.send(queue_id=queue_id)
        await asyncio.sleep(1)
        with capture_logs() as lines:
            await delete(unit)
            await asyncio.sleep(600)
        assert loud(lines)[DELETED] == 1
        assert loud(lines).total() == 1, loud(lines)


@pytest.mark.parametrize("is_broadcasting", [False, True])
async def test_it_asks_more_and_more_seldom_and_goes_on_soon_when_the_group_exists_again(
    unit, asked, engine, is_broadcasting
):
    seen: list[bytes] = []
    async with push(unit, engine, seen, is_broadcasting=is_broadcasting):
        await asyncio.sleep(5)
        await delete(unit)
        await unit.send(body=b"while it is deleted")
        await asyncio.sleep(40)
        asked.clear()
        await asyncio.sleep(60)
        assert seen == []
        assert QUEUES * 2 <= asked[RequestCode.PULL_MESSAGE] <= QUEUES * 4, "each queue every 20 s"
        with capture_logs() as lines:
            await make(unit)
            await asyncio.sleep(3)
        assert seen == [b"while it is deleted"]
        assert [line["event"] for line in lines].count(RESTORED) == 1
        asked.clear()
        await unit.send(body=b"afterwards")
        await asyncio.sleep(1)
        assert seen == [b"while it is deleted", b"afterwards"]


async def test_a_second_deletion_is_reported_too(unit, engine):
    async with push(unit, engine, []):
        with capture_logs() as lines:
            for _ in range(2):
                await delete(unit)
                await asyncio.sleep(60)
                await make(unit)
                await asyncio.sleep(30)
        events = [line["event"] for line in lines if line["event"] in (DELETED, RESTORED)]
        assert events == [DELETED, RESTORED] * 2


async def test_a_group_that_is_made_again_at_once_costs_at_most_one_line_and_no_message(unit, engine):
    seen: list[bytes] = []
    async with push(unit, engine, seen):
        await asyncio.sleep(5)
        with capture_logs() as lines:
            await delete(unit)
            await make(unit)
            await unit.send(body=b"m")
            await asyncio.sleep(30)
        assert seen == [b"m"]
        assert loud(lines).total() <= 1, loud(lines)


async def test_the_end_of_a_consumer_of_a_deleted_group_does_not_wait(unit, engine):
    consumer = push(unit, engine, [])
    await consumer.start()
    await delete(unit)
    await asyncio.sleep(60)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await consumer.close()
    assert loop.time() - began_s < 1
