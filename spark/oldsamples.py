"""Reads samples that gateways before migration 0016 wrote to the table lag_samples.

A row has the queues of a group and a topic on a broker, in arrays.

When these samples are too old to be kept, the gateway drops their partitions. Then this module can be removed.
"""

import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from spark.postgres import Connection

# Postgres writes an empty text as "", and null as nothing.
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
_STRETCH: Final = "sampled_at BETWEEN {} AND {}"


def count_old_rows(connection: Connection, since: datetime, until: datetime) -> int:
    """Return the number of rows of queues in a period."""
    stretch = sql.SQL(_STRETCH).format(sql.Literal(since), sql.Literal(until))
    row = connection.execute(
        sql.SQL("SELECT coalesce(sum(cardinality(queue_ids)), 0) FROM lag_samples WHERE {}").format(stretch)
    ).fetchone()
    assert row is not None
    return int(row[0])


def read_old_samples(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    groups: Sequence[str] | None = None,
    with_topics: bool = False,
    step: timedelta | None = None,
) -> pa.Table:
    """Return old samples as `lagsamples.read_samples` does, without `is_served` and with `looked_at` null.

    Args:
        connection: A connection to the database.
        since: The start of the period, inclusive.
        until: The end of the period, inclusive.
        groups: The groups; None for all.
        with_topics: Whether to include samples of topics without a group. It has no effect if groups are named.
        step: The length of a step, of which only the last sample is returned; None for all samples.
    """
    wanted = sql.SQL(_STRETCH + " AND {}").format(
        sql.Literal(since), sql.Literal(until), _group_condition(groups, with_topics=with_topics)
    )
    thinned = sql.SQL(
        "SELECT DISTINCT ON (group_name, topic, broker, date_bin({step}, sampled_at, 'epoch')) *"
        " FROM lag_samples WHERE {wanted}"
        " ORDER BY group_name, topic, broker, date_bin({step}, sampled_at, 'epoch'), sampled_at DESC"
    ).format(step=sql.Literal(step), wanted=wanted)
    query = sql.SQL(
        "COPY (SELECT (extract(epoch FROM sampled_at) * 1000000)::bigint, group_name, topic, broker, queue.*, NULL"
        " FROM ({source}) AS sample,"
        " unnest(queue_ids, min_offsets, max_offsets, committed_offsets) AS queue) TO STDOUT (FORMAT csv)"
    ).format(source=thinned if step else sql.SQL("SELECT * FROM lag_samples WHERE {}").format(wanted))
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return parse_csv(copy)


def _group_condition(groups: Sequence[str] | None, *, with_topics: bool) -> sql.Composable:
    if groups is not None:
        return sql.SQL("group_name = ANY({})").format(sql.Literal(list(groups)))
    return sql.SQL("true" if with_topics else "group_name IS NOT NULL")


def parse_csv(chunks: Iterable[bytes | bytearray | memoryview]) -> pa.Table:
    """Return the CSV output of COPY as a table of SCHEMA."""
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
