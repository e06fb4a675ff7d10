"""Samples of lag from Postgres, as a Spark frame with a row for each queue.

Table lag_samples has a row for each group, topic and broker with an array for all its queues, and only where something
changed (or five minutes went by): up to the round before a row nothing had moved. A topic that no group is sampled of has
rows without a group.

The way into Spark is COPY … CSV on one side and pyarrow's reader on the other, with not one Python object for a number:
a day of samples has millions.
"""

import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOMENTS: Final = ("sampled_at", "looked_at")
_CONVERT: Final = csv.ConvertOptions(
    column_types=_TYPES, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
)
SCHEMA: Final = pa.schema(
    [(name, pa.timestamp("us", tz="UTC") if name in _MOMENTS else _TYPES[name]) for name in _TYPES]
)
_ROUNDS: Final = "SELECT sampled_at, took_ms, missing FROM lag_sample_rounds WHERE {} ORDER BY sampled_at"
_SLACK: Final = timedelta(seconds=1)
"""By how much the length of a round, taken from another clock, may be off; far less than there is between two."""


class Round(NamedTuple):
    """A look of the sampler at all brokers: when it began, how long it took, and who did not answer."""

    began_at: datetime
    took_ms: int
    missing: Sequence[str]


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
        A table of SCHEMA. `group` is null in a topic's own row. `looked_at` is when the round before the row's began,
        up to which nothing had moved since the row before; null where that is not known: the broker did not answer then, or rows
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
        "COPY (SELECT (extract(epoch FROM sampled_at) * 1000000)::bigint, group_name, topic, broker, queue.*, NULL"
        " FROM ({source} WHERE {wanted} {order}) AS sample,"
        " unnest(queue_ids, min_offsets, max_offsets, committed_offsets) AS queue) TO STDOUT (FORMAT csv)"
    ).format(
        source=thinned if step else sql.SQL("SELECT * FROM lag_samples"),
        wanted=wanted,
        order=sql.SQL("ORDER BY group_name, topic, broker, date_bin({}, sampled_at, 'epoch'), sampled_at DESC").format(
            sql.Literal(step)
        )
        if step
        else sql.SQL(""),
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        table = parse_csv(copy)
    if step is not None:
        return table  # Of rows that are left out nobody can say that nothing moved in them.
    rounds = connection.execute(sql.SQL(_ROUNDS).format(stretch)).fetchall()
    return with_looks(table, [Round(*found) for found in rounds])


def with_looks(table: pa.Table, rounds: Sequence[Round]) -> pa.Table:
    """Fill in `looked_at`: when the round before a row's began, where the row's broker answered in that one.

    Args:
        table: Of SCHEMA.
        rounds: By time. A row is of the last one that began before it, if it had not ended.
    """
    if not rounds or table.num_rows == 0:
        return table
    began = np.array([_micros(one.began_at) for one in rounds], dtype=np.int64)
    until = began + np.array([one.took_ms * 1_000 for one in rounds], dtype=np.int64) + _SLACK // _MICROSECOND
    at = table.column("sampled_at").cast(pa.int64()).to_numpy()
    own = np.searchsorted(began, at, side="right") - 1
    known = (own >= 1) & (at <= until[own])
    for index, before in enumerate(rounds):
        if before.missing:
            away = pc.is_in(table.column("broker"), pa.array(before.missing, pa.string())).to_numpy()
            known &= ~((own == index + 1) & away)
    looked = pa.array(began[np.maximum(own - 1, 0)], mask=~known, type=pa.int64())
    index = SCHEMA.get_field_index("looked_at")
    field = SCHEMA.field(index)
    return table.set_column(index, field, looked.cast(pa.timestamp("us")).cast(field.type))


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


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
