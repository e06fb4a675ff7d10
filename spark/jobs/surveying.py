"""Surveys the brokers for a report while the Spark session starts.

Spark plans and reads kind `survey` of the data source in Python processes, which it can only start after the session.
So a job runs the same reader in a thread, while the session starts. Only if there are many first messages to look up,
Spark's workers do that part.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from gantry.client.errors import ClientError
from spark.datasource import options as kinds
from spark.datasource.columns.batches import arrow_schema
from spark.datasource.partitions import RowsPartition
from spark.datasource.schema import SURVEY

DRIVER_LOOKUPS_MAX: Final = 4
"""The number of tasks, with a thousand first messages each, that this process does itself. More are faster on all
cores."""


class NotSurveyedError(Exception):
    """The survey of the brokers failed; the message is the reason. Another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of the survey in this process, and the partitions that are left for Spark's workers."""

    reader: DataSourceReader
    batches: Sequence[pa.RecordBatch]
    left: Sequence[InputPartition]

    def table(self, spark: SparkSession) -> pa.Table:
        """Return all rows of kind `survey`. Raises PySparkException."""
        reader = self.reader
        batches = [*self.batches]
        if self.left:
            tasks = spark.sparkContext.parallelize(self.left, len(self.left))
            batches += tasks.flatMap(lambda partition: list(reader.read(partition))).collect()
        return pa.Table.from_batches(batches, arrow_schema(SURVEY))


def start_survey(options: Mapping[str, str]) -> "Future[Survey]":
    """Start a survey of the brokers in a thread of its own.

    Args:
        options: The options of the data source, without the kind.

    Returns:
        A future with the survey, or with its error: OptionError, NotSurveyedError.
    """
    future: Future[Survey] = Future()

    def run() -> None:
        try:
            future.set_result(survey(options))
        except BaseException as error:  # noqa: BLE001 # boundary: the reader of the future gets it.
            future.set_exception(error)

    # The thread is a daemon, so that a job that fails meanwhile does not wait for brokers.
    threading.Thread(target=run, name="survey", daemon=True).start()
    return future


def survey(options: Mapping[str, str]) -> Survey:
    """Survey the brokers, and look up the first messages if there are few.

    Raises:
        OptionError: An option is invalid.
        NotSurveyedError: No name server or no broker answers, or the survey took too long.
    """
    # These imports load the whole client engine. In this thread they take no extra time, because the JVM starts
    # meanwhile.
    from spark.datasource.brokers.survey import SurveyError  # noqa: PLC0415
    from spark.datasource.kinds.survey import SurveyReader  # noqa: PLC0415

    reader = SurveyReader(kinds.read_options({**options, "kind": kinds.SURVEY}), SURVEY)
    known: list[InputPartition] = []
    asking: list[InputPartition] = []
    try:
        for partition in reader.partitions():
            (known if isinstance(partition, RowsPartition) else asking).append(partition)
        is_much = len(asking) > DRIVER_LOOKUPS_MAX
        here = known if is_much else known + asking
        batches = [batch for partition in here for batch in reader.read(partition)]
    except (ClientError, SurveyError, TimeoutError) as error:
        raise NotSurveyedError(f"{type(error).__name__}: {str(error) or 'the brokers took too long'}") from error
    return Survey(reader, batches, asking if is_much else [])
