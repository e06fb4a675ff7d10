"""What a backlog is made of: how old, of which tags and keys, how large, in which queues.

Every message that a group has not consumed, and that its filter lets through, is counted once in each of the sections `age`, `tag`, `size` and `queue`, and
once in `key` for each of its keys. So each section but `key` adds up to the backlog. What can't be known is counted, too,
in the bucket UNKNOWN: the age of a message that can't be read, tag and size of one that was gone before it was read.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

AGE: Final = "age"
TAG: Final = "tag"
KEY: Final = "key"
SIZE: Final = "size"
QUEUE: Final = "queue"

UNKNOWN: Final = "(unknown)"
NO_TAG: Final = "(none)"
KEYS_MAX: Final = 100
"""The most frequent keys of a group and topic; the rest are mostly as many as there are messages."""

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
"""Label, from (included), to (left out), in seconds. Fixed, so that reports can be laid side by side."""

_QUEUE: Final = ("topic", "broker", "queue_id")
_CELL: Final = {"broker": "string", "queue_id": "int", "age": "int", "tag": "string", "digits": "long"}


def backlog_extent(backlog: DataFrame, *, as_of: datetime) -> DataFrame:
    """Count what groups have not consumed, and say where it lies: the part of a profile that needs no message.

    Args:
        backlog: Kind `backlog`; units that stand for no message, or for one that the group does not want, are left out.
        as_of: The moment ages are counted to where the broker's (`read_at`) is not known; with a zone.

    Returns:
        group, topic, broker, queue_id, age (int?: which of AGE_BOUNDS_S; null: not known), units, first_offset,
        last_offset (long), first_stored_at, read_at (timestamp?), wanted_tags. As small as the backlog is large: persist it, it is read twice.

    Raises:
        ValueError: `as_of` has no zone.
    """
    units = backlog.where(fn.col("size").isNotNull() & fn.col("is_wanted"))
    return units.groupBy("group", *_QUEUE, _age_index(as_of).alias("age")).agg(
        fn.count(fn.lit(1)).alias("units"),
        fn.min("queue_offset").alias("first_offset"),
        fn.max("queue_offset").alias("last_offset"),
        fn.min("stored_at").alias("first_stored_at"),
        fn.max("read_at").alias("read_at"),
        fn.first("wanted_tags").alias("wanted_tags"),
    )


def backlog_profile(extent: DataFrame, messages: DataFrame | None = None, *, as_of: datetime) -> DataFrame:
    """Return the profile of each group and topic, a row a bucket.

    Args:
        extent: Of the backlog, of the same moment.
        messages: Kind `messages`, of at least the backlog's region; more is ignored. None: only ages and queues are
            profiled.
        as_of: As of the extent.

    Returns:
        group, topic, section, bucket, lower_bound, upper_bound (doubles; seconds for `age`, bytes for `size`, else
        null; upper_bound is left out, and null for the last age), messages (long), bytes (long: of the bodies as their
        producers gave them; null in a bucket of which no body was read).

        Buckets: `age` AGE_BOUNDS_S (a message that was stored after that moment is under 1 min old); `tag` the tag or NO_TAG;
        `key` the KEYS_MAX most frequent keys (by name where they are equally frequent); `size` powers of two, "0" for
        an empty body, else "1024-2047"; `queue` broker/queue id. Buckets without messages are absent.

    Raises:
        ValueError: `as_of` has no zone.
    """
    # What was read is moved from the unknown tag and size, where every unit stands at first, to its own. Joining each
    # message with its unit would say the same, and sort millions of rows for it.
    units, nothing = fn.col("units"), fn.lit(None)
    counted = [_age_entry(units, nothing), _queue_entry(units, nothing)]
    if messages is not None:
        counted += [_entry(TAG, fn.lit(UNKNOWN), units, nothing), _entry(SIZE, fn.lit(UNKNOWN), units, nothing)]
    entries = extent.select("group", "topic", fn.inline(fn.array(*counted)))
    if messages is not None:
        cells = _without_rare_keys(_cells(_of_groups(extent, messages, as_of)))
        count, size = fn.col("messages"), fn.col("bytes")
        read = fn.array(
            _age_entry(fn.lit(0), size),
            _queue_entry(fn.lit(0), size),
            _entry(TAG, fn.coalesce("tag", fn.lit(NO_TAG)), count, size),
            _entry(TAG, fn.lit(UNKNOWN), -count, nothing),
            _size_entry(count, size),
            _entry(SIZE, fn.lit(UNKNOWN), -count, nothing),
        )
        key = fn.array(_entry(KEY, fn.col("key"), count, size))
        found = fn.when(fn.col("is_key"), key).otherwise(read)
        entries = entries.unionByName(cells.select("group", "topic", fn.inline(found)))
    return (
        entries.groupBy("group", "topic", "section", "bucket", "lower_bound", "upper_bound")
        .agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
        .where(fn.col("messages") > 0)
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
        )
        .withColumnsRenamed({name: f"of_{name}" for name in _QUEUE})
    )
    read = messages.select(
        *_QUEUE,
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
    return read.join(fn.broadcast(regions), is_in).where(wanted).withColumn("age", _age_index(as_of))


def _cells(messages: DataFrame) -> DataFrame:
    """Count messages that are alike in all sections, and keys apart from them.

    All sections come from one pass, and a message becomes one row and one a key, not one a section: messages are
    millions, cells are thousands.
    """
    blank = [fn.lit(None).cast(kind).alias(name) for name, kind in _CELL.items()]
    cell = fn.struct(
        fn.lit(False).alias("is_key"),
        fn.lit(None).cast("string").alias("key"),
        "broker",
        "queue_id",
        "age",
        "tag",
        # The digits of the binary number: exact where a logarithm of doubles is not.
        fn.when(fn.col("body_size") > 0, fn.length(fn.bin("body_size")))
        .otherwise(fn.lit(0))
        .cast("long")
        .alias("digits"),
    )
    keys = fn.transform(
        fn.coalesce(fn.array_distinct("keys"), fn.array().cast("array<string>")),
        lambda key: fn.struct(fn.lit(True).alias("is_key"), key.alias("key"), *blank),
    )
    return (
        messages.select("group", "topic", "body_size", fn.explode(fn.concat(fn.array(cell), keys)).alias("cell"))
        .select("group", "topic", "body_size", "cell.*")
        .groupBy("group", "topic", "is_key", "key", *_CELL)
        .agg(fn.count(fn.lit(1)).alias("messages"), fn.sum("body_size").alias("bytes"))
    )


def _without_rare_keys(cells: DataFrame) -> DataFrame:
    """Keep the KEYS_MAX most frequent keys. A cell is alone in its window, so that the limit may be pushed down."""
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
    """Return which of AGE_BOUNDS_S a message is in; null where its age is not known."""
    if as_of.tzinfo is None:
        raise ValueError(f"as_of: {as_of} has no zone")
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
