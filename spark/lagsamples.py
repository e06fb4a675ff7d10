"""Samples of lag from Postgres, as a Spark frame with a row for each queue.

Table lag_samples has a row for each group, topic and broker with an array for all its queues, and only where something
changed (or five minutes went by): up to the round before a row nothing had moved. A topic that no group is sampled of has
rows without a group.

The way into Spark is COPY … CSV on one side and pyarrow's reader on the other, with not one Python object for a number:
a day of samples has millions.
"""

import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

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
    "looked_at": pa.int64(),
}
_MOMENTS: Final = ("sampled_at", "looked_at")
_CONVERT: Final = csv.ConvertOptions(
    column_types=_TYPES, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
)
SCHEMA: Final = pa.schema(
    [(name, pa.timestamp("us", tz="UTC") if name in _MOMENTS else _TYPES[name]) for name in _TYPES]
)
_ROUNDS: Final = (
    "SELECT sampled_at AS round_at, lag(sampled_at) OVER (ORDER BY sampled_at) AS before_at,"
    " lag(missing) OVER (ORDER BY sampled_at) AS before_missing FROM lag_sample_rounds"
)


def read_samples(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    groups: Sequence[str] | None = None,
    with_topics: bool = False,
) -> pa.Table:
    """Return the samples of a stretch of time, a row for each queue, with the state each began with.

    Args:
        connection: To the database.
        since: From WRITTEN_EVERY before it, so that what did not change for a while is there.
        until: Inclusive.
        groups: None: all.
        with_topics: Also those that are no group's, of topics by themselves; means nothing where groups are named.

    Returns:
        A table of SCHEMA. `group` is null in a topic's own row. `looked_at` is the round before the row's, up to which
        nothing had moved since the row before; null where that is not known: the broker did not answer then, or rows
        are left out since there are too many.

    Raises:
        psycopg.Error: The database is away, or its tables are not there.
    """
    begin = since - WRITTEN_EVERY
    stretch = sql.SQL("sampled_at BETWEEN {} AND {}").format(sql.Literal(begin), sql.Literal(until))
    wanted = sql.SQL("{} AND {}").format(stretch, _of(groups, with_topics=with_topics))
    row = connection.execute(
        sql.SQL("SELECT coalesce(sum(cardinality(queue_ids)), 0) FROM lag_samples WHERE {}").format(wanted)
    ).fetchone()
    assert row is not None
    step = choose_step(int(row[0]), until - begin)
    # Of several samples in a step the last one: offsets only grow, so nothing that moved is lost, only when.
    thinned = sql.SQL(
        "SELECT DISTINCT ON (group_name, topic, broker, date_bin({step}, sampled_at, 'epoch')) * FROM lag_samples"
    ).format(step=sql.Literal(step or timedelta(microseconds=1)))
    query = sql.SQL(
        "COPY (SELECT (extract(epoch FROM sampled_at) * 1000000)::bigint, group_name, topic, broker, queue.*, {looked}"
        " FROM ({source} WHERE {wanted} {order}) AS sample"
        " LEFT JOIN ({rounds} WHERE {stretch}) AS round ON round_at = sampled_at,"
        " unnest(queue_ids, min_offsets, max_offsets, committed_offsets) AS queue) TO STDOUT (FORMAT csv)"
    ).format(
        # Of rows that are left out nobody can say that nothing moved in them.
        looked=sql.SQL("NULL" if step else _LOOKED_AT),
        source=thinned if step else sql.SQL("SELECT * FROM lag_samples"),
        rounds=sql.SQL(_ROUNDS),
        wanted=wanted,
        stretch=stretch,
        order=sql.SQL("ORDER BY group_name, topic, broker, date_bin({}, sampled_at, 'epoch'), sampled_at DESC").format(
            sql.Literal(step)
        )
        if step
        else sql.SQL(""),
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return parse_csv(copy)


_LOOKED_AT: Final = (
    "CASE WHEN NOT broker = ANY(before_missing) THEN (extract(epoch FROM before_at) * 1000000)::bigint END"
)


def _of(groups: Sequence[str] | None, *, with_topics: bool) -> sql.Composable:
    if groups is not None:
        return sql.SQL("group_name = ANY({})").format(sql.Literal(list(groups)))
    return sql.SQL("true" if with_topics else "group_name IS NOT NULL")


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
    for name in _MOMENTS:
        index = SCHEMA.get_field_index(name)
        field = SCHEMA.field(index)
        table = table.set_column(index, field, table.column(index).cast(pa.timestamp("us")).cast(field.type))
    return table


def samples_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table of samples as a Spark frame with the columns of SCHEMA."""
    return spark.createDataFrame(table)
