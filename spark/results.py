"""Writes a run's results to Postgres: all rows, the page, events of alerts and the run's success in one transaction.

Other processes see either nothing of a run or all of it. If a job fails, is killed or is declared dead, the previous
report stays.
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
from spark.alerts import Pair, ReportedVerdict, collect_verdicts, evaluate
from spark.postgres import Connection
from spark.runs import Runs

Row = Mapping[str, Any]

ROWS_AT_ONCE: Final = 1_000
"""The number of a report's rows that are in memory at the same time: some megabytes."""
MERGED_AT_ONCE: Final = 50_000
"""The number of rows that one statement merges into a table with a key. The server limits the time of a statement, and
six hours of throughput of 2,000 groups are 800,000 rows, which took 40 s."""


class Rows(Protocol):
    """A report's rows. They need not be in memory: each iteration may read them from files."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        ...


class FencedError(Exception):
    """The run no longer belongs to this attempt: it was declared dead, so its results must not be kept."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a job's rows.

    Attributes:
        name: The name of the table.
        columns: The columns, and the name that the rows have for each.
        json: The columns that are kept as JSON.
        key: The key of a table whose rows replace older rows with the same key. Empty: rows belong to their run.
    """

    name: str
    columns: Mapping[str, str]
    json: frozenset[str] = frozenset()
    key: Sequence[str] = ()


def columns_of(*names: str, **renamed: str) -> dict[str, str]:
    """Return a table's columns: those that are named as in the rows, and those of another name (column="name")."""
    return {**renamed, **{name: name for name in names}}


def publish(
    connection: Connection,
    table: Table,
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
        connection: A connection in autocommit mode.
        table: The table of the job's rows.
        run_id: The run.
        attempt: The attempt that claimed the run.
        rows: The rows, by the names of the job's transform. A missing name becomes null.
        page: The HTML.
        files: The paths or URIs of the page (`html`) and of the Parquet file (`parquet`).
        alerts: The settings of alerts, for a job whose verdicts open and resolve them; None for other jobs.
        began_at: The time when the run began.

    Raises:
        FencedError: The run no longer belongs to this attempt; nothing was written.
        psycopg.Error: Nothing was written.
    """
    with connection.transaction():
        # This is first because it locks the row. A scheduler that wants to give the run to another attempt waits until
        # this transaction ends, or has already done so, and then this statement finds nothing.
        if not Runs(connection).finish(run_id, attempt, rows=len(rows), files=files):
            raise FencedError(f"run {run_id} was given to another process meanwhile, so these results are not kept")
        if alerts is not None:
            seen: dict[Pair, ReportedVerdict] = {}
            _write(connection, table, run_id, collect_verdicts(rows, seen))
            evaluate(connection, seen, run_id=run_id, settings=alerts, began_at=began_at)
        else:
            _write(connection, table, run_id, iter(rows))
        connection.execute("DELETE FROM report_pages WHERE run_id = %s", (run_id,))
        connection.execute("INSERT INTO report_pages (run_id, html) VALUES (%s, %s)", (run_id, page))


def _write(connection: Connection, table: Table, run_id: UUID, rows: Iterator[Row]) -> None:
    names = ["run_id", *table.columns]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    target = sql.Identifier("fresh" if table.key else table.name)
    if table.key:
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE fresh ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                columns, sql.Identifier(table.name)
            )
        )
    else:
        connection.execute(sql.SQL("DELETE FROM {} WHERE run_id = %s").format(target), (run_id,))
    copied = sql.SQL("COPY {} ({}) FROM STDIN").format(target, columns)
    waiting = 0
    # Each piece is read before its statement begins, because the server limits the time of a statement.
    for piece in in_pieces(rows):
        with connection.cursor() as cursor, cursor.copy(copied) as copy:
            for row in piece:
                copy.write_row((run_id, *_values(table, row)))
        waiting += len(piece)
        if table.key and waiting >= MERGED_AT_ONCE:
            _merge(connection, table, columns, names)
            waiting = 0
    if table.key and waiting:
        _merge(connection, table, columns, names)


def _merge(connection: Connection, table: Table, columns: sql.Composed, names: Sequence[str]) -> None:
    """Move the rows of the temporary table into a table with a key."""
    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
    changes = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names if name not in table.key]
    connection.execute(
        sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM fresh"
            " ON CONFLICT ({key}) DO UPDATE SET {changes}, updated_at = now()"
        ).format(table=sql.Identifier(table.name), columns=columns, key=key, changes=sql.SQL(", ").join(changes))
    )
    connection.execute("TRUNCATE fresh")


def in_pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield lists of at most ROWS_AT_ONCE rows, none of them empty."""
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        yield piece


def _values(table: Table, row: Row) -> Iterator[Any]:
    for column, name in table.columns.items():
        yield as_json(row.get(name)) if column in table.json else as_text(row.get(name))


def as_json(value: Any) -> Jsonb | None:
    """Return a value for a JSON column. JSON text is decoded, or Postgres would keep it as one string."""
    if value is None:
        return None
    if isinstance(value, str):
        value = msgspec.json.decode(value)
    return Jsonb(value, dumps=_encode_json)


def as_text(value: Any) -> Any:
    """Return a value as Postgres accepts it: without NUL, which a key or a tag of a message may contain."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value


def _encode_json(value: Any) -> bytes:
    # Times become ISO 8601. JSON has no NaN, so msgspec writes null. jsonb rejects the escape of NUL.
    return msgspec.json.encode(value, enc_hook=_encode_time).replace(b"\\u0000", "\N{SYMBOL FOR NULL}".encode())


def _encode_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise NotImplementedError(type(value).__name__)
