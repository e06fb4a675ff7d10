"""Results on a file system that only Spark can reach: Hadoop's `viewfs`, whose names stand for folders elsewhere."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from spark.outputs import Output, OutputRefusedError, open_output

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
JOB = "lag_report"
RUN, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The URI of a folder; `tmp_path/far` is where it really lies."""
    (tmp_path / "far").mkdir()
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    # Hadoop keeps a file system by its name, with the settings of the first time.
    name = f"far-{uuid4().hex}"
    key = f"fs.viewfs.mounttable.{name}.link./reports"
    conf.set(key, f"file://{tmp_path}/far")
    yield f"viewfs://{name}/reports"
    conf.unset(key)


@pytest.fixture
def open_run(spark: SparkSession) -> Callable[..., Output]:
    def open_one(output: str, run_id: UUID = RUN) -> Output:
        return open_output(spark, output, job=JOB, run_id=run_id, day=NOON)

    return open_one


def names(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.suffix != ".crc")


def write(output: Output, count: int, page: str, folder: Path) -> None:
    """Put so many rows and a page there."""
    rows = folder / "completed.parquet"
    parquet.write_table(pa.table({"lag_messages": range(count)}), rows)
    output.write(rows, page)


def test_rows_and_page_go_where_only_spark_can_write(
    spark: SparkSession, far: str, open_run: Callable[..., Output], tmp_path: Path
) -> None:
    output = open_run(f"{far}/")
    write(output, 2_500, "<p>é</p>", tmp_path)
    assert (output.html, output.parquet) == (f"{far}/{JOB}/{RUN}.html", f"{far}/{JOB}/day=2026-11-21/run={RUN}")
    assert (tmp_path / "far" / JOB / f"{RUN}.html").read_text(encoding="utf-8") == "<p>é</p>"
    read = spark.read.option("basePath", f"{far}/{JOB}").parquet(f"{far}/{JOB}/day=*")
    assert {str(row["run"]) for row in read.select("run").distinct().collect()} == {str(RUN)}
    assert read.count() == 2_500
    assert names(tmp_path / "far" / JOB) == [f"{RUN}.html", f"day=2026-11-21/run={RUN}/part-0.parquet"]
    assert not list(Path.cwd().glob("viewfs*"))


@pytest.mark.parametrize("is_far", [True, False])
def test_an_attempt_replaces_what_the_one_before_it_wrote(
    spark: SparkSession, far: str, open_run: Callable[..., Output], tmp_path: Path, is_far: bool
) -> None:
    for count in (30, 7):
        output = open_run(far if is_far else str(tmp_path / "far"))
        write(output, count, f"page of {count}", tmp_path)
    assert (tmp_path / "far" / JOB / f"{RUN}.html").read_text() == "page of 7"
    assert spark.read.parquet(output.parquet).count() == 7


@pytest.mark.parametrize("is_far", [True, False])
def test_what_a_run_left_is_removed_and_nothing_else(
    far: str, open_run: Callable[..., Output], tmp_path: Path, is_far: bool
) -> None:
    for run_id in (RUN, OTHER):
        output = open_run(far if is_far else str(tmp_path / "far"), run_id)
        write(output, 3, "page", tmp_path)
    kept = [name for name in names(tmp_path / "far") if str(OTHER) in name]
    output.remove_others([(JOB, RUN), ("backlog_profile", uuid4())])
    assert names(tmp_path / "far") == kept
    output.remove()
    assert names(tmp_path / "far") == []
    output.remove()


def test_an_output_of_no_file_system_is_refused_before_anything_is_computed(open_run: Callable[..., Output]) -> None:
    with pytest.raises(OutputRefusedError, match=r"^nofs://bucket/reports: can't be used: .*No FileSystem for scheme"):
        open_run("nofs://bucket/reports")


def test_an_output_that_can_not_be_written_to_is_worth_another_attempt(
    open_run: Callable[..., Output], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for output in ("file:/proc/reports", f"file:{tmp_path}/file/reports"):
        with pytest.raises(OSError, match=rf"^{output}: can't be written to: "):
            open_run(output)


def test_a_folder_that_can_not_be_written_to_is_found_before_anything_is_computed(
    open_run: Callable[..., Output], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for output in ("/proc/reports", f"{tmp_path}/file/reports"):
        with pytest.raises(OSError, match="directory"):
            open_run(output)
    folder = tmp_path / "Päth with space"
    open_run(str(folder))
    assert names(folder) == []
