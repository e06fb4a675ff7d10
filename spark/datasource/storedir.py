"""Kinds `messages`, `backlog` and `offsets` from a store's folder, read without a broker."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark.datasource.options import OptionError, Options


class StoreDirReader(DataSourceReader):
    """Reads a store that is not running."""

    def __init__(self, kind: str, options: Options, schema: StructType) -> None:
        self._kind, self._options, self._schema = kind, options, schema

    def partitions(self) -> list[InputPartition]:
        """Look at the store. Raises OptionError."""
        raise OptionError("path", self._options.path, "can't be read yet")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        yield from ()
