"""A job's page: the title, the contents and the footnote that differ between the pages of jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from spark.page.markup import Html

Rows: TypeAlias = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PageData:
    """The data of one page.

    Attributes:
        rows: The rows of the report, with columns by name; None means unknown.
        history: Samples of lag: sampled_at, group, topic, lag, behind_s (None if it was unknown).
        generated_at: The time when the page was made.
    """

    rows: Sequence[Mapping[str, Any]]
    history: Rows
    generated_at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a job.

    Attributes:
        title: The title.
        foot: The first sentence of the footnote, which explains the page's main terms.
        body: Returns the contents of the header and of the main part.
    """

    title: str
    foot: str
    body: Callable[[PageData], tuple[Html, Html]]
