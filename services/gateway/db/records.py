"""Records: rows of plain tables as typed values. Mapped classes (models.py) need none."""

from dataclasses import fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def read_all(kind: type[T], result: Result[Any]) -> list[T]:
    """Return the rows of a result as records; each of the fields of `kind`, at least two, is a column."""
    columns = list(result.keys())
    # Looking columns up by name in each row would take most of the time of a page.
    values = itemgetter(*(columns.index(field.name) for field in fields(kind)))
    return [kind(*values(row)) for row in result]


def find_one(kind: type[T], result: Result[Any]) -> T | None:
    """Return the only row of a result as a record, or None without a row."""
    found = read_all(kind, result)
    assert len(found) <= 1, f"{len(found)} rows"
    return found[0] if found else None
