"""Requests of reports to a broker: units (900001) and first messages (900002), bounded and validated."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from gantry.model.javahash import tags_code
from gantry.model.unitrow import UNIT_ROW
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.backlog import UnitsResponseHeader
from gantry.sqlfilter import SqlFilter
from services.broker.processors import backlog
from services.broker.turns import Turns
from tests.support.brokerunit import BrokerUnit

BLUE, RED = tags_code("blue"), tags_code("red")


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", queues=2)
        yield unit


async def units(unit: BrokerUnit, **changes: object) -> RemotingCommand:
    ext = {"topic": "T", "queueId": 0, "offset": 0} | changes
    return await unit.ask(RequestCode.GANTRY_UNITS, ext={name: str(value) for name, value in ext.items()})


async def heads(unit: BrokerUnit, *queries: Any) -> RemotingCommand:
    rows = [{"topic": "T", "queueId": 0, "offset": 0, "tagsCodes": None} | query for query in queries]
    return await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=json.dumps({"queries": rows}).encode())


async def send(unit: BrokerUnit, count: int, tag: str = "red", queue_id: int = 0) -> None:
    for _ in range(count):
        await asyncio.sleep(0.005)
        await unit.send(queue_id=queue_id, properties={"TAGS": tag})


def limits(answer: RemotingCommand) -> tuple[int, int, int, int]:
    assert answer.code == 0, answer.remark
    header = UnitsResponseHeader.from_ext(answer.ext_fields)
    return (header.min_offset, header.max_offset, header.first_offset, header.next_offset)


class TestUnits:
    async def test_rows_with_store_times(self, unit: BrokerUnit) -> None:
        await send(unit, 3)
        answer = await units(unit)
        assert limits(answer) == (0, 3, 0, 3)
        rows = list(UNIT_ROW.iter_unpack(answer.body_bytes))
        assert [row[2:] for row in rows] == [(RED, unit.store.stored_at("T", 0, offset)) for offset in range(3)]
        assert [row[0] for row in rows] == [0, rows[0][1], rows[0][1] + rows[1][1]]

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"offset": 1, "maxUnits": 1}, (0, 3, 1, 2)),
            ({"offset": 3}, (0, 3, 3, 3)),
            ({"offset": 7}, (0, 3, 7, 7)),
            ({"queueId": 1, "offset": 2}, (0, 0, 2, 2)),
        ],
    )
    async def test_offsets_within_and_outside(self, unit: BrokerUnit, changes: Any, expected: Any) -> None:
        await send(unit, 3)
        answer = await units(unit, **changes)
        assert limits(answer) == expected
        assert len(answer.body_bytes) == 28 * (expected[3] - expected[2])

    async def test_an_answer_spans_many_slices_and_files_of_the_queue(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "_SLICE_UNITS", 128)
        await send(unit, 700)
        whole = await units(unit, offset=10, maxUnits=650)
        assert limits(whole) == (0, 700, 10, 660)
        times = [row[3] for row in UNIT_ROW.iter_unpack(whole.body_bytes)]
        assert times == [unit.store.stored_at("T", 0, offset) for offset in range(10, 660)]
        assert limits(await units(unit, maxUnits=4_096)) == (0, 700, 0, 700)

    async def test_offsets_in_a_removed_region(self, unit: BrokerUnit) -> None:
        await send(unit, 5)
        unit.store._queues.find("T", 0).min_offset = 3  # type: ignore[union-attr]
        assert limits(await units(unit, offset=1)) == (3, 5, 3, 5)

    async def test_other_requests_are_served_between_slices(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "_SLICE_UNITS", 10)
        await send(unit, 100)
        asked = [asyncio.ensure_future(units(unit)) for _ in range(3)]
        for _ in range(5):
            assert (await unit.send(queue_id=1)).code == 0
        assert not any(task.done() for task in asked)
        assert {limits(answer) for answer in await asyncio.gather(*asked)} == {(0, 100, 0, 100)}

    async def test_a_trim_between_slices_ends_the_answer(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "_SLICE_UNITS", 10)
        await send(unit, 50)
        asked = asyncio.ensure_future(units(unit))
        await asyncio.sleep(0.001)
        unit.store._queues.find("T", 0).min_offset = 45  # type: ignore[union-attr]
        answer = await asked
        rows = len(answer.body_bytes) // 28
        assert 10 <= rows < 50
        assert limits(answer) == (0, 50, 0, rows), "only consecutive units are returned"
        unit.store._queues.find("T", 0).min_offset = 0  # type: ignore[union-attr]
        asked = asyncio.ensure_future(units(unit))
        await asyncio.sleep(0.001)
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        answer = await asked
        assert (answer.code, answer.remark) == (17, "topic[T] not exist")

    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            ({"topic": "Nobody"}, 17, "topic[Nobody] not exist"),
            ({"queueId": 2}, 29, "queueId=2: topic T has 2 queues"),
            ({"queueId": -1}, 29, "queueId=-1: is not within 0 and"),
            ({"offset": -1}, 29, "offset=-1: is not within 0 and"),
            ({"maxUnits": 0}, 29, "maxUnits=0: is not within 1 and 4096"),
            ({"maxUnits": 4097}, 29, "maxUnits=4097: is not within 1 and 4096"),
            ({"offset": "x"}, 1, "header field offset = 'x': "),
            ({"offset": 2**63}, 1, "header field offset = '9223372036854775808': "),
        ],
    )
    async def test_invalid_fields_of_units_are_refused(
        self, unit: BrokerUnit, changes: Any, code: int, remark: str
    ) -> None:
        answer = await units(unit, **changes)
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark


class TestHeads:
    async def test_the_first_message_of_each_query(self, unit: BrokerUnit) -> None:
        await send(unit, 2, "red")
        await send(unit, 1, "blue")
        blue = {"queueId": 0, "tagsCodes": [BLUE, 1]}
        answer = await heads(unit, {}, blue, blue | {"offset": 3}, {"queueId": 1}, {"offset": 9})
        assert answer.code == 0, answer.remark
        body = json.loads(answer.body_bytes)
        assert (body["brokerName"], body["nowMs"]) == ("broker-a", unit.clock.now_ms())
        first, wanted, *nothing = body["heads"]
        place = unit.store._queues.find("T", 0).unit(2)  # type: ignore[union-attr]
        expiry = unit.store.expires_at(place.physical_offset)
        assert expiry is not None
        assert wanted == {
            "minOffset": 0, "maxOffset": 3, "scannedTo": 2, "queueOffset": 2, "physicalOffset": place.physical_offset,
            "size": place.size_bytes, "tagsCode": BLUE, "storedAt": unit.store.stored_at("T", 0, 2),
            "expiresAt": expiry.at_ms, "expiresAtIsEarliest": True, "error": None,
        }  # fmt: skip
        assert (first["queueOffset"], first["tagsCode"]) == (0, RED)
        assert first["storedAt"] == unit.store.stored_at("T", 0, 0)
        assert [(head["maxOffset"], head["scannedTo"]) for head in nothing] == [(3, 3), (0, 0), (3, 9)]
        for head in nothing:
            assert {head[name] for name in ("queueOffset", "storedAt", "expiresAt", "size", "error")} == {None}

    async def test_a_query_that_can_not_be_answered_does_not_fail_the_others(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        answer = await heads(unit, {"topic": "Nobody"}, {"queueId": 7}, {})
        unknown, absent, good = json.loads(answer.body_bytes)["heads"]
        assert (unknown["error"], unknown["maxOffset"], unknown["scannedTo"]) == ("topic[Nobody] not exist", None, None)
        assert absent["error"] == "queueId=7: topic T has 2 queues"
        assert (good["error"], good["queueOffset"]) == (None, 0)

    async def test_a_damaged_record_has_a_reason_instead_of_a_time(self, unit: BrokerUnit) -> None:
        await send(unit, 1)
        file = unit.store._log.files.first
        assert file is not None
        file.memory[60:64] = b"\1\2\3\4"
        (head,) = json.loads((await heads(unit, {})).body_bytes)["heads"]
        assert (head["queueOffset"], head["physicalOffset"], head["storedAt"]) == (0, 0, None)
        assert (
            head["error"] == f"offset 0: the record of {head['size']} bytes at 0 of the CommitLog is removed or damaged"
        )

    async def test_the_number_of_units_in_a_request_is_limited(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "SCANNED_UNITS_MAX", 70)
        monkeypatch.setattr(backlog, "_SLICE_SCANNED", 15)
        await send(unit, 60)
        answer = await heads(unit, *[{"tagsCodes": [BLUE]}] * 3, {})
        found = json.loads(answer.body_bytes)["heads"]
        assert [head["scannedTo"] for head in found] == [60, 10, 0, 0]
        assert [head["queueOffset"] for head in found] == [None] * 4, "the budget allows no further unit"

    async def test_a_topic_deleted_while_it_is_read(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "_SLICE_SCANNED", 5)
        await send(unit, 60)
        asked = asyncio.ensure_future(heads(unit, {"tagsCodes": [BLUE]}))
        await asyncio.sleep(0.001)
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        (head,) = json.loads((await asked).body_bytes)["heads"]
        assert (head["error"], head["maxOffset"]) == ("topic[T] not exist", None)

    @pytest.mark.parametrize(
        ("queries", "code", "remark"),
        [
            ([{}] * 257, 29, "queries=257: is not within 0 and 256"),
            ([{}, {"offset": -3}], 29, "queries[1].offset=-3: is not within 0 and"),
            ([{"offset": 2**70}], 29, f"queries[0].offset={2**70}: is not within 0 and"),
            ([{"queueId": -1}], 29, "queries[0].queueId=-1: is not within 0 and"),
            ([{"tagsCodes": [1] * 10_000}] * 2, 29, "tagsCodes=20000: is not within 0 and 16384"),
            ([{"topic": "x" * 4_200}] * 256, 29, "body bytes="),
            ([{"offset": "x"}], 1, "body FirstUnconsumedQueries at queries[0].offset: "),
            ([{"tagsCodes": ["x"]}], 1, "body FirstUnconsumedQueries at queries[0].tagsCodes[0]: "),
            ([{"topic": None}], 1, "body FirstUnconsumedQueries at queries[0].topic: "),
        ],
    )
    async def test_invalid_fields_of_heads_are_refused(
        self, unit: BrokerUnit, queries: Any, code: int, remark: str
    ) -> None:
        answer = await heads(unit, *queries)
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark

    async def test_no_queries_return_no_heads(self, unit: BrokerUnit) -> None:
        assert json.loads((await heads(unit)).body_bytes)["heads"] == []
        for body in (b"", b"[]", b"{}", b"{broken"):
            assert (await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=body)).code == 1


async def send_sizes(unit: BrokerUnit, *sizes: int, queue_id: int = 0) -> None:
    for size in sizes:
        await asyncio.sleep(0)
        await unit.send(queue_id=queue_id, properties={"TAGS": "red", "size": str(size)})


class TestSqlHeads:
    async def test_the_first_message_that_the_filter_accepts(self, unit: BrokerUnit) -> None:
        await send_sizes(unit, 1, 2, 9, 9)
        answer = await heads(unit, {"sql": "size > 5"}, {"sql": "size > 5", "offset": 3}, {"sql": "size > 50"})
        body = json.loads(answer.body_bytes)
        assert body["appliesSql"] is True
        first, later, none = body["heads"]
        assert (first["queueOffset"], first["scannedTo"]) == (2, 2)
        assert first["storedAt"] == unit.store.stored_at("T", 0, 2)
        assert later["queueOffset"] == 3
        assert (none["queueOffset"], none["scannedTo"], none["maxOffset"], none["error"]) == (None, 4, 4, None)

    async def test_a_request_examines_a_limited_number_of_messages_and_says_where_to_continue(
        self, unit: BrokerUnit, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(backlog, "SCANNED_UNITS_MAX", 7)
        monkeypatch.setattr(backlog, "SLICE_WORK", 20_000)
        await send_sizes(unit, *[1] * 10, 9)
        found, offset = [], 0
        for _ in range(2):
            (head,) = json.loads((await heads(unit, {"sql": "size > 5", "offset": offset})).body_bytes)["heads"]
            found.append((head["scannedTo"], head["queueOffset"]))
            offset = head["scannedTo"]
        assert found == [(7, None), (10, 10)]

    @pytest.mark.parametrize(("limit", "value"), [("FILTERED_BYTES_MAX", 600), ("FILTER_WORK_MAX", 30_000)])
    async def test_bytes_and_work_are_limited_over_all_queries(
        self, unit: BrokerUnit, monkeypatch: Any, limit: str, value: int
    ) -> None:
        await send_sizes(unit, *[1] * 50)
        await heads(unit, {"sql": "size > 5"})  # The expression is parsed; that counts as work, too.
        monkeypatch.setattr(backlog, limit, value)
        monkeypatch.setattr(backlog, "SLICE_WORK", 10_000)
        part, other = json.loads((await heads(unit, *[{"sql": "size > 5"}] * 2)).body_bytes)["heads"]
        assert 0 < part["scannedTo"] < 50, "it made progress, and left the rest"
        assert (other["scannedTo"], other["queueOffset"], other["error"]) == (0, None, None)

    async def test_other_requests_are_served_between_slices(self, unit: BrokerUnit, monkeypatch: Any) -> None:
        monkeypatch.setattr(backlog, "SLICE_WORK", 20_000)
        await send_sizes(unit, *[1] * 100)
        asked = asyncio.ensure_future(heads(unit, {"sql": "size > 5"}))
        for _ in range(5):
            assert (await unit.send(queue_id=1)).code == 0
        assert not asked.done()
        assert json.loads((await asked).body_bytes)["heads"][0]["scannedTo"] == 100

    async def test_a_slice_ends_by_time_if_the_filter_takes_longer_than_its_words_say(
        self, unit: BrokerUnit, monkeypatch: Any
    ) -> None:
        """The bound also holds for one message after the other that is slow, and over all queries of a request."""
        await send_sizes(unit, *[1] * 40)
        decide, moments = SqlFilter.matches, []
        loop: Any = asyncio.get_running_loop()

        def slow(self: SqlFilter, properties: bytes) -> bool:
            loop._jumping.now_s += 0.003
            moments.append(unit.clock.monotonic_ms())
            return decide(self, properties)

        slices = []
        spend = Turns.spend

        def note(self: Turns, share: float) -> None:
            slices.append((len(moments), share))
            spend(self, share)

        await heads(unit, {"sql": "size > 5"})  # The expression is parsed.
        monkeypatch.setattr(SqlFilter, "matches", slow)
        monkeypatch.setattr(Turns, "spend", note)
        queries = [{"sql": "size > 5", "offset": offset} for offset in (0, 38, 39, 39)]
        found = json.loads((await heads(unit, *queries)).body_bytes)["heads"]
        assert [head["scannedTo"] for head in found] == [40] * 4
        assert len(moments) == 40 + 2 + 1 + 1
        counts = [count for count, _ in slices]
        assert max(after - before for before, after in pairwise([0, *counts])) == 2, "two messages take 6 ms"
        assert [share >= 1 for _, share in slices[:-1]] == [True] * (len(slices) - 1), "the loop is free after each"

    async def test_a_filter_that_can_not_be_applied_has_a_reason_and_spares_the_other_queries(
        self, unit: BrokerUnit
    ) -> None:
        await send_sizes(unit, 1)
        wrong, long, good = json.loads(
            (await heads(unit, {"sql": "size LIKE 5"}, {"sql": "a" * 20_000}, {"sql": "size < 5"})).body_bytes
        )["heads"]
        assert "at character 6: LIKE is not supported" in wrong["error"]
        assert "16384" in long["error"]
        assert (good["error"], good["queueOffset"]) == (None, 0)

    async def test_a_broker_without_sql_filters_says_so(self, unit: BrokerUnit) -> None:
        await send_sizes(unit, 1)
        unit.change_settings(enable_property_filter=False)
        (head,) = json.loads((await heads(unit, {"sql": "size < 5"})).body_bytes)["heads"]
        assert head["error"] == "sql: the broker applies no SQL filters (enablePropertyFilter=false)"

    async def test_a_damaged_record_before_the_first_message_is_no_unmatched_one(self, unit: BrokerUnit) -> None:
        await send_sizes(unit, 1, 9)
        file = unit.store._log.files.first
        assert file is not None
        file.memory[84:88] = b"\x7f\xff\xff\xff"  # The length of the body.
        (head,) = json.loads((await heads(unit, {"sql": "size > 5"})).body_bytes)["heads"]
        assert (head["queueOffset"], head["storedAt"]) == (0, None)
        assert "removed or damaged" in head["error"]

    async def test_tags_and_sql_exclude_each_other(self, unit: BrokerUnit) -> None:
        answer = await heads(unit, {"sql": "size > 5", "tagsCodes": [1]})
        assert (answer.code, answer.remark) == (29, "queries[0]: it has both tagsCodes and sql; one is allowed")
