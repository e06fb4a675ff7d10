"""One page of a listing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing.

    Attributes:
        items: The items of this page, in the order of the listing.
        next_cursor: The cursor of the next page; None on the last page.
    """

    items: Sequence[T]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPage(Page[T]):
    """One page of a listing that has less to tell without Postgres.

    Attributes:
        is_metadata_available: Whether Postgres answered.
    """

    is_metadata_available: bool
