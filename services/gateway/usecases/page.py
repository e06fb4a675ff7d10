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
