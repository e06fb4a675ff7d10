"""The schemas of the data source, one for each kind.

A schema also says which columns may be null. An unknown number is null, never 0 or -1. Offsets and counts are long,
times are timestamps in UTC with milliseconds, sizes are in bytes. A new column comes at the end, under a new version.
No column is renamed or removed (docs/formats/spark.md).
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SCHEMA_VERSION: Final = 4


def _column(name: str, kind: DataType, *, nullable: bool = False) -> StructField:
    return StructField(name, kind, nullable)


_QUEUE: Final = (
    _column("topic", StringType()),
    _column("broker", StringType()),
    _column("queue_id", IntegerType()),
)
_GROUP_QUEUE: Final = (_column("group", StringType()), *_QUEUE)

OFFSETS: Final = StructType(
    [
        *_GROUP_QUEUE,
        _column("min_offset", LongType(), nullable=True),
        _column("max_offset", LongType(), nullable=True),
        _column("committed_offset", LongType(), nullable=True),
        _column("lag", LongType(), nullable=True),
        _column("error", StringType(), nullable=True),
    ]
)
"""One row for each group, topic and queue: every queue of a topic that the group has committed to or subscribes to.

`committed_offset` and `lag` are null if the group never committed. `lag` = max - max(committed, min), because removed
messages can't be consumed any more. `error` gives the reason why numbers are missing, or the problem with the numbers
(a commit outside min…max).
"""

BACKLOG: Final = StructType(
    [
        *_GROUP_QUEUE,
        _column("queue_offset", LongType()),
        _column("physical_offset", LongType(), nullable=True),
        _column("size", IntegerType(), nullable=True),
        _column("tag_hash", LongType(), nullable=True),
        _column("stored_at", TimestampType(), nullable=True),
        _column("is_wanted", BooleanType(), nullable=True),
        _column("wanted_tags", ArrayType(StringType(), containsNull=False), nullable=True),
        _column("read_at", TimestampType(), nullable=True),
        _column("filter_error", StringType(), nullable=True),
        _column("sql_filter", StringType(), nullable=True),
    ]
)
"""One row for each ConsumeQueue unit that a group has not consumed, whether or not the group's filter accepts it.

The columns of a unit that stands for no message are null. `stored_at` is also null if the record can't be read.
`is_wanted` says whether the group's filter accepts the unit. `wanted_tags` has the tags that the filter accepts; it is
null if the filter accepts all units, is not a filter by tags, or is unknown. `read_at` is the time at which the broker
reported the end of the queue, by the reader's clock. `filter_error` says which filter of the group units can't decide,
and why; then `is_wanted` is true for all of them. `sql_filter` is the group's filter if it is an SQL92 expression.
"""

MESSAGES: Final = StructType(
    [
        _column("message_id", StringType(), nullable=True),
        _column("stored_id", StringType()),
        *_QUEUE,
        _column("queue_offset", LongType()),
        _column("body", BinaryType()),
        _column("tag", StringType(), nullable=True),
        _column("keys", ArrayType(StringType(), containsNull=False)),
        _column("properties", MapType(StringType(), StringType(), valueContainsNull=False)),
        _column("born_at", TimestampType()),
        _column("stored_at", TimestampType()),
        _column("born_host", StringType()),
        _column("reconsume_times", IntegerType()),
        _column("size", IntegerType()),
    ]
)
"""The message of the HTTP API as columns. `body` is decompressed. `properties` has the user's own properties."""

ACCEPTED_BY: Final = "accepted_by"
FILTERED_MESSAGES: Final = StructType(
    [*MESSAGES.fields, _column(ACCEPTED_BY, ArrayType(IntegerType(), containsNull=False))]
)
"""Kind `messages` with the option `sqlFilters`: `accepted_by` has the numbers of the topic's expressions, counted from 0,
that accept the message."""

HEADS: Final = StructType(
    [
        *_GROUP_QUEUE,
        _column("filter", StringType(), nullable=True),
        _column("first_offset", LongType(), nullable=True),
        _column("first_physical_offset", LongType(), nullable=True),
        _column("first_stored_at", TimestampType(), nullable=True),
        _column("expires_at", TimestampType(), nullable=True),
        _column("expires_at_is_earliest", BooleanType(), nullable=True),
        _column("broker_now", TimestampType(), nullable=True),
        _column(
            "tags",
            ArrayType(
                StructType([_column("tag", StringType(), nullable=True), _column("messages", LongType())]),
                containsNull=False,
            ),
            nullable=True,
        ),
        _column("tags_examined", IntegerType(), nullable=True),
        _column("error", StringType(), nullable=True),
    ]
)
"""One row for each row of `offsets`: the first unconsumed message that the group's filter accepts.

All `first_…` columns are null if there is no such message, and if there is an `error`. `tags` counts the tags of the
first unconsumed messages, filtered or not (`tags_examined` messages), the most frequent tag first. A null tag stands
for messages without a tag.
"""

GROUPS: Final = StructType(
    [
        _column("group", StringType()),
        _column("broker", StringType()),
        _column("clients", IntegerType(), nullable=True),
        _column("consume_enabled", BooleanType(), nullable=True),
        _column("ever_seen", BooleanType(), nullable=True),
        _column("error", StringType(), nullable=True),
    ]
)
"""One row for each group and broker.

`clients` is the number of clients that are connected now. `ever_seen` is null if it is unknown, for example because no
database is given.
"""

SURVEY: Final = StructType(
    [
        *OFFSETS.fields[:7],
        _column("offsets_error", StringType(), nullable=True),
        _column("read_at", TimestampType(), nullable=True),
        _column("clock_skew_ms", LongType(), nullable=True),
        *[field for field in HEADS.fields[4:-1] if field.name not in ("first_physical_offset", "broker_now")],
        _column("head_error", StringType(), nullable=True),
        *GROUPS.fields[2:-1],
        _column("group_error", StringType(), nullable=True),
        _column("reset_epoch", LongType(), nullable=True),
        _column("reset_messages", LongType(), nullable=True),
    ]
)
"""One row for each row of `offsets`, with the columns that `heads` and `groups` have for it, all from one survey.

`read_at` is the time at which the row's broker reported its numbers, by the reader's clock; null if it reported none.
`clock_skew_ms` is the least difference by which the broker's clock is ahead of the reader's (negative: behind); null if
the broker did not report its time. `reset_epoch` is the epoch of the latest reset of the group's offset in the queue
within the last hour, and `reset_messages` the number of messages by which it moved the offset; null without one, and
for brokers without epochs.
"""

BY_KIND: Final = {
    "offsets": OFFSETS,
    "backlog": BACKLOG,
    "messages": MESSAGES,
    "heads": HEADS,
    "groups": GROUPS,
    "survey": SURVEY,
}
