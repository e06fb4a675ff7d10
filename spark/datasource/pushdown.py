"""What Spark asks of a column, pushed down to where it saves work.

Spark pushes filters once, and all have to hold. A reader names the columns it can decide row by row or by what it plans to
read (`exact`); of those Spark evaluates nothing again. Others, which only help to read less (`narrowing`), are given back
too. All else is Spark's.

Only on request: Spark keeps one plan of reading for all queries of a frame (ADR 0015).
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
"""A column's value as it is compared: times are µs since 1970."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of one column; a null never passes."""

    values: frozenset[Value] | None = None
    """One of these; None: any."""
    at_least: int | None = None
    at_most: int | None = None

    def passes(self, value: Value | None) -> bool:
        """Say whether a row with this value is wanted."""
        if value is None or (self.values is not None and value not in self.values):
            return False
        if self.at_least is None and self.at_most is None:
            return True
        assert isinstance(value, int), value
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def both(self, other: "Wanted") -> "Wanted":
        """Return what passes both."""
        if self.values is None or other.values is None:
            values = self.values if other.values is None else other.values
        else:
            values = self.values & other.values
        return Wanted(
            values,
            _greatest(self.at_least, other.at_least),
            _least(self.at_most, other.at_most),
        )


EVERYTHING: Final = Wanted()


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was pushed down; picklable."""

    columns: Mapping[str, Wanted] = field(default_factory=dict)

    def wanted(self, column: str) -> Wanted:
        """Return what is asked of a column."""
        return self.columns.get(column, EVERYTHING)

    def passes(self, column: str, value: Value | None) -> bool:
        """Say whether a value of a column is wanted; where nothing is asked, a null is, too."""
        wanted = self.columns.get(column)
        return wanted is None or wanted.passes(value)

    def also(self, column: str, wanted: Wanted) -> "Pushed":
        """Return it with one more demand."""
        return replace(self, columns={**self.columns, column: self.wanted(column).both(wanted)})


class NarrowedReader(DataSourceReader):
    """A reader that can leave out what a query does not want."""

    exact: Collection[str] = ()
    narrowing: Collection[str] = ()
    """As `push_down` has them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed()

    def narrow(self, filters: Sequence[Filter]) -> list[Filter]:
        """Take what the reader decides, before it plans; return the rest."""
        pushed, left = push_down(filters, exact=self.exact, narrowing=self.narrowing)
        for column, wanted in pushed.columns.items():
            self._pushed = self._pushed.also(column, wanted)
        return left


class PushedReader(DataSourceReader):
    """Has Spark push filters down to a reader."""

    def __init__(self, reader: NarrowedReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name.
        """Take what the reader decides; return the rest."""
        return self._reader.narrow(filters)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan, as the reader does."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read, as the reader does."""
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches


def push_down(
    filters: Sequence[Filter], *, exact: Collection[str], narrowing: Collection[str] = ()
) -> tuple[Pushed, list[Filter]]:
    """Sort filters into what is pushed down and what Spark still has to evaluate.

    Args:
        filters: Spark's; all have to hold.
        exact: Columns whose demands the reader keeps to the letter.
        narrowing: Columns whose demands the reader uses to read less, and no more.
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


def _wanted(one: Filter) -> Wanted | None:
    """Return what a filter asks, or None where that can't be said in our words."""
    if isinstance(one, IsNotNull):
        return EVERYTHING
    if isinstance(one, In):
        values = [_value(value) for value in one.value if value is not None]
        return None if None in values else Wanted(frozenset(value for value in values if value is not None))
    if isinstance(one, EqualTo | EqualNullSafe):
        value = _value(one.value)
        return None if value is None else Wanted(frozenset({value}))
    if isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        value = _value(one.value)
        if not isinstance(value, int):
            return None
        if isinstance(one, GreaterThan | GreaterThanOrEqual):
            return Wanted(at_least=value + isinstance(one, GreaterThan))
        return Wanted(at_most=value - isinstance(one, LessThan))
    return None


def _value(value: object) -> Value | None:
    # A moment without a zone would be one of the session's, which is not known here.
    if isinstance(value, datetime):
        return None if value.tzinfo is None else micros(value)
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _greatest(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)


def _least(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
