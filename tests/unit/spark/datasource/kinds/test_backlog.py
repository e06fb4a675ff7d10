"""Backlog: a row for every offset of a region, also for lost or damaged messages."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

from gantry.client.backlog import UNIT_ROW
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers.metadata import Metadata
from spark.datasource.brokers.positions import GroupPosition
from spark.datasource.brokers.survey import BrokerView, Survey
from spark.datasource.filters import GroupFilter
from spark.datasource.kinds import backlog
from spark.datasource.options import Options, Position, PositionKind
from spark.datasource.partitions import Region
from spark.datasource.pushdown import Pushed, push_down
from spark.datasource.schema import BACKLOG
from tests.support.scriptedpeer import in_turn, ok, refuse

REGION = Region("T", "a", 0, 4, 10, "g")
OPTIONS = Options("backlog", namesrv=("ns:1",))


def units(first: int, *rows: tuple[int, int, int, int]):
    """Return a script that answers with units from an offset on."""
    offsets = {"minOffset": 0, "maxOffset": 10, "firstOffset": first, "nextOffset": first + len(rows)}
    ext = {name: str(value) for name, value in offsets.items()}
    return lambda request: ok(request, body=b"".join(UNIT_ROW.pack(*row) for row in rows), ext=ext)


def unit(number: int) -> tuple[int, int, int, int]:
    return 100 * number, 90, number % 2, 1_000 * number


async def rows_of(engine, regions: Sequence[Region], *filters) -> list[dict]:
    pushed, left = push_down(list(filters), exact=backlog.EXACT)
    assert left == []
    batches = [backlog.units_batch(BACKLOG, parts, pushed) async for parts in backlog._read(engine, regions)]
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def answer(cluster, transport):
    """Lets broker a answer requests for units with one script after the other."""
    cluster.topic("T", "a", queues=1)
    return lambda *scripts: transport.at("a:10911", {RequestCode.GANTRY_UNITS: in_turn(*scripts)})


def shown(rows: list[dict]) -> list[tuple]:
    return [(row["queue_offset"], row["physical_offset"], row["tag_hash"]) for row in rows]


async def test_units_come_in_as_many_answers_as_necessary(engine, answer, transport):
    answer(units(4, *map(unit, (4, 5, 6))), units(7, *map(unit, (7, 8, 9, 10))))
    rows = await rows_of(engine, [REGION])
    assert shown(rows) == [(number, 100 * number, number % 2) for number in range(4, 10)]
    assert {(row["group"], row["topic"], row["broker"], row["queue_id"], row["size"]) for row in rows} == {
        ("g", "T", "a", 0, 90)
    }
    assert [row["stored_at"].timestamp() for row in rows] == list(range(4, 10))
    broker_queries = [dict(request.ext_fields) for request in transport.sent(RequestCode.GANTRY_UNITS)]
    assert [(one["offset"], one["maxUnits"]) for one in broker_queries] == [("4", "6"), ("7", "3")]


async def test_trimmed_units_are_rows_without_numbers(engine, answer):
    answer(units(8, unit(8), (0, -1, 0, -1)))
    assert shown(await rows_of(engine, [REGION])) == [
        (4, None, None), (5, None, None), (6, None, None), (7, None, None), (8, 800, 0), (9, None, None),
    ]  # fmt: skip
    answer(units(20))  # The whole region has been removed.
    assert {row[1] for row in shown(await rows_of(engine, [REGION]))} == {None}


async def test_a_record_that_can_not_be_read_has_no_store_time(engine, answer):
    answer(units(4, (400, 90, 7, -1), *map(unit, range(5, 10))))
    first, second, *_ = await rows_of(engine, [REGION])
    assert (first["tag_hash"], first["stored_at"]) == (7, None)
    assert second["stored_at"] is not None


@pytest.mark.parametrize("code", [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, 3])
async def test_refused_units_are_rows_without_numbers(engine, answer, transport, code):
    answer(units(4, unit(4)), refuse(code))
    assert shown(await rows_of(engine, [REGION])) == [(4, 400, 0), *((number, None, None) for number in range(5, 10))]
    assert len(transport.sent(RequestCode.GANTRY_UNITS)) == 2


async def test_a_broker_is_asked_again_before_it_is_given_up(engine, answer, transport):
    answer(refuse(ResponseCode.SYSTEM_BUSY), units(4, *map(unit, range(4, 10))))
    assert shown(await rows_of(engine, [REGION]))[-1] == (9, 900, 1)
    transport.down("a:10911")
    assert {row[1] for row in shown(await rows_of(engine, [REGION]))} == {None}


async def test_groups_waiting_at_the_same_message_are_read_once(engine, answer, transport):
    answer(units(4, *map(unit, range(4, 10))))
    rows = await rows_of(engine, [REGION, Region("T", "a", 0, 4, 10, "h")])
    assert [row["group"] for row in rows] == ["g"] * 6 + ["h"] * 6
    assert len(transport.sent(RequestCode.GANTRY_UNITS)) == 1


async def test_only_requested_rows_are_made(engine, answer):
    answer(units(4, (0, -1, 0, -1), *map(unit, range(5, 10))))
    assert shown(await rows_of(engine, [REGION], EqualTo(("tag_hash",), 1))) == [(5, 500, 1), (7, 700, 1), (9, 900, 1)]
    answer(units(4, (0, -1, 0, -1), *map(unit, range(5, 10))))
    some = await rows_of(engine, [REGION], In(("tag_hash",), (0, 2**70)), LessThan(("queue_offset",), 8))
    assert [row[0] for row in shown(some)] == [6]


@pytest.mark.parametrize(
    ("start", "end", "filters", "region"),
    [
        (None, None, (), (4, 10)),
        (Position(PositionKind.OFFSET, 5), Position(PositionKind.OFFSET, 7), (), (5, 7)),
        (Position(PositionKind.OFFSET, 1), Position(PositionKind.LATEST), (), (4, 10)),
        (Position(PositionKind.EARLIEST), Position(PositionKind.TIME, 5), (), (4, 10)),
        (Position(PositionKind.LATEST), None, (), None),
        (None, Position(PositionKind.EARLIEST), (), None),
        (Position(PositionKind.OFFSET, 10), None, (), None),
        (None, None, (GreaterThanOrEqual(("queue_offset",), 6), LessThan(("queue_offset",), 8)), (6, 8)),
        (None, None, (In(("queue_offset",), (5, 7, 70)),), (5, 10)),
        (None, None, (In(("queue_offset",), ()),), None),
    ],
)
def test_a_region_is_the_requested_part_of_the_unconsumed_messages(start, end, filters, region):
    pushed, _ = push_down(list(filters), exact=backlog.EXACT)
    options = Options("backlog", namesrv=("ns:1",), start=start, end=end)
    found = backlog.region_of(GroupPosition("g", "T", "a", 0, 0, 10, 4), options, pushed)
    assert (None if found is None else (found.start, found.end)) == region


@pytest.mark.parametrize(
    ("committed", "region"), [(None, None), (10, None), (11, None), (1, (2, 10)), (2, (2, 10)), (9, (9, 10))]
)
def test_a_region_begins_at_the_first_message_that_is_unconsumed_and_not_removed(committed, region):
    found = backlog.region_of(GroupPosition("g", "T", "a", 0, 2, 10, committed), OPTIONS, Pushed())
    assert (None if found is None else (found.start, found.end)) == region


async def test_a_row_has_the_match_of_its_group_and_the_time_of_the_request(engine, answer):
    answer(units(4, *map(unit, (4, 5)), (0, -1, 0, -1), *map(unit, (7, 8, 9))))
    everything = replace(REGION, group="all")
    view = BrokerView("a", "a:10911", "", read_at_ms=5_000)
    filters = {
        "g": {"T": GroupFilter("odd", codes=(1,), tags=frozenset({"odd"}))},
        "sql": {"T": GroupFilter.of_expression("SQL92", "a > 5")},
        "class": {"T": GroupFilter("x", error="no")},
    }
    survey = Survey({"a": view}, Metadata(has_database=True, filters=filters), [])
    others = [replace(REGION, group=group) for group in ("sql", "class")]
    survey_facts = backlog.survey_facts_of(survey, [REGION, everything, *others])
    assert survey_facts["g", "T", "a"] == backlog.SurveyFacts((1,), ("odd",), 5_000)
    reason = "an SQL92 filter can't be applied to ConsumeQueue units: a > 5"
    assert survey_facts["all", "T", "a"] == backlog.SurveyFacts(None, None, 5_000)
    assert survey_facts["sql", "T", "a"] == backlog.SurveyFacts(None, None, 5_000, reason, "a > 5")
    assert survey_facts["class", "T", "a"] == backlog.SurveyFacts(None, None, 5_000, "no")
    (parts,) = [parts async for parts in backlog._read(engine, [REGION])]
    rows = backlog.units_batch(BACKLOG, [*parts, (everything, parts[0][1])], Pushed(), survey_facts).to_pylist()
    assert [row["is_wanted"] for row in rows] == [
        False, True, None, True, False, True,
        True, True, None, True, True, True,
    ]  # fmt: skip
    assert [rows[0]["wanted_tags"], rows[6]["wanted_tags"]] == [["odd"], None]
    assert {row["read_at"].timestamp() for row in rows} == {5.0}
    rows = backlog.units_batch(BACKLOG, [(others[0], parts[0][1])], Pushed(), survey_facts).to_pylist()
    assert {(row["is_wanted"], row["filter_error"]) for row in rows} == {(True, reason), (None, reason)}
    assert {row["sql_filter"] for row in rows} == {"a > 5"}
