"""The report of a benchmark: a figure, the baseline of the same run, their ratio, and the aim."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    `figure` and `baseline` are in `unit`. `aim` describes the promise to users. `reached` is whether this run kept the
    promise, or None if there is none.
    """

    name: str
    figure: float
    unit: str
    baseline_name: str = ""
    baseline: float | None = None
    aim: str = ""
    reached: bool | None = None

    @property
    def ratio(self) -> float | None:
        """The figure divided by the baseline."""
        return None if not self.baseline else self.figure / self.baseline


def show(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print the rows as a table, or as one JSON object per line."""
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row) | {"ratio": row.ratio}))
        return
    table = Table(title="Measured on this machine, in this run")
    for name in ("what", "figure", "baseline", "ratio", "aim", "kept"):
        table.add_column(name, justify="right" if name in {"figure", "ratio"} else "left")
    for row in rows:
        table.add_row(
            row.name,
            f"{_shown(row.figure)} {row.unit}",
            f"{row.baseline_name}: {_shown(row.baseline)}" if row.baseline is not None else row.baseline_name,
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            row.aim,
            {True: "yes", False: "no", None: ""}[row.reached],
        )
    Console(width=160).print(table)


def _shown(figure: float) -> str:
    if figure >= 1000 or figure == int(figure):
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"
