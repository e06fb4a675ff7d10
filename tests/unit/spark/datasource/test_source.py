"""The entry point of the data source: the reader of each kind, and refusals before any broker is called."""

import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark.datasource.kinds.backlog import BacklogReader
from spark.datasource.kinds.groups import GroupsReader
from spark.datasource.kinds.heads import HeadsReader
from spark.datasource.kinds.messages import MessagesReader
from spark.datasource.kinds.offsets import OffsetsReader
from spark.datasource.kinds.survey import SurveyReader
from spark.datasource.options import OptionError
from spark.datasource.schema import BY_KIND, GROUPS
from spark.datasource.source import GantryDataSource
from spark.datasource.storedir.reader import StoreDirReader
from spark.datasource.stream.reader import MessageStreamReader


def source(kind: str, **options: str) -> GantryDataSource:
    where = {} if "path" in options else {"namesrv": "ns:1"}
    return GantryDataSource({"kind": kind, **where, **options})


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("offsets", OffsetsReader),
        ("heads", HeadsReader),
        ("groups", GroupsReader),
        ("survey", SurveyReader),
        ("backlog", BacklogReader),
        ("messages", MessagesReader),
    ],
)
def test_each_kind_has_a_schema_and_a_reader(kind, reader):
    one = source(kind)
    assert one.schema() == BY_KIND[kind]
    assert isinstance(one.reader(one.schema()), reader)


def test_nothing_is_pushed_down_without_a_filter():
    filters = [EqualTo(("topic",), "Orders"), EqualTo(("lag",), 1)]
    assert list(source("offsets").reader(BY_KIND["offsets"]).pushFilters(filters)) == filters
    assert list(source("offsets", pushdown="true").reader(BY_KIND["offsets"]).pushFilters(filters)) == filters[1:]


def test_a_path_is_read_without_brokers_and_a_stream_follows_messages():
    assert isinstance(source("offsets", path="store").reader(BY_KIND["offsets"]), StoreDirReader)
    stream = source("messages", maxMessagesPerTrigger="5").streamReader(BY_KIND["messages"])
    assert isinstance(stream, MessageStreamReader)


def test_unsupported_streaming_options_are_refused_by_name():
    with pytest.raises(OptionError, match="kind: 'offsets' can't be read as a stream"):
        source("offsets").streamReader(BY_KIND["offsets"])
    with pytest.raises(OptionError, match="path: 'store' can't be read as a stream"):
        source("messages", path="store").streamReader(BY_KIND["messages"])
    for end in ("5", "latest", "earliest"):
        with pytest.raises(OptionError, match=f"to: '{end}' can't be used with readStream; a time can"):
            source("messages", to=end).streamReader(BY_KIND["messages"])
    assert source("messages", to="2026-11-21T09:30:00Z").streamReader(BY_KIND["messages"])
    with pytest.raises(OptionError, match="maxMessagesPerTrigger: 5 can only be used with readStream"):
        source("messages", maxMessagesPerTrigger="5").reader(BY_KIND["messages"])


def test_only_the_schema_of_the_kind_is_read():
    as_spark_has_it = StructType([StructField(field.name, field.dataType, nullable=True) for field in GROUPS])
    assert isinstance(source("groups").reader(as_spark_has_it), GroupsReader)
    for other in (GROUPS[:3], StructType([*GROUPS[:-1], StructField("error", LongType())])):
        with pytest.raises(OptionError, match="kind groups has its own"):
            source("groups").reader(StructType(list(other)))
    with pytest.raises(OptionError, match="schema"):
        source("groups").streamReader(StructType([StructField("x", StringType())]))
