"""Combines equal rows: groups with the same topic and the same verdict, if there are many. Retry topics count as one.

If five hundred groups stopped on one topic, that is one finding. A page that has a row, a section and a chart for each
group would have room for nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gantry.model.names import retry_topic
from spark.page.lagrows import LagRow, read_row, worst_first

COMBINED_ABOVE: Final = 20
"""The number of rows up to which nothing is combined, because people can read the rows one by one."""
COMBINED_MIN: Final = 3
RETRY_TOPICS: Final = "retry topics"
"""The name of the topic of a combined row if each group has its own, `%RETRY%group`."""


@dataclass(frozen=True, slots=True)
class CombinedRow:
    """Rows of one topic, or of the groups' retry topics, and one verdict, the worst first; or a single row."""

    rows: tuple[LagRow, ...]

    @property
    def worst(self) -> LagRow:
        """The row that represents all rows."""
        return self.rows[0]

    @property
    def topic(self) -> str:
        """The topic's name, or RETRY_TOPICS."""
        return self.worst.topic if len(self.rows) == 1 else _shared_topic(self.worst)

    @property
    def more(self) -> str:
        """The text after the name of the worst row, such as ` and 36 more`; empty for a single row."""
        return f" and {len(self.rows) - 1:,} more" if len(self.rows) > 1 else ""


def combine_rows(rows: Sequence[LagRow]) -> list[CombinedRow]:
    """Return the rows with equal rows combined, the worst first."""
    equal: dict[tuple[str, str], list[LagRow]] = {}
    for row in sorted(rows, key=worst_first):
        equal.setdefault((_shared_topic(row), row.verdict), []).append(row)
    combined: list[CombinedRow] = []
    for found in equal.values():
        if len(rows) > COMBINED_ABOVE and len(found) >= COMBINED_MIN:
            combined.append(CombinedRow(tuple(found)))
        else:
            combined += [CombinedRow((row,)) for row in found]
    return sorted(combined, key=lambda one: worst_first(one.worst))


def _shared_topic(row: LagRow) -> str:
    return RETRY_TOPICS if row.topic == retry_topic(row.group) else row.topic


def rows_to_chart(combined: Iterable[CombinedRow]) -> list[CombinedRow]:
    """Return the rows whose history is worth a chart, in the table's order: those not OK or, if all are OK, all."""
    combined = list(combined)
    return [one for one in combined if one.worst.verdict != "OK"] or combined


def charted_pairs(rows: Iterable[Mapping[str, Any]], most: int) -> list[tuple[str, str]]:
    """Return the (group, topic) pairs whose history a page of these rows needs, the most important first.

    There are more pairs than the page draws, because some may have no history. Pairs with a lag of 0 are left out,
    because their lines show nothing.
    """
    topics = [read_row(row) for row in rows if row.get("level") != "queue"]
    charted = [one.worst for one in rows_to_chart(combine_rows(topics)) if one.worst.lag_messages != 0]
    return [(row.group, row.topic) for row in charted[:most]]
