"""A frame that is planned once in a session and fed with other rows in each run.

To build a report's frame takes thousands of calls from Python into the JVM, several seconds of a small report. So the
frame is kept as a temporary view of the session, over Parquet files that hold a run's rows. A run writes its files,
has Spark list them anew, and asks the view again: Spark then optimizes and executes the kept plan, and compiles nothing,
since the code that it generates is the same, where it generates any.

    run 1   write survey/1.parquet, samples/1.parquet    build, CREATE TEMPORARY VIEW    SELECT
    run 2   write survey/2.parquet, samples/2.parquet    REFRESH TABLE                   SELECT

Nothing of a run may lie in the plan: moments and other parameters travel as columns. A file's name is never used twice
and those of the run before are removed, so a plan that was not refreshed fails; it can't see old rows.

A cluster's executors can't read the driver's files, and a session there does one run. So there the frame is built over
rows that travel with the plan.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark.master import is_local_master

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
WHOLE_STAGE: Final = "spark.sql.codegen.wholeStage"
CODE_FACTORY: Final = "spark.sql.codegen.factoryMode"
WHOLE_QUERY_ROWS_MAX: Final = 200_000
"""Up to so many rows Spark plans the whole query at once. To plan stage by stage, by the size of what came before, costs
half a second of a small report and pays off where joins and partitions are large."""
INTERPRETED_ROWS_MAX: Final = 8_000
"""Up to so many rows expressions are interpreted. To generate code for a report's and to compile it takes three seconds of a
fresh JVM's CPU; even in later runs, which find it compiled, it is not faster below this number."""
ROW_GROUP_ROWS: Final = 128 * 1_024
"""One task's share of a file."""


def fed_frame(
    spark: SparkSession,
    name: str,
    tables: Mapping[str, pa.Table],
    build: Callable[[Mapping[str, DataFrame]], DataFrame],
    *,
    feed: str,
) -> DataFrame:
    """Return what `build` makes of some tables.

    Args:
        spark: The session, which keeps what was built.
        name: Of the kept frame; the tables of a name have the same schemas in each call.
        tables: The rows, by name.
        build: Given a frame for each table, returns the result; called once in a session in local mode. The result must
            depend on nothing but the frames.
        feed: A name for these rows that was never used before in this session; part of a file's name.

    Returns:
        A frame for one query: the next call takes its rows away. Until `plan_as_usual` the session plans for rows as
        many as these.

    Raises:
        OSError: The files can't be written.
    """
    _plan_for(spark, sum(table.num_rows for table in tables.values()))
    if not is_local_master(spark.sparkContext.master or ""):
        return build({key: spark.createDataFrame(table) for key, table in tables.items()})
    # Spark's own folder: it is removed with the session, even when this process is killed.
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
    """Undo what `fed_frame` set in the session, for whatever comes next."""
    for setting in (ADAPTIVE, WHOLE_STAGE, CODE_FACTORY):
        spark.conf.unset(setting)


def _plan_for(spark: SparkSession, rows: int) -> None:
    is_interpreted = rows <= INTERPRETED_ROWS_MAX
    wanted = {
        ADAPTIVE: str(rows > WHOLE_QUERY_ROWS_MAX).lower(),
        WHOLE_STAGE: str(not is_interpreted).lower(),
        CODE_FACTORY: "NO_CODEGEN" if is_interpreted else "FALLBACK",
    }
    told = spark.sparkContext.getConf()
    for setting, value in wanted.items():
        # Gantry sets none of them when a session starts. If one is set, spark-submit or a settings file did it, and wins.
        if not told.contains(setting):
            spark.conf.set(setting, value)


def _replace(folder: Path, table: pa.Table, feed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    before = list(folder.iterdir())
    # Not "x" mode, but by name: a feed that comes twice would leave nothing, and Spark could take old rows for new.
    target = folder / f"{feed}.parquet"
    if target in before:
        raise FileExistsError(f"{target}: these rows were fed before")
    parquet.write_table(table, target, row_group_size=ROW_GROUP_ROWS)
    for path in before:
        path.unlink()
