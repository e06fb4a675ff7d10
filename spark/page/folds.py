"""Rows that say the same, as one: groups of one topic and one verdict, where there are many.

Five hundred groups that stopped on one topic are one finding. A page that gave each a row, a section and a chart would
have room for nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark.page.lagrows import LagRow, read_row, worst_first

FOLDED_ABOVE: Final = 20
"""Rows: so many can be read one by one."""
FOLD_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows of one topic and one verdict, the worst first; or a row alone."""

    rows: tuple[LagRow, ...]

    @property
    def worst(self) -> LagRow:
        """The row that stands for all."""
        return self.rows[0]

    @property
    def more(self) -> str:
        """What follows a name that stands for all: ` and 36 more`; empty of a row alone."""
        return f" and {len(self.rows) - 1:,} more" if len(self.rows) > 1 else ""


def fold(rows: Sequence[LagRow]) -> list[Fold]:
    """Return rows with the equal ones together, the worst first."""
    equal: dict[tuple[str, str], list[LagRow]] = {}
    for row in sorted(rows, key=worst_first):
        equal.setdefault((row.topic, row.verdict), []).append(row)
    folds: list[Fold] = []
    for found in equal.values():
        if len(rows) > FOLDED_ABOVE and len(found) >= FOLD_MIN:
            folds.append(Fold(tuple(found)))
        else:
            folds += [Fold((row,)) for row in found]
    return sorted(folds, key=lambda one: worst_first(one.worst))


def to_chart(folds: Iterable[Fold]) -> list[Fold]:
    """Return the folds whose past is worth a line, in the table's order: those not OK, or where all are OK, all."""
    folds = list(folds)
    return [one for one in folds if one.worst.verdict != "OK"] or folds


def charted_pairs(rows: Iterable[Mapping[str, Any]], most: int) -> list[tuple[str, str]]:
    """Return the (group, topic) of which a page of these rows wants the past, the most important first.

    They are more than it draws, since some may have no past. A lag of 0 has a line that says nothing.
    """
    topics = [read_row(row) for row in rows if row.get("level") != "queue"]
    wanted = [one.worst for one in to_chart(fold(topics)) if one.worst.lag_messages != 0]
    return [(row.group, row.topic) for row in wanted[:most]]
