"""Overview tables: columns on a wide screen, and on a phone a card for each row, so that no column is lost."""

from typing import Final

from spark.page.markup import Content, Html, el

COLUMNS: Final = {
    "lag": ("Group and topic", "Messages behind", "Time behind", "In", "Out", "Gone in", "Deletion in"),
    "backlog": ("Group and topic", "Messages", "Bodies", "Oldest", "Fullest queue"),
    "flow": ("Topic and group", "In", "Mean in", "Peak in", "Out", "Mean out", "Peak out"),
}
"""Kind of table → the names of its columns. The first column names the row."""


def overview(kind: str, body: Content) -> Html:
    """Return a table of one of the kinds in COLUMNS."""
    head = el("tr", [el("th", name, scope="col") for name in COLUMNS[kind]])
    return el("table", el("thead", head), el("tbody", body), class_=f"overview {kind}")


def card_rules() -> str:
    """Return the style rules that name each value on a card, because a card has no column heads."""
    return "".join(
        f'.{kind} td:nth-of-type({at})::before{{content:"{name}"}}'
        for kind, names in COLUMNS.items()
        for at, name in enumerate(names[1:], start=1)
    )
