"""Makes Arrow batches with exactly the types that Spark expects, and packs rows that travel inside a task.

Spark makes an Arrow schema from the data source's schema, and compares it with the schema of each batch, including
nullability. If they differ, Spark fails the task. So batches get the schema that Spark passed to the reader, never one
of our own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from spark.datasource.partitions import RowsPartition, chunks

ROWS_PER_BATCH: Final = 8_192
ROWS_PER_TASK_MAX: Final = 20_000
"""The limit for the rows that travel inside a task: about 100 kB."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema."""
    return to_arrow_schema(schema, timezone="UTC")


def record_batch(schema: StructType, columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Make a batch of plain values. Each column is a list; timestamps are wall ms; None is null."""
    arrow = arrow_schema(schema)
    arrays = []
    for struct_field, arrow_field in zip(schema.fields, arrow, strict=True):
        values: Sequence[Any] = columns[struct_field.name]
        if isinstance(struct_field.dataType, TimestampType):
            values = [None if value is None else value * 1_000 for value in values]
        arrays.append(pa.array(values, type=arrow_field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def rows_to_columns(schema: StructType, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the columns of rows. The values of a row are in the order of the schema."""
    names = schema.fieldNames()
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def pack_rows(schema: StructType, rows: Sequence[Sequence[Any]]) -> bytes:
    """Pack rows so that they can travel inside a task. The values of a row are in the order of the schema."""
    batch = record_batch(schema, rows_to_columns(schema, rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_rows(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of packed rows."""
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                yield batch.slice(start, ROWS_PER_BATCH)


def plan_rows(schema: StructType, rows: Sequence[Sequence[Any]], rows_max: int) -> list[InputPartition]:
    """Return the tasks that pass on the given rows, which were read while planning."""
    return [RowsPartition(pack_rows(schema, part)) for part in chunks(rows, min(rows_max, ROWS_PER_TASK_MAX))]
