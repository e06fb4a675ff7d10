"""Reads a report's rows from Parquet files of this machine, a piece at a time.

A report of a large cluster has hundreds of thousands of rows, and each takes some kilobytes as Python objects. So the
driver never holds all of them. Postgres, the page and the JSON output are written from these files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from spark.results import ROWS_AT_ONCE


class StoredRows:
    """The rows of a run, in the order of its files. Each pass reads the files, except for small reports.

    Attributes:
        files: Parquet files of this machine, with the same schema.
        json: The columns whose texts are JSON.
    """

    def __init__(self, files: Sequence[Path], *, json: AbstractSet[str] = frozenset()) -> None:
        """Read the number of rows in the files. Raises OSError."""
        self.files = files
        self.json = json
        self._count: int = sum(parquet.read_metadata(file).num_rows for file in files)
        self._few: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts, which the caller must not change; see to_rows. Raises OSError."""
        if self._count > ROWS_AT_ONCE:
            return self._read()
        if self._few is None:
            self._few = list(self._read())
        return iter(self._few)

    def _read(self) -> Iterator[dict[str, Any]]:
        for piece in self.pieces():
            yield from to_rows(piece, json=self.json)

    def only(self, *columns: str) -> Iterator[dict[str, Any]]:
        """Yield the rows with at least these columns: a few plain columns take a tenth of the time. Raises OSError."""
        if self._count <= ROWS_AT_ONCE:
            yield from self
            return
        for piece in self.pieces(columns):
            yield from to_rows(piece, json=self.json)

    def where(self, columns: Sequence[str], is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
        """Yield the rows, with all columns, for which `is_wanted` is true; it gets only `columns`. Raises OSError."""
        for piece in self.pieces():
            wanted = [is_wanted(row) for row in piece.select(columns).to_pylist()]
            yield from to_rows(piece.filter(pa.array(wanted, pa.bool_())), json=self.json)

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows, or some columns of them, as tables of at most ROWS_AT_ONCE. Raises OSError."""
        for file in self.files:
            # With pre_buffer, all row groups would be read ahead.
            with parquet.ParquetFile(file, pre_buffer=False) as source:
                for batch in source.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
                    yield pa.Table.from_batches([batch])


def _unchanged(row: dict[str, Any]) -> None:
    """Leave a row alone."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Additions to a job's rows that need all computed rows.

    Attributes:
        columns: The names and types of the additional columns, in their order.
        fill: Sets the value of each additional column in a row; it may also replace values of JSON columns.
        history: The history that the page draws.
    """

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    fill: Callable[[dict[str, Any]], None] = _unchanged
    history: Sequence[Mapping[str, Any]] = ()


def complete(rows: StoredRows, target: Path, finished: Finished) -> StoredRows:
    """Write computed rows with their additional columns to one file; return the rows of that file. Raises OSError.

    Times keep milliseconds, which is what the brokers have.
    """
    schema = parquet.read_schema(rows.files[0])
    for name, kind in finished.columns.items():
        schema = schema.append(pa.field(name, kind))
    with parquet.ParquetWriter(
        target, schema, compression="zstd", coerce_timestamps="ms", allow_truncated_timestamps=True
    ) as writer:
        for piece in rows.pieces():
            writer.write_table(_filled(piece, finished, json=rows.json).cast(schema))
    return StoredRows([target], json=rows.json)


def _filled(piece: pa.Table, finished: Finished, *, json: AbstractSet[str]) -> pa.Table:
    if not finished.columns:
        return piece
    rows = to_rows(piece, json=json)
    texts = {name: piece[name].to_pylist() for name in json & _strings(piece)}
    for at, row in enumerate(rows):
        before = {name: row[name] for name in texts}
        finished.fill(row)
        for name, value in before.items():
            if row[name] is not value:
                texts[name][at] = dumps(row[name], ensure_ascii=False)
    for name, values in texts.items():
        piece = piece.set_column(piece.schema.get_field_index(name), name, pa.array(values, pa.string()))
    for name, kind in finished.columns.items():
        piece = piece.append_column(name, pa.array([row[name] for row in rows], kind))
    return piece


def _strings(table: pa.Table) -> set[str]:
    return {column.name for column in table.schema if pa.types.is_string(column.type)}


def to_rows(table: pa.Table, *, json: AbstractSet[str] = frozenset()) -> list[dict[str, Any]]:
    """Return a table's rows by name. Maps become dicts, and the texts of the columns in `json` are decoded."""
    maps = {column.name for column in table.schema if pa.types.is_map(column.type)}
    texts = json & _strings(table)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows if maps or texts else ():
        for name in maps:
            row[name] = None if row[name] is None else dict(row[name])
        for name in texts:
            row[name] = None if row[name] is None else msgspec.json.decode(row[name])
    return rows
