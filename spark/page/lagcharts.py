"""The bar charts of the lag report: the groups that are furthest behind, and the ages of waiting messages."""

from collections.abc import Callable, Sequence
from typing import Final

from spark.page.bars import Bar, bars
from spark.page.chart import NARROW, THIRD, ChartRenderer
from spark.page.combinedrows import CombinedRow
from spark.page.formatting import count, duration, plural
from spark.page.lagrows import LagRow
from spark.page.markup import Html
from spark.page.palette import ACCENT, QUIET, verdict_style

WORST_SHOWN: Final = 10

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
# Upper bound in seconds (exclusive) → name.
_AGES: Final = (
    (_MINUTE, "under a minute"),
    (10 * _MINUTE, "1 to 10 minutes"),
    (_HOUR, "10 to 60 minutes"),
    (6 * _HOUR, "1 to 6 hours"),
    (_DAY, "6 to 24 hours"),
    (7 * _DAY, "1 to 7 days"),
    (float("inf"), "over 7 days"),
)


def worst_figures(renderer: ChartRenderer, combined: Sequence[CombinedRow]) -> list[Html]:
    """Return charts of the groups that are furthest behind, by messages and by time. `combined` has those not OK."""
    return [
        _worst(renderer, combined, title="Messages behind", column="lag_messages", show=messages),
        _worst(renderer, combined, title="Time behind", column="lag_seconds", show=waited),
    ]


def _worst(
    renderer: ChartRenderer, combined: Sequence[CombinedRow], *, title: str, column: str, show: Callable[[LagRow], str]
) -> Html:
    def value_of(row: LagRow) -> float | None:
        value: float | None = getattr(row, column)
        return value

    def rank(row: LagRow) -> float:
        value = value_of(row)
        # Unknown values come last, after 0.
        return -1.0 if value is None else value

    ranked = sorted(
        ((max(one.rows, key=rank), one) for one in combined), key=lambda found: rank(found[0]), reverse=True
    )
    charted = ranked[:WORST_SHOWN]
    lost = sum(value_of(row) is None for row, _ in ranked[WORST_SHOWN:])
    note = (
        f"The first {len(charted)} of {len(combined):,}{f'; {lost:,} are unknown' if lost else ''}."
        if len(ranked) > len(charted)
        else None
    )
    items = [_bar(row, one, value_of(row), show(row)) for row, one in charted]
    return renderer.figure(
        bars(items),
        title=title,
        description=_describe_bars(items),
        columns=("Group and topic", "Verdict", title),
        rows=[
            (f"{row.group}{one.more} on {one.topic}", verdict_style(row.verdict)[2], show(row)) for row, one in charted
        ],
        note=note,
        widths=(THIRD, NARROW),
    )


def _bar(row: LagRow, one: CombinedRow, value: float | None, value_text: str) -> Bar:
    colour, sign, _ = verdict_style(row.verdict)
    return Bar(f"{sign} {row.group}{one.more} · {one.topic}", value, value_text, colour)


def messages(row: LagRow) -> str:
    """Return the number of messages behind as text."""
    return "unknown" if row.lag_messages is None else count(row.lag_messages)


def waited(row: LagRow) -> str:
    """Return the time behind as text."""
    return "unknown" if row.lag_seconds is None else duration(row.lag_seconds)


def _describe_bars(items: Sequence[Bar]) -> str:
    return "; ".join(f"{item.label}: {item.value_text}" for item in items)


def age_figure(renderer: ChartRenderer, queues: Sequence[LagRow]) -> Html:
    """Return a chart of the number of queues by the age of their first waiting message."""
    waiting = [row for row in queues if row.waits]
    known = [row.lag_seconds for row in waiting if row.lag_seconds is not None]
    tally = dict.fromkeys((name for _, name in _AGES), 0)
    for age in known:
        tally[next(name for bound, name in _AGES if age < bound)] += 1
    items = [Bar(name, number, plural(number, "queue"), ACCENT) for name, number in tally.items()]
    lost = len(waiting) - len(known)
    if lost:
        items.append(Bar("? age unknown", lost, plural(lost, "queue"), QUIET))
    return renderer.figure(
        bars(items),
        title="Age of the oldest message",
        note=f"{plural(len(waiting), 'queue')} with something waiting.",
        description=_describe_bars(items),
        columns=("Age", "Queues"),
        rows=[(item.label, item.value_text) for item in items],
        widths=(THIRD, NARROW),
    )
