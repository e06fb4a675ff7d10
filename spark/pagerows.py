"""Selects the rows that a report's page is made of: all rows of a small report, some rows of a large one.

A page shows some hundred groups and topics, the worst or the largest first, and stays below 2 MB. A report of more than
ROWS_MAX rows therefore gives its page only the rows of the first groups and topics. A sentence on the page says so, with
the numbers of the whole report. Memory: ROWS_MAX rows, and a rank of some hundred bytes for each group and topic.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, TypeAlias

from gantry.model.lag import severity
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
class _Ranked:
    """Groups and topics, or topics alone.

    Attributes:
        ranks: The rank of each; the lowest is shown first.
        sizes: The number of rows of each.
        said: A phrase that sums up all of them.
    """

    ranks: dict[Subject, tuple[Any, ...]] = field(default_factory=dict)
    sizes: Counter[Subject] = field(default_factory=Counter)
    said: str = ""

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


def page_rows(rows: StoredRows) -> PageRows:
    """Return the rows that a job's page is made of. Raises OSError."""
    if len(rows) <= ROWS_MAX:
        return PageRows(list(rows), "")
    plan = _PLANS[rows.job]
    ranked = plan.rank(rows.only(*plan.subject, *plan.columns))
    first = ranked.first()
    left_out = (
        f"This report has {len(rows):,} rows on {ranked.said}. This page counts and shows the first {len(first):,} of them"
        f" only; all rows: gantry report show {rows.job}."
    )
    return PageRows(list(rows.where(plan.subject, lambda row: tuple(row.values()) in first)), left_out)


def _rank_lag(rows: Iterable[Row]) -> _Ranked:
    found = _Ranked()
    verdicts: Counter[str] = Counter()
    messages = 0
    for row in rows:
        pair = row["group"], row["topic"]
        found.sizes[pair] += 1
        if row["level"] == "topic":
            rank = severity(row["verdict"]), -(row["lag_seconds"] or 0), -(row["lag_messages"] or 0)
            found.ranks[pair] = *rank, *pair
            verdicts[row["verdict"]] += 1
            messages += row["lag_messages"] or 0
    judged = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items(), key=_by_severity))
    count = len(found.ranks)
    found.said = f"{count:,} groups and topics ({judged}; {messages:,} messages behind), the worst first"
    return found


def _by_severity(item: tuple[str, int]) -> int:
    return severity(item[0])


def _rank_backlog(rows: Iterable[Row]) -> _Ranked:
    found = _Ranked()
    waiting: Counter[Subject] = Counter()
    for row in rows:
        pair = row["group"], row["topic"]
        found.sizes[pair] += 1
        # Each message is in one queue.
        waiting[pair] += (row["messages"] or 0) if row["section"] == "queue" else 0
    found.ranks = {pair: (-messages, *pair) for pair, messages in waiting.items()}
    found.said = f"{len(waiting):,} groups and topics ({waiting.total():,} messages wait), the largest first"
    return found


def _rank_throughput(rows: Iterable[Row]) -> _Ranked:
    found = _Ranked()
    came: Counter[Subject] = Counter()
    for row in rows:
        topic = (row["topic"],)
        found.sizes[topic] += 1
        # The buckets of each unit count the same messages, so one unit is enough.
        came[topic] += (row["messages"] or 0) if row["group"] is None and row["unit"] == "hour" else 0
    found.ranks = {topic: (-messages, *topic) for topic, messages in came.items()}
    found.said = f"{len(came):,} topics, the busiest first"
    return found


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a job's rows are ranked.

    Attributes:
        subject: The columns that name a subject.
        columns: Further columns that `rank` reads.
        rank: Ranks the subjects of rows.
    """

    subject: tuple[str, ...]
    columns: tuple[str, ...]
    rank: Callable[[Iterable[Row]], _Ranked]


_PLANS: Final[Mapping[str, _Plan]] = {
    "lag_report": _Plan(PAIR, ("level", "verdict", "lag_seconds", "lag_messages"), _rank_lag),
    "backlog_profile": _Plan(PAIR, ("section", "messages"), _rank_backlog),
    "throughput_rollup": _Plan(("topic",), ("group", "unit", "messages"), _rank_throughput),
}
