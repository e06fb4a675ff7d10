"""The JSON form of a page of a listing."""

from collections.abc import Callable
from typing import Any, TypeVar

from services.gateway.usecases.page import Page

T = TypeVar("T")


def page_view(page: Page[T], item_view: Callable[[T], Any]) -> dict[str, Any]:
    """Return a page in the contract's form, each item as `item_view` renders it."""
    return {"items": [item_view(item) for item in page.items], "next_cursor": page.next_cursor}
