"""Rows on their way from Spark to their place, in files of this machine."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark.jobs.lag_report import TABLE
from spark.parquet import store_rows
from spark.storedrows import Finished, StoredRows, complete

NOON = datetime(2026, 11, 21, 12, 0, 0, 123_000, tzinfo=UTC)
ROWS = (
    "concat('g', id) AS `group`",
    "id AS lag_messages",
    "timestamp '2026-11-21 12:00:00.123Z' AS as_of",
    "array(named_struct('tag', 'A', 'messages', id)) AS top_tags",
    "'{\"readings\": 3}' AS evidence",
)
FIRST = {
    "group": "g0", "lag_messages": 0, "as_of": NOON, "top_tags": [{"tag": "A", "messages": 0}],
    "evidence": {"readings": 3},
}  # fmt: skip
LATE_FIRST = "if(id < 10000, sha2(repeat(string(id), 2000), 512), null) AS work"
"""The first third of 30,000 rows takes longer than the others."""


@pytest.fixture
def store(tmp_path: Path) -> Callable[[DataFrame], StoredRows]:
    def store_one(frame: DataFrame) -> StoredRows:
        return StoredRows(store_rows(frame, tmp_path / "computed"), json=TABLE.json)

    return store_one


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_are_those_of_the_frame_in_its_order(
    spark: SparkSession, store: Callable[[DataFrame], StoredRows], partitions: int
) -> None:
    rows = store(spark.range(30_000, numPartitions=partitions).selectExpr(*ROWS, LATE_FIRST))
    assert len(rows) == 30_000
    assert len(rows.files) == 3, "no file of more than 10,000 rows"
    assert [row["lag_messages"] for row in rows] == list(range(30_000))
    first = next(iter(rows))
    assert len(first.pop("work")) == 128
    assert first == FIRST


def test_few_rows_are_read_once(
    spark: SparkSession, store: Callable[[DataFrame], StoredRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = store(spark.range(7).selectExpr(*ROWS))
    read = list(rows)
    assert read[0] == FIRST
    monkeypatch.setattr(parquet, "ParquetFile", None)
    assert list(rows) == read


@pytest.mark.parametrize("partitions", [1, 3])
def test_no_rows_are_a_report_too(
    spark: SparkSession, store: Callable[[DataFrame], StoredRows], tmp_path: Path, partitions: int
) -> None:
    computed = store(spark.range(10, numPartitions=partitions).where("id > 99").selectExpr(*ROWS))
    rows = complete(computed, tmp_path / "completed.parquet", Finished({"twice": pa.int64()}))
    assert (len(rows), list(rows)) == (0, [])
    assert parquet.read_schema(tmp_path / "completed.parquet").names[-2:] == ["evidence", "twice"]


def test_columns_that_need_all_rows_come_behind_the_others(
    spark: SparkSession, store: Callable[[DataFrame], StoredRows], tmp_path: Path
) -> None:
    def fill(row: dict[str, Any]) -> None:
        row["twice"] = None if row["lag_messages"] == 1 else 2 * row["lag_messages"]
        if row["lag_messages"] == 2_100:
            row["evidence"] = {**row["evidence"], "late": "é"}

    computed = store(spark.range(2_500).selectExpr(*ROWS))
    rows = complete(computed, tmp_path / "completed.parquet", Finished({"twice": pa.int64()}, fill))
    read = spark.read.parquet(str(tmp_path / "completed.parquet")).orderBy("lag_messages").toArrow().to_pylist()
    assert [row["twice"] for row in read] == [0, None, *range(4, 5_000, 2)]
    assert {row["evidence"] for row in read if row["lag_messages"] != 2_100} == {'{"readings": 3}'}, "as it was"
    assert list(rows)[2_100]["evidence"] == {"readings": 3, "late": "é"}


@pytest.mark.parametrize("bad", ["id = 29999", "id = 5", "true"])
def test_a_failure_of_the_computation_is_what_spark_says(
    spark: SparkSession, store: Callable[[DataFrame], StoredRows], bad: str
) -> None:
    frame = spark.range(30_000, numPartitions=3).selectExpr(
        f"if({bad}, raise_error('no such row'), id) AS lag_messages"
    )
    with pytest.raises(PySparkException, match="no such row"):
        store(frame)


def test_a_disk_that_is_full_is_what_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet, "write_table", no_room)
        with pytest.raises(OSError, match="No space left on device"):
            store_rows(spark.range(30_000, numPartitions=3), tmp_path / "full")
    assert len(store_rows(spark.range(3, numPartitions=1), tmp_path / "next")) == 1, "the session is as good as before"
