"""Frames that are built once in a session and get new rows in each run.

Building a report's frame takes thousands of calls from Python into the JVM, which is several seconds of a small report.
So the frame is kept as a temporary view of the session, over Parquet files with the rows of a run. Each run writes its
files, makes Spark list them again, and queries the view. Then Spark optimizes and executes the kept plan. It compiles
nothing, because the generated code, if there is any, is the same as before.

    run 1   write survey/1.parquet, samples/1.parquet    build, CREATE TEMPORARY VIEW    SELECT
    run 2   write survey/2.parquet, samples/2.parquet    REFRESH TABLE                   SELECT

The plan must not contain data of a run, so moments and other parameters are columns. A file name is never used twice,
and the files of the previous run are removed. So a plan that was not refreshed fails; it can't read old rows.

On a cluster, executors can't read the driver's files, and a session does one run. So there the frame is built over rows
that are part of the plan.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from gantry.runtime.environment import process_environment
from spark.master import UNDER_SUBMIT, is_local_master

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
WHOLE_STAGE: Final = "spark.sql.codegen.wholeStage"
CODE_FACTORY: Final = "spark.sql.codegen.factoryMode"
PARTITIONS: Final = "spark.sql.shuffle.partitions"
WHOLE_QUERY_ROWS_MAX: Final = 200_000
"""Up to this number of rows, Spark plans the whole query at once. Planning stage by stage, by the size of the previous
stage's result, takes half a second of a small report, and pays off only if joins and partitions are large."""
INTERPRETED_ROWS_MAX: Final = 8_000
"""Up to this number of rows, Spark interprets expressions. Generating and compiling code for a report takes three
seconds of processor time of a new JVM. Even in later runs, which find the code compiled, it is not faster below this
number."""
ONE_TASK_ROWS_MAX: Final = 2_000
"""Up to this number of rows, one task does each stage. A further task reads the plan once more, which takes longer than
its share of the rows."""
ROW_GROUP_ROWS: Final = 128 * 1_024
"""The number of rows that one task reads from a file."""


def fed_frame(
    spark: SparkSession,
    name: str,
    tables: Mapping[str, pa.Table],
    build: Callable[[Mapping[str, DataFrame]], DataFrame],
    *,
    feed: str,
) -> DataFrame:
    """Return the frame that `build` makes from some tables.

    Args:
        spark: The session, which keeps the frame.
        name: The name of the kept frame. With the same name, the tables have the same schemas in each call.
        tables: The rows, by name.
        build: Returns the result, given a frame for each table. In local mode it is called once in a session. The
            result must depend only on the frames.
        feed: A name for these rows that is unique in this session; it becomes part of file names.

    Returns:
        A frame for one query: the next call removes its rows. Until `plan_as_usual` is called, the session plans for this
        number of rows.

    Raises:
        OSError: The files can't be written.
    """
    _plan_for(spark, sum(table.num_rows for table in tables.values()))
    if not is_local_master(spark.sparkContext.master or ""):
        return build({key: spark.createDataFrame(table) for key, table in tables.items()})
    # Spark removes its own folder with the session, even if this process is killed.
    folders = {key: Path(SparkFiles.getRootDirectory()) / "fed" / name / key for key in tables}
    for key, table in tables.items():
        _replace(folders[key], table, feed)
    if spark.catalog.tableExists(name):
        spark.catalog.refreshTable(name)
    else:
        frames = {
            key: spark.read.schema(from_arrow_schema(table.schema)).parquet(str(folders[key]))
            for key, table in tables.items()
        }
        build(frames).createTempView(name)
    return spark.table(name)


def plan_as_usual(spark: SparkSession) -> None:
    """Reset the session settings that `fed_frame` has changed."""
    configured = spark.sparkContext.getConf()
    for setting in (ADAPTIVE, WHOLE_STAGE, CODE_FACTORY, PARTITIONS):
        value = configured.get(setting)
        if value is None:
            spark.conf.unset(setting)
        else:
            spark.conf.set(setting, value)


def _plan_for(spark: SparkSession, rows: int) -> None:
    is_interpreted = rows <= INTERPRETED_ROWS_MAX
    wanted = {
        ADAPTIVE: str(rows > WHOLE_QUERY_ROWS_MAX).lower(),
        WHOLE_STAGE: str(not is_interpreted).lower(),
        CODE_FACTORY: "NO_CODEGEN" if is_interpreted else "FALLBACK",
    }
    configured = spark.sparkContext.getConf()
    for setting, value in wanted.items():
        # Gantry sets none of them when a session starts. If one is set, spark-submit or a settings file did it, and
        # wins.
        if not configured.contains(setting):
            spark.conf.set(setting, value)
    usual = configured.get(PARTITIONS)
    # In local mode, Gantry itself sets it when a session starts, unless there is spark-submit.
    is_local = is_local_master(spark.sparkContext.master or "")
    if usual is None:
        _plan_partitions(spark, rows)
    elif is_local and UNDER_SUBMIT not in process_environment():
        spark.conf.set(PARTITIONS, "1" if rows <= ONE_TASK_ROWS_MAX else usual)


def _plan_partitions(spark: SparkSession, rows: int) -> None:
    """Set the number of partitions on a cluster where nobody has set it."""
    # A query that is planned at once has Spark's default of 200 tasks for each shuffle, even for ten rows.
    if rows > WHOLE_QUERY_ROWS_MAX:
        spark.conf.unset(PARTITIONS)
    else:
        wanted = 1 if rows <= ONE_TASK_ROWS_MAX else 2 * spark.sparkContext.defaultParallelism
        spark.conf.set(PARTITIONS, str(wanted))


def _replace(folder: Path, table: pa.Table, feed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    before = list(folder.iterdir())
    # If a name were used twice, Spark could take the old rows for the new ones.
    target = folder / f"{feed}.parquet"
    if target in before:
        raise FileExistsError(f"{target}: these rows were fed before")
    parquet.write_table(table, target, row_group_size=ROW_GROUP_ROWS)
    for path in before:
        path.unlink()
