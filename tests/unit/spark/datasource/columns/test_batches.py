"""Batches have the types and nulls that Spark expects; rows travel with tasks unchanged."""

from datetime import UTC, datetime

from pyspark.sql.types import StructType

from gantry.model.group import SubscriptionGroup
from gantry.remoting.bodies import ClientConnection, ConsumerConnection
from spark.datasource.brokers.metadata import Metadata
from spark.datasource.brokers.survey import BrokerView, Survey
from spark.datasource.columns.batches import (
    ROWS_PER_BATCH,
    arrow_schema,
    pack_rows,
    plan_rows,
    record_batch,
    unpack_rows,
)
from spark.datasource.filters import ALL
from spark.datasource.kinds.groups import groups_row
from spark.datasource.partitions import RowsPartition
from spark.datasource.schema import GROUPS, HEADS, OFFSETS

HEAD = ("g", "T", "a", 0, None, 5, 50, 1_795_253_400_123, None, None, 7, [{"tag": None, "messages": 2}], 2, None)


def test_rows_travel_unchanged():
    none = ("g", "T", "a", 1, *([None] * 9), "why")
    (batch,) = unpack_rows(pack_rows(HEADS, [HEAD, none]))
    assert batch.schema.equals(arrow_schema(HEADS))
    first, second = batch.to_pylist()
    assert first["first_stored_at"] == datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
    assert (first["broker_now"].microsecond, first["tags"]) == (7_000, [{"tag": None, "messages": 2}])
    assert (second["tags"], second["first_offset"], second["error"]) == (None, None, "why")


def test_many_rows_are_several_tasks_of_several_batches():
    rows = [("g", "T", "a", number, 0, 1, None, None, None) for number in range(20_001)]
    tasks = plan_rows(OFFSETS, rows, 250_000)
    assert plan_rows(OFFSETS, [], 250_000) == []
    batches = [
        [batch.num_rows for batch in unpack_rows(task.data)] for task in tasks if isinstance(task, RowsPartition)
    ]
    assert batches == [[ROWS_PER_BATCH, ROWS_PER_BATCH, 20_000 - 2 * ROWS_PER_BATCH], [1]]


def test_a_batch_without_rows_has_the_schema():
    batch = record_batch(GROUPS, {name: [] for name in GROUPS.fieldNames()})
    assert batch.schema.equals(arrow_schema(GROUPS))
    assert isinstance(GROUPS, StructType)


def test_a_group_has_its_state_at_each_broker():
    here = BrokerView("a", "a:1", "C", groups={"g": SubscriptionGroup("g", consume_enable=False)})
    away = BrokerView("b", None, "C", error="broker b: away")
    survey = Survey({"a": here, "b": away}, Metadata(), ["g", "h"])
    here.instances = {"g": ConsumerConnection(), "h": "broker a: no right"}
    assert groups_row(survey, here, "g") == ("g", "a", 0, False, None, None)
    assert groups_row(survey, here, "h") == ("h", "a", None, None, None, "broker a: no right")
    assert groups_row(survey, away, "g") == ("g", "b", None, None, None, "broker b: away")
    survey.metadata = Metadata(has_database=True, filters={"g": {"T": ALL}}, connected=frozenset({"g"}))
    assert [groups_row(survey, here, group)[4] for group in "gh"] == [True, None]
    survey.metadata = Metadata(has_database=True, filters={"g": {"T": ALL}}, pulling=frozenset({"g", "h"}))
    # A gateway that pulls over HTTP is a client; what a broker does not say stays unknown.
    assert [groups_row(survey, here, group)[2] for group in "gh"] == [1, None]
    survey.metadata = Metadata(has_database=True, filters={"g": {"T": ALL}}, connected=frozenset({"g"}))
    away.instances = {"g": ConsumerConnection(), "h": ConsumerConnection()}
    here.instances = {"g": ConsumerConnection(), "h": ConsumerConnection()}
    assert [groups_row(survey, here, group)[4] for group in "gh"] == [True, False]
    survey.metadata = Metadata(has_database=True, error="Postgres is away")
    assert groups_row(survey, away, "g")[4:] == (None, "broker b: away; Postgres is away")
    here.instances["g"] = ConsumerConnection((ClientConnection(client_addr="1:1", client_id="1@1"),))
    assert [groups_row(survey, view, "g")[2:5] for view in (here, away)] == [(1, False, True), (0, None, True)]
