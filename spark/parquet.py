"""Writes the rows of a frame to Parquet files of this machine, a batch at a time.

The JVM sends the rows as for DataFrame.toArrow: as Arrow batches, those of a partition when its task has ended. toArrow
keeps all batches until it knows their order. This module writes each batch to a file of its own at once, and orders the
files at the end. Spark's own Parquet writer would do the same, but a small report would wait for the JVM to load it.
"""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import read_int
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import local_connect_and_auth


def store_rows(frame: DataFrame, folder: Path) -> list[Path]:
    """Compute a frame once and write its rows into a new folder; return the files, in the order of the frame.

    Memory: this process holds a batch, of 10,000 rows at most (spark.sql.execution.arrow.maxRecordsPerBatch); the JVM
    holds the compressed batches of partitions whose tasks have just ended.

    Raises:
        OSError: The folder can't be written.
        Py4JError, PySparkException: The frame can't be computed.
    """
    folder.mkdir()
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    order: list[int] = []
    files: list[Path] = []
    # If a file can't be written, this closes the connection: the JVM would wait for a reader otherwise.
    with closing(_arriving(frame, order)) as batches:
        for batch in batches:
            files.append(folder / f"{len(files)}.parquet")
            parquet.write_table(pa.Table.from_batches([batch]).cast(schema), files[-1], compression="zstd")
    if not files:
        # The caller needs a schema.
        files, order = [folder / "none.parquet"], [0]
        parquet.write_table(schema.empty_table(), files[0])
    return [files[number] for number in order]


def _arriving(frame: DataFrame, order: list[int]) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of a frame as they arrive. After the last one, fill `order`.

    The item n of `order` is the number, by arrival, of the batch that is at place n in the frame.
    """
    # The public API returns all batches at once, or starts Python processes for the tasks, which takes a second.
    java: Any = frame._jdf  # noqa: SLF001
    port, secret, server = java.collectAsArrowToPython()
    stream, connection = local_connect_and_auth(port, secret)
    with connection, stream:
        # The first batch takes as long as the computation.
        connection.settimeout(None)
        try:
            yield from pa.ipc.open_stream(stream)
            # After a failure the count is -1.
            count = read_int(stream)  # type: ignore[no-untyped-call]
            order += [read_int(stream) for _ in range(count)]  # type: ignore[no-untyped-call]
        except (OSError, EOFError, pa.ArrowInvalid):
            # The stream has ended early. The JVM knows why.
            _raise_failure(server)
            raise
    _raise_failure(server)


def _raise_failure(server: Any) -> None:
    with unwrap_spark_exception():
        server.getResult()
