"""The line charts of the lag report: messages behind with forecasts, and time behind."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gantry.model.lag import UNKNOWN_RANGE, drain_range
from spark.page.chart import NARROW, WIDE, ChartRenderer
from spark.page.combinedrows import RETRY_TOPICS, CombinedRow
from spark.page.formatting import at, count, duration, unknown
from spark.page.lagrows import LagRow
from spark.page.lines import behind_lines, lag_lines
from spark.page.markup import Content, Html, el
from spark.page.series import Forecast, LagSeries, Point, downsampled, drain_band, forecast

LINES_SHOWN: Final = 6


def with_now(pasts: Mapping[tuple[str, str], LagSeries], rows: Sequence[LagRow]) -> dict[tuple[str, str], LagSeries]:
    """End each history with the values of the report itself, so that a line ends at the number in the table.

    Samples may be some minutes older than the report. Some may also be newer than the report's row, because brokers are
    read one after the other.
    """
    found = dict(pasts)
    for row in rows:
        past = found.get((row.group, row.topic))
        if past is not None and row.as_of is not None:
            found[row.group, row.topic] = past.ended(
                row.as_of,
                row.lag_messages,
                row.lag_seconds,
                # A move that a sample shows was some time ago.
                is_moved=row.evidence.get("moved_s") == 0,
            )
    return found


def line_figures(
    renderer: ChartRenderer,
    combined: Sequence[CombinedRow],
    pasts: Mapping[tuple[str, str], LagSeries],
    *,
    now: datetime,
) -> list[Html]:
    """Return charts of lag with forecasts, each with a chart of time behind, for the first rows that have samples."""
    there = [(one, past) for one in combined if (past := pasts.get((one.worst.group, one.worst.topic))) is not None]
    # A line at zero shows no more than the table does, and a single sample makes no line.
    charted = [(one, past) for one, past in there if len(past.lags) > 1 and any(lag != 0 for _, lag in past.lags)]
    if not charted:
        return []
    charted = charted[:LINES_SHOWN]
    since = min(past.lags[0][0] for _, past in charted)
    until = max(now, *(past.lags[-1][0] for _, past in charted))
    return [figure for one, past in charted for figure in _line_figures(renderer, one, past, since, until)]


def _line_figures(
    renderer: ChartRenderer, one: CombinedRow, past: LagSeries, since: datetime, until: datetime
) -> list[Html]:
    row, points = one.worst, past.lags
    predicted = forecast(points)
    band = _band(row, points[-1][0], horizon=(until - since) / 2)
    end = max([until, *(moment for moment, _, _ in band)])
    few = downsampled(points)
    figures = [
        renderer.figure(
            lag_lines(few, since=since, until=end, forecast=predicted, band=band),
            title=f"{row.group} · {row.topic}",
            description=_describe_line("Lag", row, points, count, " messages"),
            columns=("Time", "Messages behind"),
            rows=_numbers(few, count),
            note=[_describe_combined(one), _describe_forecast(predicted, points), " ", drained_text(row)],
            widths=(WIDE, NARROW),
        )
    ]
    waited = downsampled(past.waits)
    if sum(value is not None for _, value in waited) > 1:
        figures.append(
            renderer.figure(
                behind_lines(waited, since=since, until=end),
                title=f"{row.group} · {row.topic}, time behind",
                description=_describe_line("Time behind", row, past.waits, duration, ""),
                columns=("Time", "Time behind"),
                rows=_numbers(waited, duration),
                note=_waited(row),
                widths=(WIDE, NARROW),
            )
        )
    return figures


def _describe_combined(one: CombinedRow) -> str:
    """Return a text that says which groups a line represents."""
    if len(one.rows) == 1:
        return ""
    where = "with their retry topics" if one.topic == RETRY_TOPICS else "of this topic"
    return f"The worst of {len(one.rows):,} groups {where}. "


def _waited(row: LagRow) -> str:
    if not row.waits:
        return "Nothing waits."
    return "Unknown at the end." if row.lag_seconds is None else f"{duration(row.lag_seconds)} behind."


def _describe_line(what: str, row: LagRow, points: Sequence[Point], show: Callable[[float], str], unit: str) -> str:
    (first, _), (end, last) = points[0], points[-1]
    value = "unknown" if last is None else show(last) + unit
    span = f"{first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    return f"{what} of {row.group} on {row.topic} from {span}; at the end {value}."


def _numbers(points: Sequence[Point], show: Callable[[float], str]) -> list[Sequence[Content]]:
    return [(at(moment), unknown("no sample") if value is None else show(value)) for moment, value in points]


def _band(row: LagRow, start: datetime, *, horizon: timedelta) -> list[tuple[datetime, float, float]]:
    if not row.lag_messages or row.drain_eta_s is None:
        return []
    if row.drain_eta_high_s is None:
        return []  # The line would show the mean alone.
    low, high = row.drain_eta_low_s or 0.0, row.drain_eta_high_s
    # A band without width would be invisible.
    return drain_band(row.lag_messages, start, low * 0.97, high * 1.03, horizon=horizon)


def _describe_forecast(made: Forecast | None, points: Sequence[Point]) -> str:
    """Return the forecast and the actual lag, in words."""
    if made is None:
        return (
            "No forecast: the lag is unknown at the end." if points[-1][1] is None else "No forecast: too few samples."
        )
    difference = made.actual - made.expected
    close = abs(difference) <= max(0.1 * made.expected, 1)
    compared = "as forecast" if close else f"{count(abs(difference))} {'more' if difference > 0 else 'fewer'}"
    return f"Forecast of {made.made_at:%H:%M} for {made.until:%H:%M} UTC: {count(made.expected)}. Actual: {count(made.actual)}, {compared}."


def drained_text(row: LagRow) -> Content:
    """Return when the backlog will be drained, in words."""
    if not row.waits:
        return "Nothing waits."
    if row.drain_eta_s is not None:
        if row.drain_eta_high_s is not None:
            return f"Gone in about {duration(row.drain_eta_s)} ({drained_between(row)})."
        low = row.drain_eta_low_s
        return f"No end is in sight{'' if low is None else f': it takes at least {duration(low)}'}."
    if row.drains is False:
        return "At the present rates it does not drain."
    return f"When it is gone is unknown: {row.reason('drain_eta_s')}."


def drained_between(row: LagRow) -> str:
    """Return the interval of the drain forecast."""
    return drain_range(row.drain_eta_low_s, row.drain_eta_high_s)


def drained_cell(row: LagRow) -> Content:
    """Return the interval of the drain forecast for a table, or the word "unknown"."""
    between = UNKNOWN_RANGE if row.drain_eta_s is None else drained_between(row)
    return el("span", between, class_="unknown") if between == UNKNOWN_RANGE else between


def legend() -> Html:
    """Return the explanation of the lines."""
    return el(
        "p",
        "Solid: as it was sampled; a hole is a time without data. The last point is the number in the table."
        " Dashed, ending in a diamond: the forecast that the first half of the samples made for the end."
        " Shaded after the upright line: where the lag goes if the rates stay as they are.",
        class_="note",
    )
