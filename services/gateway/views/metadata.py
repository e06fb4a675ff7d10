"""The JSON form of answers that say whether Postgres was available."""

from collections.abc import Callable
from typing import Any, TypeVar

from services.gateway.usecases.page import MetadataPage
from services.gateway.views.page import page_view

T = TypeVar("T")


def metadata_view(*, is_available: bool) -> str:
    """Return the value of `metadata` in an answer."""
    return "available" if is_available else "unavailable"


def metadata_page_view(page: MetadataPage[T], item_view: Callable[[T], Any]) -> dict[str, Any]:
    """Return a page in the contract's form, with `metadata`."""
    return {**page_view(page, item_view), "metadata": metadata_view(is_available=page.is_metadata_available)}
