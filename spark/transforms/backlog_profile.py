"""The composition of a backlog: the ages, tags, keys, sizes and queues of its messages.

The backlog of a group is all messages that the group has not consumed and that its filter accepts. Each message is
counted once in each of the sections `age`, `tag`, `size` and `queue`, and in the section `key` once for each of its
keys. So each section except `key` adds up to the backlog. Unknown properties are counted in the bucket UNKNOWN: the age
of a message that can't be read, and the tag and the size of a message that was removed before it was read.

An SQL92 filter decides about messages, not about units. So a group with such a filter has the messages that were read
and accepted. The section `filter` counts those that could not be read: it is unknown whether the filter accepts them.
If a filter can't be applied, all messages are counted, and the section `filter` names it.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from spark.transforms.backlogfilters import SqlFilters

AGE: Final = "age"
TAG: Final = "tag"
KEY: Final = "key"
SIZE: Final = "size"
FILTER: Final = "filter"
QUEUE: Final = "queue"

ACCEPTED_BY: Final = "accepted_by"
UNKNOWN: Final = "(unknown)"
NO_TAG: Final = "(none)"
KEYS_MAX: Final = 100
"""The limit for the keys of a group and topic; the most frequent are kept. Often there are about as many keys as
messages."""

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
AGE_BOUNDS_S: Final[tuple[tuple[str, int, int | None], ...]] = (
    ("under 1 min", 0, _MINUTE),
    ("1-5 min", _MINUTE, 5 * _MINUTE),
    ("5-15 min", 5 * _MINUTE, 15 * _MINUTE),
    ("15-60 min", 15 * _MINUTE, _HOUR),
    ("1-6 h", _HOUR, 6 * _HOUR),
    ("6-24 h", 6 * _HOUR, _DAY),
    ("1-3 days", _DAY, 3 * _DAY),
    ("3-7 days", 3 * _DAY, 7 * _DAY),
    ("over 7 days", 7 * _DAY, None),
)
"""Label, lower bound (inclusive) and upper bound (exclusive), in seconds. They are fixed, so that reports can be
compared."""

_QUEUE: Final = ("topic", "broker", "queue_id")
_CELL: Final = {
    "broker": "string",
    "queue_id": "int",
    "age": "int",
    "tag": "string",
    "digits": "long",
    "is_accepted": "boolean",
    "sql_filter": "string",
}
_UNREAD: Final = "they can't be read, so it is unknown whether the SQL92 filter accepts them: "


def backlog_extent(backlog: DataFrame, *, as_of: datetime) -> DataFrame:
    """Count unconsumed messages by age and queue: the part of a profile that does not need the messages themselves.

    Args:
        backlog: Rows of kind `backlog`. Units without a message, and messages that the group does not want, are left
            out.
        as_of: The time to which ages are counted if the broker's time (`read_at`) is unknown; it must have a time zone.

    Returns:
        group, topic, broker, queue_id, age (int?: an index in AGE_BOUNDS_S; null if unknown), units, first_offset,
        last_offset (long), first_stored_at, read_at (timestamp?), wanted_tags, filter_error, sql_filter. It has few
        rows, even if the backlog is large. Persist it, because `backlog_profile` reads it twice.

    Raises:
        ValueError: `as_of` has no time zone.
    """
    units = backlog.where(fn.col("size").isNotNull() & fn.col("is_wanted"))
    return units.groupBy("group", *_QUEUE, _age_index(as_of).alias("age")).agg(
        fn.count(fn.lit(1)).alias("units"),
        fn.min("queue_offset").alias("first_offset"),
        fn.max("queue_offset").alias("last_offset"),
        fn.min("stored_at").alias("first_stored_at"),
        fn.max("read_at").alias("read_at"),
        fn.first("wanted_tags").alias("wanted_tags"),
        fn.first("filter_error").alias("filter_error"),
        fn.first("sql_filter").alias("sql_filter"),
    )


def backlog_profile(
    extent: DataFrame,
    messages: DataFrame | None = None,
    *,
    as_of: datetime,
    filters: SqlFilters | None = None,
) -> DataFrame:
    """Return the profile of each group and topic, with a row for each bucket.

    Args:
        extent: The result of `backlog_extent`.
        messages: Rows of kind `messages` that include the region of the backlog; other rows are ignored. None: only
            ages and queues are profiled.
        as_of: The same time as for `backlog_extent`.
        filters: The SQL92 filters that the rows of messages were read with (`accepted_by` has their numbers); None if
            they were read without.

    Returns:
        group, topic, section, bucket, lower_bound, upper_bound (doubles: seconds for `age`, bytes for `size`, else
        null; upper_bound is exclusive, and null for the last age), messages (long), bytes (long: the sizes of the
        bodies as producers sent them; null in a bucket without a read body).

        Buckets, of which those without messages are absent:

        - `age`: AGE_BOUNDS_S. A message that was stored after `as_of` is under 1 min old.
        - `tag`: the tag or NO_TAG.
        - `key`: the KEYS_MAX most frequent keys, by name if they are equally frequent.
        - `size`: "0" for an empty body, else powers of two such as "1024-2047".
        - `queue`: broker/queue id.
        - `filter`: the filter of which it is unknown whether it accepts the messages of the bucket, and why. These
          messages are in no other section if they could not be read, and in all of them if the filter could not be
          applied.

    Raises:
        ValueError: `as_of` has no time zone.
    """
    # At first each unit counts as a message of unknown tag and size. Each message that was read then moves one count
    # from there to its own tag and size. A join of messages with units would give the same result, but sort millions of
    # rows.
    units, nothing = fn.col("units"), fn.lit(None)
    extent = _with_filters(extent, None if messages is None else filters)
    counted = [_age_entry(units, nothing), _queue_entry(units, nothing)]
    if messages is not None:
        counted += [_entry(TAG, fn.lit(UNKNOWN), units, nothing), _entry(SIZE, fn.lit(UNKNOWN), units, nothing)]
    # With an SQL92 filter, each message that was read counts for itself. The section `filter` has the others.
    entries = extent.where(fn.col("number").isNull()).select("group", "topic", fn.inline(fn.array(*counted)))
    unfiltered = extent.where(fn.col("filter_error").isNotNull())
    named = fn.array(_entry(FILTER, fn.col("filter_error"), units, nothing))
    entries = entries.unionByName(unfiltered.select("group", "topic", fn.inline(named)))
    if messages is not None:
        cells = _without_rare_keys(_cells(_of_groups(extent, messages, as_of)))
        entries = entries.unionByName(cells.select("group", "topic", fn.inline(_found())))
    return (
        entries.groupBy("group", "topic", "section", "bucket", "lower_bound", "upper_bound")
        .agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
        .where(fn.col("messages") > 0)
    )


def _with_filters(extent: DataFrame, filters: SqlFilters | None) -> DataFrame:
    """Return the extent with the numbers and reasons of filters.

    `number` is that of an applied SQL92 filter, else null. `filter_error` then has the final reason.
    """
    if filters is None or not (filters.applied or filters.refused):
        return extent.withColumn("number", fn.lit(None).cast("int"))

    def of_filter(text: str, kind: str) -> Column:
        by_topic = fn.from_json(fn.lit(text), f"map<string,map<string,{kind}>>")
        return fn.try_element_at(fn.try_element_at(by_topic, fn.col("topic")), fn.col("sql_filter"))

    number, reason = of_filter(filters.numbers(), "int"), of_filter(filters.reasons(), "string")
    unread = fn.when(number.isNotNull(), fn.concat(fn.lit(_UNREAD), fn.col("sql_filter")))
    return extent.withColumns({"number": number, "filter_error": fn.coalesce(unread, reason, fn.col("filter_error"))})


def _found() -> Column:
    """Return the entries of a cell of messages that were read."""
    count, size, nothing = fn.col("messages"), fn.col("bytes"), fn.lit(None)
    at_first = _entry(TAG, fn.lit(UNKNOWN), -count, nothing), _entry(SIZE, fn.lit(UNKNOWN), -count, nothing)
    named = _entry(TAG, fn.coalesce("tag", fn.lit(NO_TAG)), count, size), _size_entry(count, size)
    read = fn.array(_age_entry(fn.lit(0), size), _queue_entry(fn.lit(0), size), *named, *at_first)
    decided = _entry(FILTER, fn.concat(fn.lit(_UNREAD), fn.col("sql_filter")), -count, nothing)
    accepted = fn.array(_age_entry(count, size), _queue_entry(count, size), *named, decided)
    key = fn.array(_entry(KEY, fn.col("key"), count, size))
    return (
        fn.when(fn.col("is_key"), key)
        .when(fn.col("sql_filter").isNull(), read)
        .when(fn.col("is_accepted"), accepted)
        .otherwise(fn.array(decided))
    )


def _of_groups(extent: DataFrame, messages: DataFrame, as_of: datetime) -> DataFrame:
    """Return each message once for each group that has not consumed it and wants it."""
    regions = (
        extent.groupBy("group", *_QUEUE)
        .agg(
            fn.min("first_offset").alias("first"),
            fn.max("last_offset").alias("last"),
            fn.max("read_at").alias("read_at"),
            fn.first("wanted_tags").alias("wanted_tags"),
            fn.first("number").alias("number"),
            fn.first(fn.when(fn.col("number").isNotNull(), fn.col("sql_filter"))).alias("sql_filter"),
        )
        .withColumnsRenamed({name: f"of_{name}" for name in _QUEUE})
    )
    if ACCEPTED_BY not in messages.columns:
        messages = messages.withColumn(ACCEPTED_BY, fn.lit(None).cast("array<int>"))
    read = messages.select(
        *_QUEUE,
        ACCEPTED_BY,
        "queue_offset",
        "tag",
        "keys",
        "stored_at",
        fn.length("body").cast("long").alias("body_size"),
    )
    is_in = [fn.col(name) == fn.col(f"of_{name}") for name in _QUEUE]
    is_in.append(fn.col("queue_offset").between(fn.col("first"), fn.col("last")))
    wanted = fn.col("wanted_tags").isNull() | fn.coalesce(
        fn.array_contains("wanted_tags", fn.col("tag")), fn.lit(False)
    )
    return (
        read.join(fn.broadcast(regions), is_in)
        .where(wanted)
        .withColumns({"age": _age_index(as_of), "is_accepted": fn.array_contains(ACCEPTED_BY, fn.col("number"))})
    )


def _cells(messages: DataFrame) -> DataFrame:
    """Count messages that are equal in all sections, and keys separately.

    All sections come from one pass. A message becomes one row, and one more row for each key, instead of one row for
    each section: there are millions of messages, but only thousands of cells.
    """
    blank = [fn.lit(None).cast(kind).alias(name) for name, kind in _CELL.items()]
    cell = fn.struct(
        fn.lit(False).alias("is_key"),
        fn.lit(None).cast("string").alias("key"),
        "broker",
        "queue_id",
        "age",
        "tag",
        # The number of binary digits. A logarithm of doubles would not be exact.
        fn.when(fn.col("body_size") > 0, fn.length(fn.bin("body_size")))
        .otherwise(fn.lit(0))
        .cast("long")
        .alias("digits"),
        "is_accepted",
        "sql_filter",
    )
    # A message that the filter rejects has no keys here: it only counts as read.
    has_keys = fn.col("sql_filter").isNull() | fn.col("is_accepted")
    keys = fn.transform(
        fn.coalesce(fn.when(has_keys, fn.array_distinct("keys")), fn.array().cast("array<string>")),
        lambda key: fn.struct(fn.lit(True).alias("is_key"), key.alias("key"), *blank),
    )
    return (
        messages.select("group", "topic", "body_size", fn.explode(fn.concat(fn.array(cell), keys)).alias("cell"))
        .select("group", "topic", "body_size", "cell.*")
        .groupBy("group", "topic", "is_key", "key", *_CELL)
        .agg(fn.count(fn.lit(1)).alias("messages"), fn.sum("body_size").alias("bytes"))
    )


def _without_rare_keys(cells: DataFrame) -> DataFrame:
    """Keep the KEYS_MAX most frequent keys. Other cells are alone in their window, so Spark can push the limit down."""
    order = (
        Window.partitionBy("group", "topic", "is_key", *_CELL)
        .orderBy(fn.col("messages").desc(), fn.col("key").asc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return cells.withColumn("rank", fn.row_number().over(order)).where(fn.col("rank") <= KEYS_MAX)


def _entry(
    section: str,
    bucket: Column,
    messages: Column,
    size: Column,
    *,
    lower: Column | None = None,
    upper: Column | None = None,
) -> Column:
    nothing = fn.lit(None)
    return fn.struct(
        fn.lit(section).alias("section"),
        bucket.alias("bucket"),
        (nothing if lower is None else lower).cast("double").alias("lower_bound"),
        (nothing if upper is None else upper).cast("double").alias("upper_bound"),
        messages.cast("long").alias("messages"),
        size.cast("long").alias("bytes"),
    )


def _age_index(as_of: datetime) -> Column:
    """Return the index in AGE_BOUNDS_S of a message's age; null if the age is unknown."""
    if as_of.tzinfo is None:
        raise ValueError(f"as_of: {as_of} has no time zone")
    age_s = (fn.unix_micros(fn.coalesce("read_at", fn.lit(as_of))) - fn.unix_micros("stored_at")) / 1_000_000
    chosen = fn.when(fn.col("stored_at").isNull(), fn.lit(None))
    for index, (_, _, upper) in enumerate(AGE_BOUNDS_S):
        chosen = chosen.otherwise(fn.lit(index)) if upper is None else chosen.when(age_s < upper, fn.lit(index))
    return chosen.cast("int")


def _age_entry(messages: Column, size: Column) -> Column:
    chosen = fn.when(fn.col("age").isNull(), _entry(AGE, fn.lit(UNKNOWN), messages, size))
    for index, (label, lower, upper) in enumerate(AGE_BOUNDS_S):
        entry = _entry(AGE, fn.lit(label), messages, size, lower=fn.lit(lower), upper=fn.lit(upper))
        chosen = chosen.when(fn.col("age") == index, entry)
    return chosen


def _queue_entry(messages: Column, size: Column) -> Column:
    return _entry(QUEUE, fn.concat_ws("/", "broker", fn.col("queue_id").cast("string")), messages, size)


def _size_entry(messages: Column, size: Column) -> Column:
    digits = fn.col("digits")
    lower = fn.pow(fn.lit(2.0), digits - 1)
    label = fn.concat_ws("-", lower.cast("long").cast("string"), (2 * lower - 1).cast("long").cast("string"))
    return (
        fn.when(digits == 0, _entry(SIZE, fn.lit("0"), messages, size, lower=fn.lit(0), upper=fn.lit(1)))
        .when(digits == 1, _entry(SIZE, fn.lit("1"), messages, size, lower=fn.lit(1), upper=fn.lit(2)))
        .otherwise(_entry(SIZE, label, messages, size, lower=lower, upper=2 * lower))
    )
