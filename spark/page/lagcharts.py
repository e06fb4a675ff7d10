"""The charts of the lag report."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from spark.page.bars import Bar, bars
from spark.page.chart import NARROW, THIRD, WIDE, Drawer
from spark.page.lagrows import LagRow
from spark.page.lines import lag_lines
from spark.page.markup import Content, Html, el
from spark.page.palette import ACCENT, QUIET, verdict_look
from spark.page.series import Forecast, Point, drain_band, forecast, thinned
from spark.page.shown import at, count, duration, plural, unknown

WORST_SHOWN: Final = 10
LINES_SHOWN: Final = 6

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


def worst_figures(drawer: Drawer, rows: Sequence[LagRow]) -> list[Html]:
    """Return the groups that are furthest behind, by messages and by time; `rows` are those not OK."""
    return [
        _worst(drawer, rows, title="Messages behind", column="lag_messages", show=messages),
        _worst(drawer, rows, title="Time behind", column="lag_seconds", show=waited),
    ]


def _worst(drawer: Drawer, rows: Sequence[LagRow], *, title: str, column: str, show: Callable[[LagRow], str]) -> Html:
    values = {id(row): getattr(row, column) for row in rows}
    # The unknown ones last, not least: nobody knows.
    ranked = sorted(rows, key=lambda row: -1.0 if values[id(row)] is None else values[id(row)], reverse=True)
    shown = ranked[:WORST_SHOWN]
    lost = sum(values[id(row)] is None for row in ranked[WORST_SHOWN:])
    note = (
        f"The first {len(shown)} of {len(rows):,}{f'; {lost:,} are unknown' if lost else ''}."
        if len(ranked) > len(shown)
        else None
    )
    items = [_bar(row, values[id(row)], show(row)) for row in shown]
    return drawer.figure(
        bars(items),
        title=title,
        description=_told(items),
        columns=("Group and topic", "Verdict", title),
        rows=[(f"{row.group} on {row.topic}", verdict_look(row.verdict)[2], show(row)) for row in shown],
        note=note,
        widths=(THIRD, NARROW),
    )


def _bar(row: LagRow, value: float | None, shown: str) -> Bar:
    colour, sign, _ = verdict_look(row.verdict)
    return Bar(f"{sign} {row.group} · {row.topic}", value, shown, colour)


def messages(row: LagRow) -> str:
    """Return the messages behind as text."""
    return "unknown" if row.lag_messages is None else count(row.lag_messages)


def waited(row: LagRow) -> str:
    """Return the time behind as text."""
    return "unknown" if row.lag_seconds is None else duration(row.lag_seconds)


def _told(items: Sequence[Bar]) -> str:
    return "; ".join(f"{item.label}: {item.shown}" for item in items)


def age_figure(drawer: Drawer, queues: Sequence[LagRow]) -> Html:
    """Return how many queues have waited how long, by the age of their first waiting message."""
    waiting = [row for row in queues if row.waits]
    known = [row.lag_seconds for row in waiting if row.lag_seconds is not None]
    tally = dict.fromkeys((name for _, name in _AGES), 0)
    for age in known:
        tally[next(name for bound, name in _AGES if age < bound)] += 1
    items = [Bar(name, number, plural(number, "queue"), ACCENT) for name, number in tally.items()]
    lost = len(waiting) - len(known)
    if lost:
        items.append(Bar("? age unknown", lost, plural(lost, "queue"), QUIET))
    return drawer.figure(
        bars(items),
        title="Age of the oldest message",
        note=f"{plural(len(waiting), 'queue')} with something waiting.",
        description=_told(items),
        columns=("Age", "Queues"),
        rows=[(item.label, item.shown) for item in items],
        widths=(THIRD, NARROW),
    )


def line_figures(
    drawer: Drawer, rows: Sequence[LagRow], history: Mapping[tuple[str, str], list[Point]], *, now: datetime
) -> list[Html]:
    """Return lag over time with its forecasts, of the first rows that have samples."""
    there = (row for row in rows if len(history.get((row.group, row.topic), ())) > 1)
    # A line at zero says no more than the table does.
    shown = [row for row in there if any(lag != 0 for _, lag in history[row.group, row.topic])][:LINES_SHOWN]
    if not shown:
        return []
    since = min(history[row.group, row.topic][0][0] for row in shown)
    until = max(now, *(history[row.group, row.topic][-1][0] for row in shown))
    return [_line_figure(drawer, row, history[row.group, row.topic], since, until) for row in shown]


def _line_figure(drawer: Drawer, row: LagRow, points: Sequence[Point], since: datetime, until: datetime) -> Html:
    foretold = forecast(points)
    few = thinned(points)
    band = _band(row, until, horizon=(until - since) / 2)
    note = [_foretold(foretold, points), " ", drained_text(row)]
    spec = lag_lines(few, since=since, until=until, foretold=foretold, band=band)
    last = points[-1][1]
    description = (
        f"Lag of {row.group} on {row.topic} from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC; "
        f"at the end {'unknown' if last is None else count(last)} messages."
    )
    table: list[Sequence[Content]] = [
        (at(moment), unknown("no sample") if lag is None else count(lag)) for moment, lag in few
    ]
    return drawer.figure(
        spec,
        title=f"{row.group} · {row.topic}",
        description=description,
        columns=("Time", "Messages behind"),
        rows=table,
        note=note,
        widths=(WIDE, NARROW),
    )


def _band(row: LagRow, start: datetime, *, horizon: timedelta) -> list[tuple[datetime, float, float]]:
    if not row.lag_messages or row.drain_eta_s is None:
        return []
    low = row.drain_eta_s if row.drain_eta_low_s is None else row.drain_eta_low_s
    high = row.drain_eta_s if row.drain_eta_high_s is None else row.drain_eta_high_s
    # A band without width could not be seen.
    return drain_band(row.lag_messages, start, low * 0.97, high * 1.03, horizon=horizon)


def _foretold(made: Forecast | None, points: Sequence[Point]) -> str:
    """Return what was foretold and what came, in words."""
    if made is None:
        return (
            "No forecast: the lag is unknown at the end." if points[-1][1] is None else "No forecast: too few samples."
        )
    difference = made.actual - made.expected
    close = abs(difference) <= max(0.1 * made.expected, 1)
    compared = "as forecast" if close else f"{count(abs(difference))} {'more' if difference > 0 else 'fewer'}"
    return f"Forecast of {made.made_at:%H:%M} for {made.until:%H:%M} UTC: {count(made.expected)}. Actual: {count(made.actual)}, {compared}."


def drained_text(row: LagRow) -> Content:
    """Return when the backlog will be gone, in words."""
    if not row.waits:
        return "Nothing waits."
    if row.drain_eta_s is not None:
        between = drained_between(row)
        return f"Gone in about {duration(row.drain_eta_s)}{f' ({between})' if between else ''}."
    if row.drains is False:
        return "At the present rates it does not drain."
    return f"When it is gone is unknown: {row.reason('drain_eta_s')}."


def drained_between(row: LagRow) -> str:
    """Return the interval of the drain forecast; empty where it is not known."""
    if row.drain_eta_low_s is None and row.drain_eta_high_s is None:
        return ""
    if row.drain_eta_high_s is None:
        return f"at least {duration(row.drain_eta_low_s or 0)}"
    return f"{duration(row.drain_eta_low_s or 0)} to {duration(row.drain_eta_high_s)}"


def legend() -> Html:
    """Return what the lines mean."""
    return el(
        "p",
        "Solid: the lag as it was sampled; a hole is a time without samples. Dashed, ending in a diamond: the forecast that"
        " the first half of the samples made for the end. Shaded after the upright line: where the lag goes if the rates stay as they are.",
        class_="note",
    )
