"""The table of the lag report: one row for each group and topic, the worst first.

Equal rows (combinedrows.py: same topic, same verdict, and many of them) share a row, which shows ranges. It opens to the rows
of its groups.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from gantry.model.lag import NO_END, severity
from spark.page.combinedrows import CombinedRow
from spark.page.formatting import EMPTY_CELL, count, duration, plural, rate, time_left
from spark.page.laggroups import badge
from spark.page.laglines import drained_between, drained_cell
from spark.page.lagrows import LagRow
from spark.page.markup import Content, Html, el, within
from spark.page.tables import COLUMNS, overview

TABLE_BYTES_MAX: Final = 450_000
"""The limit for the size of the table's rows. The last rows beyond it are left out, and the page says how many."""
MEMBERS_MAX: Final = 50
"""The limit for the groups listed in a shared row."""

T = TypeVar("T")


def lag_table(combined: Sequence[CombinedRow], *, groups: int, anchors: Mapping[str, str]) -> Html:
    """Return the section with the table, and above it the number of rows for each verdict.

    Args:
        combined: The rows of the table, the worst first; see combinedrows.combine_rows.
        groups: The number of groups in the report.
        anchors: Group → the id of its details on this page. Groups without an id are not linked.
    """
    rows = [row for one in combined for row in one.rows]
    listed = within((_table_rows(one, anchors) for one in combined), TABLE_BYTES_MAX)
    left = sum(len(one.rows) for one in combined[len(listed) :])
    rest = f"{left:,} more, none of them worse than the last one here, are left out." if left else None
    title = f"All {plural(groups, 'group')}" if groups > 1 else "The group"
    note = el("p", rest, class_="note") if rest else None
    return el("section", el("h2", title), _counts(rows), overview("lag", listed), note)


def _counts(rows: Sequence[LagRow]) -> Html:
    """Return the list of verdicts, the worst first, each with its number of rows."""
    counted = Counter(row.verdict for row in rows)
    firsts = {row.verdict: row for row in reversed(rows)}
    return el(
        "ul",
        [el("li", badge(firsts[verdict]), f" {counted[verdict]:,}") for verdict in sorted(counted, key=severity)],
        class_="counts",
    )


def _table_rows(one: CombinedRow, anchors: Mapping[str, str]) -> Html:
    """Return the row of a single group; or the shared row of equal groups, and one that opens to their own rows."""
    if len(one.rows) == 1:
        return _row(one.worst, anchors.get(one.worst.group))
    worst, members = one.worst, one.rows[:MEMBERS_MAX]
    why = el("span", "The worst, ", el("bdi", worst.group), f": {worst.cause}", class_="cause") if worst.cause else None
    names = f"{len(one.rows):,} groups ", el("span", el("bdi", one.topic), class_="topicname"), why
    left = len(one.rows) - len(members)
    more = el("p", f"{left:,} more like these, none of them worse, are left out.", class_="note") if left else None
    inner = overview("lag", [_row(row, anchors.get(row.group)) for row in members])
    opened = el("details", el("summary", f"The {len(one.rows):,} groups"), inner, more)
    return Html(
        el(
            "tr",
            el("th", _name(worst, names), scope="row"),
            el("td", _range(one, lambda row: row.lag_messages, count)),
            el("td", _range(one, lambda row: row.lag_seconds if row.waits else 0, duration, zero=EMPTY_CELL)),
            el("td", _range(one, lambda row: row.in_rate, rate)),
            el("td", _range(one, lambda row: row.out_rate, rate)),
            el("td", _drain_range(one)),
            el("td", _range(_waiting(one), lambda row: row.retention_left_s, time_left)),
            class_="many",
        )
        + el("tr", el("td", opened, colspan=len(COLUMNS["lag"]), class_="folded"))
    )


def _row(row: LagRow, anchor: str | None) -> Html:
    name, topic = el("bdi", row.group), el("span", el("bdi", row.topic), class_="topicname")
    # A row that is OK needs its cause only if messages are behind and none waits: the group's filter rejects them all.
    shows_cause = row.verdict != "OK" or (row.lag_messages != 0 and not row.waits)
    why = el("span", row.cause, class_="cause") if shows_cause and row.cause else None
    linked = el("a", name, href=f"#{anchor}") if anchor else name
    if row.drains is False and row.matters:
        drained_in: Content = "never"
    else:
        drained_in = drained_cell(row) if row.matters else EMPTY_CELL
    return el(
        "tr",
        el("th", _name(row, [linked, " ", topic, why]), scope="row"),
        el("td", _short(row.lag_messages, count)),
        el("td", _short(row.lag_seconds, duration) if row.waits else EMPTY_CELL),
        el("td", _short(row.in_rate, rate)),
        el("td", _short(row.out_rate, rate)),
        el("td", drained_in),
        el("td", _short(row.retention_left_s, time_left) if row.waits else EMPTY_CELL),
    )


def _name(row: LagRow, names: Content) -> Html:
    return el("div", el("span", badge(row), class_="slot"), el("div", names, class_="names"), class_="name")


def _waiting(one: CombinedRow) -> CombinedRow:
    """Return the rows in which messages wait."""
    return CombinedRow(tuple(row for row in one.rows if row.waits))


def _drain_range(one: CombinedRow) -> Content:
    """Return the range of times until the backlogs are consumed, or how many rows never get there."""
    matter = CombinedRow(tuple(row for row in one.rows if row.matters))
    if any(row.drains is False for row in matter.rows):
        never = sum(row.drains is False for row in matter.rows)
        return "never" if never == len(one.rows) else f"never: {never:,} of {len(one.rows):,}"
    endless = sum(drained_between(row) == NO_END for row in matter.rows)
    if endless:
        return NO_END if endless == len(one.rows) else f"{NO_END}: {endless:,} of {len(one.rows):,}"
    return _range(matter, lambda row: row.drain_eta_high_s, duration, low_of=lambda row: row.drain_eta_low_s)


def _range(
    one: CombinedRow,
    value_of: Callable[[LagRow], float | None],
    show: Callable[[float], str],
    *,
    zero: str | None = None,
    low_of: Callable[[LagRow], float | None] | None = None,
) -> Content:
    """Return the smallest and the greatest known value, and the number of rows whose value is unknown.

    Args:
        one: The rows.
        value_of: Returns the value of a row; None if it is unknown.
        show: Formats a value.
        zero: The text for the value 0; None to format it as the other values.
        low_of: Returns the lower end of a row's value, if values are intervals whose upper end is `value_of`.
    """
    values = [value_of(row) for row in one.rows]
    known = [value for value in values if value is not None]
    if not values:
        return EMPTY_CELL
    if not known:
        return _short(None, show)
    lows = [low for row in one.rows if low_of is not None and (low := low_of(row)) is not None]
    smallest, greatest = min([*known, *lows]), max(known)
    ends = _distinct(zero if zero is not None and end == 0 else show(end) for end in (smallest, greatest))
    unknown_count = len(values) - len(known)
    note = el("span", f", {unknown_count:,} unknown", class_="unknown") if unknown_count else None
    return [" to ".join(ends), note]


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _short(value: float | None, show: Callable[[float], str]) -> Content:
    """Return a value, or the word "unknown" without its reason."""
    return el("span", "unknown", class_="unknown") if value is None else show(value)
