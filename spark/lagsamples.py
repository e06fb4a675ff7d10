"""Samples of lag from Postgres: as a Spark frame with a row for each queue, and as lines for a page.

Table lag_samples has a row for each group, topic and broker with an array for all its queues, and only where something
changed (or five minutes went by): between two rows nothing has moved.

The way into Spark is COPY … CSV on one side and pyarrow's reader on the other, with not one Python object for a number:
a day of samples has millions.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from psycopg import sql
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession

from spark.postgres import Connection

WRITTEN_EVERY: Final = timedelta(minutes=5)
"""A group's last row before a stretch of time is at most that old, while samples are taken at all."""
ROWS_MAX: Final = 2_000_000
"""Rows of queues in one frame; where there would be more, samples are further apart."""
STEPS: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 120, 300, 900, 3_600))
HISTORY_STEP: Final = timedelta(minutes=5)

# Postgres writes an empty text as "", and nothing at all for a null.
_TYPES: Final = {
    "sampled_at": pa.int64(),
    "group": pa.string(),
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "min_offset": pa.int64(),
    "max_offset": pa.int64(),
    "committed_offset": pa.int64(),
}
_CONVERT: Final = csv.ConvertOptions(column_types=_TYPES, null_values=[""], strings_can_be_null=False)
SCHEMA: Final = pa.schema([*_TYPES.items()]).set(0, pa.field("sampled_at", pa.timestamp("us", tz="UTC")))


def read_samples(
    connection: Connection, *, since: datetime, until: datetime, groups: Sequence[str] | None = None
) -> pa.Table:
    """Return the samples of a stretch of time, a row for each queue, with the state each began with.

    Args:
        connection: To the database.
        since: From WRITTEN_EVERY before it, so that what did not change for a while is there.
        until: Inclusive.
        groups: None: all.

    Raises:
        psycopg.Error: The database is away, or its tables are not there.
    """
    begin = since - WRITTEN_EVERY
    row = connection.execute(
        "SELECT coalesce(sum(cardinality(queue_ids)), 0) FROM lag_samples"
        " WHERE sampled_at BETWEEN %s AND %s AND (%s::text[] IS NULL OR group_name = ANY(%s))",
        (begin, until, groups, groups),
    ).fetchone()
    assert row is not None
    step = choose_step(int(row[0]), until - begin)
    # Of several samples in a step the last one: offsets only grow, so nothing that moved is lost, only when.
    thinned = sql.SQL(
        "SELECT DISTINCT ON (group_name, topic, broker, date_bin({step}, sampled_at, 'epoch')) * FROM lag_samples"
    ).format(step=sql.Literal(step or timedelta(microseconds=1)))
    query = sql.SQL(
        "COPY (SELECT (extract(epoch FROM sampled_at) * 1000000)::bigint, group_name, topic, broker, queue.*"
        " FROM ({source} WHERE sampled_at BETWEEN {begin} AND {until} AND {groups} {order}) AS sample,"
        " unnest(queue_ids, min_offsets, max_offsets, committed_offsets) AS queue) TO STDOUT (FORMAT csv)"
    ).format(
        source=thinned if step else sql.SQL("SELECT * FROM lag_samples"),
        begin=sql.Literal(begin),
        until=sql.Literal(until),
        groups=sql.SQL("true") if groups is None else sql.SQL("group_name = ANY({})").format(sql.Literal(list(groups))),
        order=sql.SQL("ORDER BY group_name, topic, broker, date_bin({}, sampled_at, 'epoch'), sampled_at DESC").format(
            sql.Literal(step)
        )
        if step
        else sql.SQL(""),
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return parse_csv(copy)


def choose_step(rows: int, span: timedelta) -> timedelta | None:
    """Return how far samples have to be apart to be at most ROWS_MAX, None where they may stay as they are.

    Args:
        rows: Of queues, as they are.
        span: Over which they are spread; a sample every 15 s at most.
    """
    if rows <= ROWS_MAX:
        return None
    samples = max(1.0, span.total_seconds() / 15)
    for step in STEPS:
        if rows * (span / step) / samples <= ROWS_MAX:
            return step
    return STEPS[-1]


def parse_csv(chunks: Iterable[bytes | bytearray | memoryview]) -> pa.Table:
    """Return COPY's CSV as a table of SCHEMA."""
    content = b"".join(bytes(chunk) for chunk in chunks)
    if not content:
        return SCHEMA.empty_table()
    table = csv.read_csv(
        io.BytesIO(content), read_options=csv.ReadOptions(column_names=list(_TYPES)), convert_options=_CONVERT
    )
    return table.set_column(0, SCHEMA.field(0), table.column(0).cast(pa.timestamp("us")).cast(SCHEMA.field(0).type))


def samples_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table of samples as a Spark frame: sampled_at, group, topic, broker, queue_id, and three offsets."""
    return spark.createDataFrame(table)


def read_history(
    connection: Connection, *, since: datetime, until: datetime, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield how the lag of some groups on topics went, a point every HISTORY_STEP: sampled_at, group, topic, lag.

    `lag` is None where it was not known for a queue that holds messages. Raises psycopg.Error.
    """
    if not pairs:
        return
    rows = connection.execute(
        "SELECT max(sampled_at), group_name, topic, CASE WHEN bool_and(known) THEN sum(lag)::bigint END FROM ("
        "  SELECT DISTINCT ON (group_name, topic, broker, bucket) sampled_at, group_name, topic, broker, known, lag,"
        "    date_bin(%(step)s, sampled_at, 'epoch') AS bucket"
        "  FROM lag_samples, LATERAL ("
        "    SELECT bool_and(committed IS NOT NULL OR low = high) AS known,"
        "      sum(CASE WHEN committed IS NULL THEN 0 ELSE greatest(0, high - greatest(committed, low)) END) AS lag"
        "    FROM unnest(min_offsets, max_offsets, committed_offsets) AS queue(low, high, committed)) AS queues"
        "  WHERE sampled_at BETWEEN %(since)s AND %(until)s AND (group_name, topic) IN"
        "    (SELECT * FROM unnest(%(groups)s::text[], %(topics)s::text[]))"
        "  ORDER BY group_name, topic, broker, bucket, sampled_at DESC) AS sample"
        " GROUP BY group_name, topic, bucket ORDER BY group_name, topic, bucket",
        {
            "step": HISTORY_STEP,
            "since": since,
            "until": until,
            "groups": [group for group, _ in pairs],
            "topics": [topic for _, topic in pairs],
        },
    )
    for sampled_at, group, topic, lag in rows:
        yield {"sampled_at": sampled_at.astimezone(UTC), "group": group, "topic": topic, "lag": lag}
