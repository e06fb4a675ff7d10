"""Kind `offsets`: how far each group is in each queue it consumes.

All of it is one look at the brokers, made while planning: tasks only hand on what was found, so that all rows are of
one moment and a task that is run again gives the same.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.datasource import live
from spark.datasource.batches import plan_rows, unpack_rows
from spark.datasource.partitions import RowsPartition
from spark.datasource.places import Place, find_places
from spark.datasource.pushdown import NarrowedReader

EXACT = ("group", "topic", "broker", "queue_id")


class OffsetsReader(NarrowedReader):
    """Reads kind `offsets`."""

    exact = EXACT

    def partitions(self) -> list[InputPartition]:
        """Look at the brokers. Raises SurveyError, ClientError, TimeoutError."""
        found = live.run(self._options, lambda engine: find_places(engine, self._options, self._pushed))
        rows = [offsets_row(place) for place in found.places]
        return plan_rows(self._schema, rows, self._options.max_rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what was found."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)


def offsets_row(place: Place) -> tuple[Any, ...]:
    """Return a place in the order of the schema."""
    return (
        place.group,
        place.topic,
        place.broker,
        place.queue_id,
        place.min_offset,
        place.max_offset,
        place.committed,
        place.lag,
        place.remark,
    )
