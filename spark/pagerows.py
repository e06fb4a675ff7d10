"""Selects the rows that a report's page is made of: all rows of a small report, some rows of a large one.

A page shows some hundred groups and topics, the worst or the largest first, and stays below 2 MB. A report of more than
ROWS_MAX rows therefore gives its page only the rows of the first groups and topics. A sentence on the page says so,
with the numbers of the whole report. Memory: ROWS_MAX rows, and a rank of some hundred bytes for each group and topic.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, TypeAlias

from spark.results import Row
from spark.storedrows import StoredRows

ROWS_MAX: Final = 40_000
"""A report of 2,000 groups with 16 queues each has fewer."""
SUBJECTS_MAX: Final = 10_000
PAIR: Final = ("group", "topic")

Subject: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PageRows:
    """Rows for a page, and a sentence about the rows that were left out; empty if none were."""

    rows: list[Row]
    left_out: str


@dataclass(slots=True)
class RankedPairs:
    """Groups and topics, or topics alone.

    Attributes:
        ranks: The rank of each; the lowest is shown first.
        sizes: The number of rows of each.
        summary: A phrase that sums up all of them.
    """

    ranks: dict[Subject, tuple[Any, ...]] = field(default_factory=dict)
    sizes: Counter[Subject] = field(default_factory=Counter)
    summary: str = ""

    def first(self) -> set[Subject]:
        """Return the subjects that a page has room for."""
        found: set[Subject] = set()
        room = ROWS_MAX
        for subject in nsmallest(SUBJECTS_MAX, self.ranks, key=self.ranks.__getitem__):
            # A part of a subject's rows would give wrong numbers.
            if self.sizes[subject] <= room:
                room -= self.sizes[subject]
                found.add(subject)
        return found


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of a job's rows.

    Attributes:
        subject: The columns that name a subject.
        columns: Further columns that `rank` reads.
        rank: Ranks the subjects of rows.
    """

    subject: tuple[str, ...]
    columns: tuple[str, ...]
    rank: Callable[[Iterable[Row]], RankedPairs]


def page_rows(rows: StoredRows, *, job: str, ranking: Ranking) -> PageRows:
    """Return the rows that a job's page is made of. Raises OSError."""
    if len(rows) <= ROWS_MAX:
        return PageRows(list(rows), "")
    ranked = ranking.rank(rows.only(*ranking.subject, *ranking.columns))
    first = ranked.first()
    left_out = (
        f"This report has {len(rows):,} rows on {ranked.summary}. This page counts and shows the first {len(first):,} of them"
        f" only; all rows: gantry report show {job}."
    )
    return PageRows(list(rows.where(ranking.subject, lambda row: tuple(row.values()) in first)), left_out)
