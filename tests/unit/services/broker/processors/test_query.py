"""Queries by key: processed in slices, and no record is built if the reply has no room for it."""

import asyncio
from typing import Any

import pytest

from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.processors import query
from services.broker.store.index import keysearch
from tests.support.brokerunit import BrokerUnit


async def ask(unit: BrokerUnit, *, key: str = "k", count: int = 64, end_ms: int = 1 << 62) -> RemotingCommand:
    ext = {"topic": "T", "key": key, "maxNum": str(count), "beginTimestamp": "0", "endTimestamp": str(end_ms)}
    return await unit.ask(RequestCode.QUERY_MESSAGE, ext=ext)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [bytes(record.body) for record in iter_records(answer.body_bytes)]


async def test_the_newest_messages_that_fit_are_found_and_older_ones_are_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query, "REPLY_BODY_BYTES_MAX", 4_000)
    monkeypatch.setattr(query, "_SLICE_BYTES", 1)
    async with BrokerUnit() as unit:
        for number in range(40):
            await unit.send(body=bytes([number]) * 1000, properties={"KEYS": "k"})
        read: list[int] = []
        inner = unit.store.records

        def records(offsets: list[int], max_bytes: int) -> list[bytes | None]:
            found = inner(offsets, max_bytes)
            read.append(len(found))
            return found

        unit.store.records = records  # type: ignore[method-assign]
        answer = await ask(unit)
        assert [body[0] for body in bodies(answer)] == [37, 38, 39]
        assert read == [1, 1, 1, 1]  # The fourth record does not fit.


async def test_one_record_is_returned_whatever_its_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query, "REPLY_BODY_BYTES_MAX", 10)
    async with BrokerUnit() as unit:
        await unit.send(body=b"first", properties={"KEYS": "k"})
        await unit.send(body=b"second", properties={"KEYS": "k"})
        assert bodies(await ask(unit)) == [b"second"]


async def test_a_long_chain_is_walked_in_slices_with_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query, "_SLICE_ENTRIES", 10)
    async with BrokerUnit() as unit:
        await unit.send(body=b"old", properties={"KEYS": "k"})
        end_ms = unit.clock.now_ms()
        await asyncio.sleep(10)
        for number in range(300):
            await unit.send(body=b"new", properties={"KEYS": "k", "UNIQ_KEY": f"U{number}"})
        spent: list[float] = []
        turns = unit.broker.core.turns
        spend = turns.spend
        turns.spend = lambda share: spent.append(share) or spend(share)  # type: ignore[method-assign]
        before_s = asyncio.get_running_loop().time()
        answer = await ask(unit, end_ms=end_ms)
        assert bodies(answer) == [b"old"]
        assert max(spent) <= 1
        assert sum(spent) >= 20
        assert asyncio.get_running_loop().time() - before_s >= 0.019  # A pause of 1 ms after each slice.


async def test_a_search_that_stops_early_is_flagged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keysearch, "WALKED_MAX", 50)
    async with BrokerUnit() as unit:
        await unit.send(body=b"old", properties={"KEYS": "k"})
        end_ms = unit.clock.now_ms()
        await asyncio.sleep(10)
        for _ in range(100):
            await unit.send(body=b"new", properties={"KEYS": "k"})
        answer = await ask(unit, end_ms=end_ms)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == (
            "can not find message among the newest 50 index entries of the key's slot; older ones were not looked at"
        )
        assert len(bodies(await ask(unit, count=5))) == 5


async def test_nothing_found_and_no_index(monkeypatch: pytest.MonkeyPatch):
    settings: list[dict[str, Any]] = [{}, {"message_index_enable": False}]
    for changes in settings:
        async with BrokerUnit(**changes) as unit:
            await unit.send(properties={"KEYS": "k"})
            answer = await ask(unit, key="other")
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            assert answer.remark == "can not find message, maybe time range not correct"
