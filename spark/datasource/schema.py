"""The schemas of the data source, a kind each. What may be null is said here; a number that is not known is null, never 0 or -1.

Version 1. A column is added at the end under a new version, none is renamed or removed (docs/formats/spark.md).
Offsets and counts are long, times are timestamps in UTC with milliseconds, sizes in bytes.
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

SCHEMA_VERSION: Final = 2


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
"""A row for each group, topic and queue: every queue of a topic the group has committed to or subscribes to.

`committed_offset` and `lag` are null where the group never committed. `lag` = max - max(committed, min): what was trimmed
cannot be consumed any more. `error` says why numbers are missing, or what is wrong with those given (a commit outside
min…max).
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
    ]
)
"""A row for each ConsumeQueue unit that a group has not consumed, whether its filter lets it through or not.

Null where the unit stands for no message, and `stored_at` where its record can't be read. `is_wanted` says whether the
group's filter lets it through, and `wanted_tags` which tags that are; null: all, which is also where the filter is not known.
`read_at` is when the broker said where its queue ends, by the reader's clock.
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
"""The message of the HTTP API as columns; `body` as its producer gave it, inflated; `properties` are the user's."""

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
"""A row for each queue of `offsets`: the first message that is not consumed and that the group's filter lets through.

All `first_…` are null where there is none, and where there is an `error`. `tags` counts the first messages that are not
consumed (`tags_examined` of them), most frequent first; a null tag stands for messages without one.
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
"""A row for each group and broker. `clients` are connected now; `ever_seen` is null where nobody can say (no database)."""

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
    ]
)
"""A row for each row of `offsets`, with what `heads` and `groups` say of it: all of one look.

`read_at` is when the row's broker gave its numbers, by the reader's clock; null where it did not. `clock_skew_ms` is by
how much the broker's clock is ahead of the reader's, at least; null where the broker did not say its time.
"""

BY_KIND: Final = {
    "offsets": OFFSETS,
    "backlog": BACKLOG,
    "messages": MESSAGES,
    "heads": HEADS,
    "groups": GROUPS,
    "survey": SURVEY,
}
