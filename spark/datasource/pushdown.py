"""Filters that Spark pushes down to a reader, so that the reader reads less.

Spark pushes filters once, and a row must pass all of them. A reader names the columns whose filters it applies exactly,
row by row or when it plans what to read (`exact`). Spark does not evaluate these filters again. Filters on other
columns only help to read less (`narrowing`), and Spark evaluates them again. Spark alone evaluates all other filters.

Push-down is off by default, because Spark keeps one plan of reading for all queries of a frame (ADR 0015).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark.datasource.options import Options, micros

Value = str | int
"""The value of a column in comparisons. A time is in µs since 1970."""


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """The demands on one column. A null never passes."""

    values: frozenset[Value] | None = None
    """The accepted values; None for any value."""
    at_least: int | None = None
    at_most: int | None = None

    def passes(self, value: Value | None) -> bool:
        """Return whether a row with this value passes."""
        if value is None or (self.values is not None and value not in self.values):
            return False
        if self.at_least is None and self.at_most is None:
            return True
        assert isinstance(value, int), value
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def both(self, other: "ColumnFilter") -> "ColumnFilter":
        """Return the demands of both together."""
        if self.values is None or other.values is None:
            values = self.values if other.values is None else other.values
        else:
            values = self.values & other.values
        return ColumnFilter(
            values,
            _greatest(self.at_least, other.at_least),
            _least(self.at_most, other.at_most),
        )


EVERYTHING: Final = ColumnFilter()


@dataclass(frozen=True, slots=True)
class Pushed:
    """The demands that were pushed down, by column; picklable."""

    columns: Mapping[str, ColumnFilter] = field(default_factory=dict)

    def filter_of(self, column: str) -> ColumnFilter:
        """Return the demands on a column."""
        return self.columns.get(column, EVERYTHING)

    def passes(self, column: str, value: Value | None) -> bool:
        """Return whether a value of a column passes. If there are no demands on the column, a null passes, too."""
        wanted = self.columns.get(column)
        return wanted is None or wanted.passes(value)

    def also(self, column: str, wanted: ColumnFilter) -> "Pushed":
        """Return a copy with additional demands on a column."""
        return replace(self, columns={**self.columns, column: self.filter_of(column).both(wanted)})


class NarrowedReader(DataSourceReader):
    """A reader that can leave out rows that a query does not need."""

    exact: Collection[str] = ()
    narrowing: Collection[str] = ()
    """`exact` and `narrowing` are the arguments of `push_down`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed()

    def narrow(self, filters: Sequence[Filter]) -> list[Filter]:
        """Take the filters that the reader applies, before it plans; return the filters that Spark must evaluate."""
        pushed, left = push_down(filters, exact=self.exact, narrowing=self.narrowing)
        for column, wanted in pushed.columns.items():
            self._pushed = self._pushed.also(column, wanted)
        return left


class PushedReader(DataSourceReader):
    """Lets Spark push filters down to a reader."""

    def __init__(self, reader: NarrowedReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name.
        """Take the filters that the reader applies; return the filters that Spark must evaluate."""
        return self._reader.narrow(filters)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the reader."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the reader."""
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches


def push_down(
    filters: Sequence[Filter], *, exact: Collection[str], narrowing: Collection[str] = ()
) -> tuple[Pushed, list[Filter]]:
    """Divide filters into demands to push down, and filters that Spark must evaluate.

    Args:
        filters: The filters of Spark; a row must pass all of them.
        exact: The columns whose demands the reader applies exactly.
        narrowing: The columns whose demands the reader only uses to read less.
    """
    pushed, left = Pushed(), []
    for one in filters:
        column = _column(one)
        wanted = None if column is None or column not in {*exact, *narrowing} else _wanted(one)
        if wanted is None or column is None:
            left.append(one)
            continue
        pushed = pushed.also(column, wanted)
        if column not in exact:
            left.append(one)
    return pushed, left


def _column(one: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _wanted(one: Filter) -> ColumnFilter | None:
    """Return the demands of a filter, or None if `ColumnFilter` can't express them."""
    if isinstance(one, IsNotNull):
        return EVERYTHING
    if isinstance(one, In):
        values = [_value(value) for value in one.value if value is not None]
        return None if None in values else ColumnFilter(frozenset(value for value in values if value is not None))
    if isinstance(one, EqualTo | EqualNullSafe):
        value = _value(one.value)
        return None if value is None else ColumnFilter(frozenset({value}))
    if isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        value = _value(one.value)
        if not isinstance(value, int):
            return None
        if isinstance(one, GreaterThan | GreaterThanOrEqual):
            return ColumnFilter(at_least=value + isinstance(one, GreaterThan))
        return ColumnFilter(at_most=value - isinstance(one, LessThan))
    return None


def _value(value: object) -> Value | None:
    # A moment without a zone would be in the session's time zone, which is unknown here.
    if isinstance(value, datetime):
        return None if value.tzinfo is None else micros(value)
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _greatest(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)


def _least(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
