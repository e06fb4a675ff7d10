"""Kind `offsets`: the committed offset and the lag of each group in each queue that it consumes.

Planning surveys the brokers once. The tasks only pass on the rows that it found. So all rows are of one moment, and a
task that runs again returns the same rows.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.datasource.brokers import live
from spark.datasource.brokers.positions import GroupPosition, find_positions
from spark.datasource.columns.batches import plan_rows, unpack_rows
from spark.datasource.partitions import RowsPartition
from spark.datasource.pushdown import NarrowedReader

EXACT = ("group", "topic", "broker", "queue_id")


class OffsetsReader(NarrowedReader):
    """Reads kind `offsets`."""

    exact = EXACT

    def partitions(self) -> list[InputPartition]:
        """Survey the brokers and return the tasks. Raises SurveyError, ClientError, TimeoutError."""
        found = live.run(self._options, lambda engine: find_positions(engine, self._options, self._pushed))
        rows = [offsets_row(position) for position in found.positions]
        return plan_rows(self._schema, rows, self._options.max_rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows that planning found."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)


def offsets_row(position: GroupPosition) -> tuple[Any, ...]:
    """Return a position as a row, in the order of the schema."""
    return (
        position.group,
        position.topic,
        position.broker,
        position.queue_id,
        position.min_offset,
        position.max_offset,
        position.committed,
        position.lag,
        position.remark,
    )
