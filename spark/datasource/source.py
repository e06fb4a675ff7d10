"""The data source `gantry`: reads data of brokers, or the files of a store without a broker, as rows.

    spark.dataSource.register(GantryDataSource)
    spark.read.format("gantry").option("kind", "offsets").option("namesrv", "127.0.0.1:9876").load()

docs/formats/spark.md describes the options, the schemas and their versions. Spark pickles this class and its readers by
name, so Spark's Python workers must be able to import the package.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark.datasource.kinds.backlog import BacklogReader
from spark.datasource.kinds.groups import GroupsReader
from spark.datasource.kinds.heads import HeadsReader
from spark.datasource.kinds.messages import MessagesReader
from spark.datasource.kinds.offsets import OffsetsReader
from spark.datasource.kinds.survey import SurveyReader
from spark.datasource.options import (
    BACKLOG,
    GROUPS,
    HEADS,
    MESSAGES,
    OFFSETS,
    SURVEY,
    OptionError,
    Options,
    PositionKind,
    read_options,
)
from spark.datasource.pushdown import NarrowedReader, PushedReader
from spark.datasource.storedir.reader import StoreDirReader
from spark.datasource.stream.reader import MessageStreamReader

NAME: Final = "gantry"

# The readers that ask brokers. StoreDirReader reads the files of a store instead, for the kinds that it supports.
_READERS: Final[Mapping[str, Callable[[Options, StructType], NarrowedReader]]] = {
    OFFSETS: OffsetsReader,
    HEADS: HeadsReader,
    GROUPS: GroupsReader,
    SURVEY: SurveyReader,
    BACKLOG: BacklogReader,
    MESSAGES: MessagesReader,
}


class GantryDataSource(DataSource):
    """The data source. Spark creates one for each query, in the driver, and asks it for the schema and for a reader.

    The errors are raised where the query is built, before anything is read.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source, the argument of `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of the kind. Raises OptionError."""
        return self._read_options().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises OptionError."""
        options = self._read_options()
        _check_schema(options, schema)
        if options.max_messages_per_trigger is not None:
            raise OptionError(
                "maxMessagesPerTrigger", options.max_messages_per_trigger, "can only be used with readStream"
            )
        if options.path is not None:
            reader: NarrowedReader = StoreDirReader(options, schema)
        else:
            reader = _READERS[options.kind](options, schema)
        return PushedReader(reader) if options.pushdown else reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        """Return the reader that follows the messages of topics. Raises OptionError."""
        options = self._read_options()
        _check_schema(options, schema)
        if options.kind != MESSAGES:
            raise OptionError("kind", options.kind, "can't be read as a stream; only messages can")
        if options.path is not None:
            raise OptionError("path", options.path, "can't be read as a stream; only brokers can")
        if options.end is not None and options.end.where is not PositionKind.TIME:
            # A stream has no end, but it can leave out messages that were stored later.
            end = options.end.value if options.end.where is PositionKind.OFFSET else options.end.where.value
            raise OptionError("to", str(end), "can't be used with readStream; a time can")
        return MessageStreamReader(options, schema)

    def _read_options(self) -> Options:
        return read_options(dict(self.options))


def _check_schema(options: Options, schema: StructType) -> None:
    """Reject a schema that the user chose.

    Readers return rows by position. With other columns, values would be in the wrong columns.
    """
    wanted = [(field.name, field.dataType.simpleString()) for field in options.schema]
    if [(field.name, field.dataType.simpleString()) for field in schema] != wanted:
        raise OptionError("schema", schema.simpleString(), f"can't be chosen: kind {options.kind} has its own")
