"""The brokers' numbers of a report, read beside Spark.

Kind `survey` of the data source is planned and read in Python processes that Spark starts, one after the other and not
before its session is there. A report needs no more than the rows. So the job has the same reader look at the brokers in
a thread, while the session starts, and only hands the lookups of many first messages to Spark's workers.
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

LOOKED_UP_HERE_MAX: Final = 4
"""Tasks, of a thousand first messages each. More are looked up faster by all cores."""


class NotSurveyedError(Exception):
    """The look at the brokers failed; the message is the reason. Another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the look at the brokers brought, and what is left to be looked up."""

    reader: DataSourceReader
    batches: Sequence[pa.RecordBatch]
    left: Sequence[InputPartition]

    def table(self, spark: SparkSession) -> pa.Table:
        """Return all rows; see kind `survey`. Raises PySparkException."""
        reader = self.reader
        batches = [*self.batches]
        if self.left:
            tasks = spark.sparkContext.parallelize(self.left, len(self.left))
            batches += tasks.flatMap(lambda partition: list(reader.read(partition))).collect()
        return pa.Table.from_batches(batches, arrow_schema(SURVEY))


def start_survey(options: Mapping[str, str]) -> "Future[Survey]":
    """Begin to look at the brokers, in a thread of its own.

    Args:
        options: Of the data source, but for the kind.

    Returns:
        The survey, or what went wrong: OptionError, NotSurveyedError.
    """
    future: Future[Survey] = Future()

    def look() -> None:
        try:
            future.set_result(survey(options))
        except BaseException as error:  # noqa: BLE001 # boundary: whoever waits for the result gets it.
            future.set_exception(error)

    # A daemon: a job that fails meanwhile does not wait for brokers.
    threading.Thread(target=look, name="survey", daemon=True).start()
    return future


def survey(options: Mapping[str, str]) -> Survey:
    """Look at the brokers, and look up first messages where they are few.

    Raises:
        OptionError: An option can't be used.
        NotSurveyedError: No name server or no broker answers, or it took too long.
    """
    # In the thread, since they load the whole client engine: meanwhile the JVM starts.
    from spark.datasource.brokers.survey import SurveyError  # noqa: PLC0415
    from spark.datasource.kinds.survey import SurveyReader  # noqa: PLC0415

    reader = SurveyReader(kinds.read_options({**options, "kind": kinds.SURVEY}), SURVEY)
    known: list[InputPartition] = []
    asking: list[InputPartition] = []
    try:
        for partition in reader.partitions():
            (known if isinstance(partition, RowsPartition) else asking).append(partition)
        is_much = len(asking) > LOOKED_UP_HERE_MAX
        here = known if is_much else known + asking
        batches = [batch for partition in here for batch in reader.read(partition)]
    except (ClientError, SurveyError, TimeoutError) as error:
        raise NotSurveyedError(f"{type(error).__name__}: {str(error) or 'the brokers took too long'}") from error
    return Survey(reader, batches, asking if is_much else [])
