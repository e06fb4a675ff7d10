"""Heads: which requests are made, which are avoided, and the rows for unknown values."""

import pytest

from gantry.client.backlog import UNIT_ROW, FirstUnconsumed
from gantry.model.address import Address, pack_host
from gantry.model.javahash import java_hash
from gantry.model.message import encode_properties
from gantry.model.record import encode_record
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedResult, FirstUnconsumedResults
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers.metadata import Metadata
from spark.datasource.brokers.positions import GroupPosition, SurveyedPositions
from spark.datasource.brokers.survey import Survey
from spark.datasource.filters import ALL, GroupFilter
from spark.datasource.kinds import heads
from spark.datasource.kinds.heads import HeadQuery, ask, head_row, sort_positions
from spark.datasource.schema import HEADS
from tests.support.scriptedpeer import ok, refuse

COLUMNS = HEADS.fieldNames()
HOST = pack_host(Address("10.0.0.1", 10911))


def position(committed: int | None = 4, *, group: str = "g", topic: str = "T", end: int | None = 10) -> GroupPosition:
    return GroupPosition(group, topic, "a", 0, None if end is None else 0, end, committed)


def record(tag: str, physical_offset: int) -> bytes:
    return encode_record(
        queue_id=0, flag=0, queue_offset=5, physical_offset=physical_offset, sys_flag=0, born_at_ms=1, born_host=HOST,
        stored_at_ms=2, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=b"x",
        topic=b"T", properties=encode_properties({"TAGS": tag}), whole_record_crc=True,
    )  # fmt: skip


def as_dict(row: tuple) -> dict:
    return dict(zip(COLUMNS, row, strict=True))


@pytest.fixture
def broker(cluster, transport):
    """Broker a with topic T: answers heads and units that a test provides."""
    cluster.topic("T", "a", queues=1)
    state = {"heads": {}, "units": [], "first": 4, "tags": {}}

    def give_heads(request):
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        found = [state["heads"].get(query.topic, FirstUnconsumedResult(error="no such topic")) for query in queries]
        body = FirstUnconsumedResults(applies_sql=True, broker_name="a", heads=found, now_ms=99)
        return ok(request, body=body.encode())

    def give_units(request):
        rows = b"".join(UNIT_ROW.pack(*unit) for unit in state["units"][: int(request.ext_fields["maxUnits"])])
        first = state["first"]
        offsets = {"minOffset": 0, "maxOffset": 10, "firstOffset": first, "nextOffset": first + len(rows) // 28}
        return ok(request, body=rows, ext={name: str(value) for name, value in offsets.items()})

    def view(request):
        offset = int(request.ext_fields["offset"])
        tag = state["tags"].get(offset)
        return refuse(ResponseCode.SYSTEM_ERROR)(request) if tag is None else ok(request, body=record(tag, offset))

    scripts = {
        RequestCode.GANTRY_FIRST_UNCONSUMED: give_heads,
        RequestCode.GANTRY_UNITS: give_units,
        RequestCode.VIEW_MESSAGE_BY_ID: view,
    }
    transport.at("a:10911", scripts)
    return state


async def test_a_head_and_the_tags_after_it(engine, broker, transport):
    found = FirstUnconsumedResult(
        min_offset=0, max_offset=12, scanned_to=6, queue_offset=5, physical_offset=500, size=100,
        tags_code=java_hash("A"), stored_at=7, expires_at=70, expires_at_is_earliest=True,
    )  # fmt: skip
    broker["heads"]["T"] = found
    broker["units"] = [
        (400, 90, java_hash("B"), 6), (500, 100, java_hash("A"), 7), (600, 100, java_hash("A"), 8),
        (0, -1, 0, -1), (700, 10, 0, 9), (800, 10, java_hash("?"), 9), (900, 10, java_hash("new"), 9),
    ]  # fmt: skip
    broker["tags"] = {400: "B", 800: "not this one"}
    wanted = GroupFilter.of_expression("TAG", "A")
    queries = [HeadQuery(position(), wanted, is_filter_known=True), HeadQuery(position(group="h"), wanted, True)]
    rows = [as_dict(row) for row in await ask(engine, "a", queries)]
    assert [row["group"] for row in rows] == ["g", "h"]
    expected = {
        "filter": "A", "first_offset": 5, "first_physical_offset": 500, "first_stored_at": 7, "expires_at": 70,
        "expires_at_is_earliest": True, "broker_now": 99, "tags_examined": 5, "error": None,
    }  # fmt: skip
    assert {name: rows[0][name] for name in expected} == expected
    # Units beyond the planned end, offset 10, are not counted; a hash without a known tag is shown as a hash.
    assert {one["tag"]: one["messages"] for one in rows[0]["tags"]} == {
        "A": 2, "B": 1, None: 1, f"#{java_hash('?')}": 1,
    }  # fmt: skip
    assert [len(transport.sent(code)) for code in (RequestCode.GANTRY_FIRST_UNCONSUMED, RequestCode.GANTRY_UNITS)] == [
        1,
        1,
    ]


async def test_a_head_of_an_sql_filter(engine, broker, transport):
    broker["heads"]["T"] = FirstUnconsumedResult(
        min_offset=0, max_offset=10, scanned_to=6, queue_offset=6, physical_offset=600, size=100, stored_at=8
    )
    sql = GroupFilter.of_expression("SQL92", "a > 1")
    queries = [HeadQuery(position(), sql, True), HeadQuery(position(group="h", topic="Gone"), ALL, True)]
    first, other = [as_dict(row) for row in await ask(engine, "a", queries)]
    assert (first["filter"], first["first_offset"], first["first_stored_at"], first["error"]) == ("a > 1", 6, 8, None)
    assert other["error"] == "no such topic"
    sent = [
        FirstUnconsumedQueries.decode(request.body_bytes).queries
        for request in transport.sent(RequestCode.GANTRY_FIRST_UNCONSUMED)
    ]
    assert [[query.sql for query in queries] for queries in sent] == [[None], ["a > 1"]], "those of tags come first"


async def test_a_search_for_an_sql_filter_that_does_not_end_is_unknown(engine, broker, monkeypatch):
    monkeypatch.setattr("spark.datasource.kinds.heads.SQL_WITHIN_MS", 0)
    broker["heads"]["T"] = FirstUnconsumedResult(min_offset=0, max_offset=10, scanned_to=5)
    query = HeadQuery(position(), GroupFilter.of_expression("SQL92", "a > 1"), True)
    (row,) = [as_dict(row) for row in await ask(engine, "a", [query])]
    assert row["first_offset"] is None
    assert row["error"] == "no message that the filter lets through from offset 4 up to 5; given up"


async def test_one_queue_without_an_answer_does_not_affect_the_others(engine, broker):
    broker["heads"]["T"] = FirstUnconsumedResult(min_offset=0, max_offset=10, scanned_to=10)
    sql = GroupFilter.of_expression("CLASS", "a > 1")
    queries = [
        HeadQuery(position(topic="Gone"), ALL, is_filter_known=False),
        HeadQuery(position(), sql, is_filter_known=True),
        HeadQuery(position(), ALL, is_filter_known=False),
    ]
    rows = [as_dict(row) for row in await ask(engine, "a", queries)]
    assert [row["error"] for row in rows] == ["no such topic", sql.error, None]
    assert [row["first_offset"] for row in rows] == [None, None, None]
    assert [row["filter"] for row in rows] == [None, "a > 1", None]
    assert rows[0]["tags"] is None


async def test_a_broker_without_the_requests_is_reported(engine, broker, transport):
    transport.scripts["a:10911"] = {}
    (row,) = [as_dict(one) for one in await ask(engine, "a", [HeadQuery(position(), ALL, is_filter_known=False)])]
    assert row["error"] == "broker a does not know request 900002, so it can't say"
    assert (row["first_offset"], row["tags"], row["tags_examined"], row["broker_now"]) == (None, None, None, None)
    transport.down("a:10911")
    (row,) = [as_dict(one) for one in await ask(engine, "a", [HeadQuery(position(), ALL, is_filter_known=False)])]
    assert row["error"] == "broker a: a:10911: connection refused"


def test_a_message_that_came_after_planning_is_no_head():
    late = FirstUnconsumed(0, 20, 10, 5, 5, 0, 5, 5, False, None, 99)
    row = as_dict(head_row(HeadQuery(position(), ALL, is_filter_known=True), late))
    assert (row["first_offset"], row["first_stored_at"], row["error"]) == (None, None, None)


def test_only_unknown_values_are_requested():
    positions = [
        position(10),
        position(4),
        position(None),
        position(None, end=0),
        position(11),
        position(3, end=None),
    ]
    rows, queries = sort_positions(SurveyedPositions(Survey({}, Metadata(), ["g"]), positions))
    assert [one.position for one in queries["a"]] == [position(4)]
    assert [as_dict(row)["error"] for row in rows] == [
        None,
        "the group has never committed an offset of this queue",
        None,
        "the committed offset 11 is beyond the end of the queue, 10",
        "the queue's ends are not known",
    ]
    assert [as_dict(row)["tags_examined"] for row in rows] == [0, None, 0, None, None]


def test_a_filter_of_too_many_tags_is_not_sent():
    wanted = GroupFilter("…", tuple(range(heads.TAGS_CODES_MAX + 1)))
    assert "at most" in (HeadQuery(position(), wanted, is_filter_known=True).error or "")


async def test_a_broker_that_takes_too_long_is_reported(engine, broker, transport, monkeypatch):
    monkeypatch.setattr(heads, "HEADS_TIMEOUT_MS", 500)
    transport.latency_s["a:10911"] = 1.0
    rows = [as_dict(row) for row in await ask(engine, "a", [HeadQuery(position(), ALL, is_filter_known=False)])]
    assert [row["error"] for row in rows] == ["broker a: no answer within 500 ms"]
