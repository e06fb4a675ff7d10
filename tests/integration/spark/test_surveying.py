"""The look at the brokers beside Spark: the same rows as kind `survey`, wherever they are looked up, and every failure."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from gantry.client.errors import ClientError
from spark.datasource.columns.batches import plan_rows
from spark.datasource.kinds.survey import SurveyReader
from spark.datasource.options import OptionError
from spark.datasource.schema import SURVEY
from spark.jobs import surveying
from spark.jobs.surveying import NotSurveyedError, start_survey

KEYS = ("group", "topic", "broker", "queue_id")
OPTIONS = {"namesrv": "127.0.0.1:1"}


class Asking(InputPartition):
    """A row that is looked up."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id


def row(queue_id: int) -> tuple[Any, ...]:
    values = {**dict.fromkeys(SURVEY.fieldNames()), "group": "g", "topic": "t", "broker": "b", "queue_id": queue_id}
    return tuple(values[name] for name in SURVEY.fieldNames())


def read(self: DataSourceReader, partition: InputPartition):
    if isinstance(partition, Asking):
        (planned,) = plan_rows(SURVEY, [row(partition.queue_id)], 10)
        yield from SurveyReader.real_read(self, planned)
    else:
        yield from SurveyReader.real_read(self, partition)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch):
    """A function that says which rows are known and which are to be looked up."""
    monkeypatch.setattr(SurveyReader, "real_read", SurveyReader.read, raising=False)
    monkeypatch.setattr(SurveyReader, "read", read)

    def plan(known: int, broker_queries: int) -> None:
        partitions = plan_rows(SURVEY, [row(number) for number in range(known)], 3)
        partitions += [Asking(100 + number) for number in range(broker_queries)]
        monkeypatch.setattr(SurveyReader, "partitions", lambda self: partitions)

    return plan


@pytest.mark.parametrize(("known", "broker_queries"), [(0, 0), (4, 0), (0, 1), (7, 4)])
def test_few_are_looked_up_without_spark(planned, known: int, broker_queries: int) -> None:
    planned(known, broker_queries)
    found = start_survey(OPTIONS).result(10)
    assert found.left == []
    table = found.table(None)
    assert table["queue_id"].to_pylist() == [*range(known), *range(100, 100 + broker_queries)]
    assert table.schema.names == SURVEY.fieldNames()


class Tasks:
    """Spark's workers, which have the reader as it is and not as this test changed it."""

    def __init__(self, partitions: list[InputPartition]) -> None:
        self.partitions = partitions

    def flatMap(self, work):  # Spark's name.
        self.batches = [batch for partition in self.partitions for batch in work(partition)]
        return self

    def collect(self) -> list[pa.RecordBatch]:
        return self.batches


def test_many_are_looked_up_by_sparks_workers(planned, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(2, surveying.DRIVER_LOOKUPS_MAX + 1)
    found = start_survey(OPTIONS).result(10)
    assert len(found.left) == surveying.DRIVER_LOOKUPS_MAX + 1

    class Session:
        class sparkContext:  # noqa: N801 - Spark's name.
            @staticmethod
            def parallelize(partitions, count):
                assert count == len(partitions)
                return Tasks(partitions)

    assert found.table(Session)["queue_id"].to_pylist() == [0, 1, *range(100, 101 + surveying.DRIVER_LOOKUPS_MAX)]


def test_batches_come_back_from_sparks_workers(spark: SparkSession) -> None:
    partitions = plan_rows(SURVEY, [row(number) for number in range(5)], 1)
    reader = SurveyReader(surveying.kinds.read_options({**OPTIONS, "kind": "survey"}), SURVEY)
    table = surveying.Survey(reader, [], partitions).table(spark)
    assert sorted(table["queue_id"].to_pylist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClientError("no name server answers"), "ClientError: no name server answers"),
        (TimeoutError(), "TimeoutError: the brokers took too long"),
    ],
)
def test_what_went_wrong_is_said_where_the_rows_are_wanted(monkeypatch: pytest.MonkeyPatch, error, reason) -> None:
    def fail(self: SurveyReader) -> list[InputPartition]:
        raise error

    monkeypatch.setattr(SurveyReader, "partitions", fail)
    with pytest.raises(NotSurveyedError, match=reason):
        start_survey(OPTIONS).result(10)


def test_an_option_that_can_not_be_used_is_named() -> None:
    with pytest.raises(OptionError, match="namesrv"):
        start_survey({"namesrv": "nowhere"}).result(10)
