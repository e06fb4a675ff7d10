"""A run's results in Postgres: all rows, the page, events of alerts and the run's success in one transaction.

Before it nothing of a run is seen, after it everything is. A job that fails, is killed or is given up leaves the
report before it in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
from psycopg import sql
from psycopg.types.json import Jsonb

from gantry.model.alert import AlertSettings
from spark.alerts import Pair, Seen, evaluate, noting
from spark.postgres import Connection
from spark.runs import Runs

Row = Mapping[str, Any]

ROWS_AT_ONCE: Final = 1_000
"""The rows of a report that are in memory at once: some megabytes."""


class Rows(Protocol):
    """A report's rows. They need not be in memory: each iteration may read them from files."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        ...


class FencedError(Exception):
    """The run is no longer this attempt's: it was given up for dead, and its results must not be kept."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a job's rows.

    `columns` are its columns and the names that rows have for them; those in `json` are kept as JSON. Rows of a table
    with a `key` replace older ones with that key; others belong to their run.
    """

    name: str
    columns: Mapping[str, str]
    json: frozenset[str] = frozenset()
    key: Sequence[str] = ()


def _same(*names: str, **renamed: str) -> dict[str, str]:
    return {**renamed, **{name: name for name in names}}


LAG_REPORT: Final = "lag_report"
TABLES: Final = {
    LAG_REPORT: Table(
        "report_lag_rows",
        _same(
            *("level", "topic", "broker", "queue_id", "as_of", "lag_messages", "lag_seconds", "oldest_unconsumed_at"),
            *("in_rate", "out_rate", "drain_eta_s", "drain_eta_low_s", "drain_eta_high_s", "retention_left_s", "skew"),
            *("top_tags", "clients", "verdict", "cause", "next_step", "evidence", "behind_since", "owners"),
            group_name="group",
        ),
        json=frozenset({"top_tags", "evidence", "owners"}),
    ),
    "backlog_profile": Table(
        "report_backlog_rows",
        _same(
            *("topic", "section", "bucket", "lower_bound", "upper_bound", "messages", "bytes"),
            group_name="group",
        ),
    ),
    "throughput_rollup": Table(
        "report_throughput",
        _same(
            *("unit", "bucket_at", "topic", "messages", "rate_max", "lag_messages", "covered_s"),
            group_name="group",
        ),
        key=("unit", "bucket_at", "topic", "group_name"),
    ),
}


def publish(
    connection: Connection,
    job: str,
    *,
    run_id: UUID,
    attempt: int,
    rows: Rows,
    page: str,
    files: Mapping[str, str],
    alerts: AlertSettings | None = None,
    began_at: datetime | None = None,
) -> None:
    """Make a run's results the latest ones of its job.

    Args:
        connection: In autocommit mode.
        job: One of TABLES.
        run_id: The run.
        attempt: The attempt that claimed it.
        rows: By the names of the job's transform; a name that is not there is null.
        page: The HTML.
        files: Where page and Parquet lie: `html`, `parquet`.
        alerts: For how long verdicts of a lag report must hold; defaults where None.
        began_at: When the run began.

    Raises:
        FencedError: The run is not this attempt's any more; nothing was written.
        psycopg.Error: Nothing was written.
    """
    with connection.transaction():
        # First, since it locks the row: whoever wants to take the run away waits, or is seen here.
        if not Runs(connection).finish(run_id, attempt, rows=len(rows), files=files):
            raise FencedError(f"run {run_id} was given to another process meanwhile, so these results are not kept")
        if job == LAG_REPORT:
            seen: dict[Pair, Seen] = {}
            _write(connection, TABLES[job], run_id, noting(rows, seen))
            evaluate(connection, seen, run_id=run_id, settings=alerts or AlertSettings(), began_at=began_at)
        else:
            _write(connection, TABLES[job], run_id, iter(rows))
        connection.execute("DELETE FROM report_pages WHERE run_id = %s", (run_id,))
        connection.execute("INSERT INTO report_pages (run_id, html) VALUES (%s, %s)", (run_id, page))


def _write(connection: Connection, table: Table, run_id: UUID, rows: Iterator[Row]) -> None:
    names = ["run_id", *table.columns]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    target = sql.Identifier(table.name)
    if table.key:
        target = sql.Identifier("fresh")
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE fresh ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                columns, sql.Identifier(table.name)
            )
        )
    else:
        connection.execute(sql.SQL("DELETE FROM {} WHERE run_id = %s").format(target), (run_id,))
    copied = sql.SQL("COPY {} ({}) FROM STDIN").format(target, columns)
    # Each piece is read before its statement begins, because the server limits the time of a statement.
    for piece in in_pieces(rows):
        with connection.cursor() as cursor, cursor.copy(copied) as copy:
            for row in piece:
                copy.write_row((run_id, *_values(table, row)))
    if table.key:
        connection.execute(_merge(table, columns, names))


def _merge(table: Table, columns: sql.Composed, names: Sequence[str]) -> sql.Composed:
    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
    changes = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names if name not in table.key]
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM fresh"
        " ON CONFLICT ({key}) DO UPDATE SET {changes}, updated_at = now()"
    ).format(table=sql.Identifier(table.name), columns=columns, key=key, changes=sql.SQL(", ").join(changes))


def in_pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield lists of at most ROWS_AT_ONCE rows, none of them empty."""
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        yield piece


def _values(table: Table, row: Row) -> Iterator[Any]:
    for column, name in table.columns.items():
        yield as_json(row.get(name)) if column in table.json else as_text(row.get(name))


def as_json(value: Any) -> Jsonb | None:
    """Return a column's value for a JSON column: JSON text is taken apart, so that it is not kept as a string."""
    if value is None:
        return None
    if isinstance(value, str):
        value = msgspec.json.decode(value)
    return Jsonb(value, dumps=_dump)


def as_text(value: Any) -> Any:
    """Return a value as Postgres takes it: a text there has no NUL, which a key or tag of a message may have."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value


def _dump(value: Any) -> bytes:
    # datetimes become ISO 8601; JSON has no NaN, msgspec writes null; jsonb refuses the escape of NUL.
    return msgspec.json.encode(value, enc_hook=_other).replace(b"\\u0000", "\N{SYMBOL FOR NULL}".encode())


def _other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise NotImplementedError(type(value).__name__)
