"""Promises of queue locks: one client of a group has a queue, as with Apache's broker."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantry.model.message import MessageQueue
from gantry.remoting.bodies import LockedQueues, LockRequest
from gantry.remoting.bodies.fastjson import to_strict_json
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import decode_frame
from tests.support.brokerunit import BrokerUnit

FRAMES = Path(__file__).parents[1] / "golden" / "frames.jsonl.gz"
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


async def locks(unit: BrokerUnit, client_id: str) -> bool:
    answer = await unit.ask(RequestCode.LOCK_BATCH_MQ, body=LockRequest(client_id, "g", [QUEUE]).encode())
    return LockedQueues.decode(answer.body_bytes).queues == (QUEUE,)


async def test_only_one_client_of_a_group_has_a_queue(unit: BrokerUnit) -> None:
    assert await locks(unit, "first")
    assert not await locks(unit, "second")


async def test_a_client_that_renews_its_lock_every_20_s_keeps_the_queue(unit: BrokerUnit) -> None:
    for _ in range(30):
        assert await locks(unit, "first")
        await asyncio.sleep(20)
        assert not await locks(unit, "second")


async def test_the_queue_of_a_client_that_died_is_free_after_60_s(unit: BrokerUnit) -> None:
    await locks(unit, "dead")
    await asyncio.sleep(59.9)
    assert not await locks(unit, "second")
    await asyncio.sleep(0.2)
    assert await locks(unit, "second")
    assert not await locks(unit, "dead")


async def test_a_client_that_stops_frees_its_queues_at_once_and_no_others(unit: BrokerUnit) -> None:
    await locks(unit, "first")
    for client_id, is_free in (("second", False), ("first", True)):
        await unit.ask(RequestCode.UNLOCK_BATCH_MQ, body=LockRequest(client_id, "g", [QUEUE]).encode())
        assert await locks(unit, "third") == is_free


def captured(case: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield request and response of each captured exchange of locks in a scenario step."""
    with gzip.open(FRAMES, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["case"] == case and row["code"] in (41, 42)]
    return zip(rows[::2], rows[1::2], strict=True)


async def test_captured_lock_requests_get_the_answers_of_apaches_broker(unit: BrokerUnit) -> None:
    count = 0
    for case in ("push orderly", "raw lock batch", "raw lock batch other client", "raw unlock batch"):
        for request, response in captured(case):
            asked, expected = (decode_frame(bytes.fromhex(row["frame_hex"])[4:]) for row in (request, response))
            answer = await unit.ask(asked.code, body=asked.body_bytes)
            assert (answer.code, answer.remark) == (expected.code, expected.remark)
            assert read(answer.body_bytes) == read(expected.body_bytes)
            count += 1
    assert count == 6


def read(body: bytes) -> Any:
    return json.loads(to_strict_json(body)) if body else None
