"""The throughput page: messages in and out over time, in total and by topic, with their rates and peaks."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from spark.page.chart import ChartRenderer
from spark.page.flows import (
    UNITS,
    Flow,
    Peak,
    Series,
    is_whole,
    mean_rate,
    peak_of,
    read_flows,
    span_of,
    sum_of,
    total,
)
from spark.page.formatting import EMPTY_CELL, at, count, plural, rate, unknown
from spark.page.lines import in_and_out
from spark.page.markup import Content, Html, el
from spark.page.page import Page, PageData
from spark.page.series import POINTS_MAX, Point
from spark.page.tables import overview

TOPICS_CHARTED: Final = 8
TABLE_MAX: Final = 1_000


def throughput_body(data: PageData) -> tuple[Html, Html]:
    """Return the contents of the page's header and of its main part."""
    unit, flows = read_flows(data.rows)
    if not flows:
        why = "No messages came or went in the time that this run looked at, or there were no samples of it."
        return el("div", el("p", "There is nothing to show.", class_="headline"), el("p", why, class_="lead")), el("p")
    step = UNITS[unit]
    intos = [flow.into for flow in flows.values()]
    outs = [series for flow in flows.values() for series in flow.by_group.values()]
    into, out = total(intos), total(outs)
    since, until = span_of([into, out])
    groups = {group for flow in flows.values() for group in flow.by_group}
    lead = (
        f"{'' if is_whole(outs, step) else 'At least '}{count(sum_of(out))} went out to {plural(len(groups), 'group')}; a message that several groups took counts for each. "
        f"By the {unit}, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC."
    )
    messages = f"{'' if is_whole(intos, step) else 'at least '}{plural(round(sum_of(into)), 'message')}"
    headline = f"{messages[0].upper()}{messages[1:]} came in to {plural(len(flows), 'topic')}."
    ranked = sorted(flows.items(), key=lambda item: (-sum_of(item[1].into), item[0]))
    head = el("p", headline, class_="headline"), el("p", lead, class_="lead"), _tiles(flows, into, out)
    return el("div", *head), el("div", _charts(ranked, into, out, unit=unit), _table(ranked, step))


def _tiles(flows: Mapping[str, Flow], into: Series, out: Series) -> Html:
    tiles: list[tuple[str, str, str]] = []
    for name, series in (("Mean in", into), ("Mean out", out)):
        mean = mean_rate(series)
        tiles.append((name, "unknown" if mean is None else rate(mean), "of all topics"))
    ins = {topic: peak_of(flow.into) for topic, flow in flows.items()}
    outs = {
        f"{group} on {topic}": peak_of(series)
        for topic, flow in flows.items()
        for group, series in flow.by_group.items()
    }
    for name, peaks in (("Highest peak in", ins), ("Highest peak out", outs)):
        known = {whose: peak for whose, peak in peaks.items() if peak is not None}
        if known:
            whose, peak = max(known.items(), key=lambda item: item[1].rate)
            tiles.append((name, rate(peak.rate), f"{whose}, {peak.bucket_at:%b %d %H:%M}"))
    items = [el("div", el("dt", name), el("dd", value, el("small", more))) for name, value, more in tiles]
    return el("dl", items, class_="tiles")


def _charts(ranked: Sequence[tuple[str, Flow]], into: Series, out: Series, *, unit: str) -> Html:
    renderer, span = ChartRenderer(), span_of([into, out])
    figures = [_figure(renderer, "All topics" if len(ranked) > 1 else ranked[0][0], into, out, span=span, unit=unit)]
    if len(ranked) > 1:
        figures += [
            _figure(renderer, topic, flow.into, flow.out(), span=span, unit=unit)
            for topic, flow in ranked[:TOPICS_CHARTED]
        ]
    span_name = "an hour" if unit == "hour" else f"a {unit}"
    note = (
        f"Solid: in. Dashed: out. Messages a second, as the mean of {span_name}; a hole is a time without data."
        f" Upright strokes: up to the highest rate in at any moment of it. Peaks of several topics or groups are not"
        " added up, since they need not be of the same moment."
    )
    if len(ranked) > TOPICS_CHARTED:
        note += f" The {TOPICS_CHARTED} busiest of {len(ranked):,} topics; the table has all."
    return el("section", el("h2", "In and out"), el("p", note, class_="note"), el("div", figures, class_="figures"))


def _line(series: Series, step: timedelta, value: str) -> list[Point]:
    """Return the points of a line, with a gap if buckets are missing, because no samples were taken."""
    points: list[Point] = []
    for bucket_at in sorted(series):
        if points and bucket_at - points[-1][0] > 1.5 * step:
            points.append((bucket_at - step, None))
        points.append((bucket_at, getattr(series[bucket_at], value)))
    return points


def _figure(
    renderer: ChartRenderer, title: str, into: Series, out: Series, *, span: tuple[datetime, datetime], unit: str
) -> Html:
    step = UNITS[unit]
    peak = peak_of(into)
    sums = f"{count(sum_of(into))} in, {count(sum_of(out))} out"
    peak_text = f"; peak in {_rate(peak)}" if peak else ""
    moments = sorted({*into, *out})[-POINTS_MAX:]
    return renderer.figure(
        in_and_out(
            _line(into, step, "rate"), _line(out, step, "rate"), _line(into, step, "peak"), since=span[0], until=span[1]
        ),
        title=title,
        note=f"{sums}{peak_text}",
        description=f"Messages a second by the {unit}: {sums}{peak_text}.",
        columns=("From", "In", "Mean in", "Peak in", "Out", "Mean out"),
        rows=[
            (
                at(moment),
                _messages(into, moment),
                _value(into, moment, "rate"),
                _value(into, moment, "peak"),
                _messages(out, moment),
                _value(out, moment, "rate"),
            )
            for moment in moments
        ],
    )


def _messages(series: Series, bucket_at: datetime) -> Content:
    reading = series.get(bucket_at)
    if reading is None:
        return EMPTY_CELL
    if reading.messages is None:
        return unknown("no samples")
    return f"{'' if reading.is_whole else '≥ '}{count(reading.messages)}"


def _value(series: Series, bucket_at: datetime, name: str) -> Content:
    value = getattr(series.get(bucket_at), name, None)
    return EMPTY_CELL if value is None else rate(value)


def _rate(peak: Peak) -> str:
    return f"{'' if peak.is_whole else '≥ '}{rate(peak.rate)} ({peak.bucket_at:%b %d %H:%M})"


def _table(ranked: Sequence[tuple[str, Flow]], step: timedelta) -> Html:
    body: list[Html] = []
    for topic, flow in ranked:
        groups = list(flow.by_group.values())
        came, went = _known([flow.into], step), _known(groups, step)
        ins, outs = _rates(flow.into), _rates(flow.out())
        cells = [el("td", cell) for cell in (came, *ins, went, *outs)]
        body.append(el("tr", el("th", el("bdi", topic), scope="row"), cells))
        for group, series in sorted(flow.by_group.items(), key=lambda item: (-sum_of(item[1]), item[0])):
            name = el("span", "↳ ", el("bdi", group), class_="topicname")
            cells = [el("td", cell) for cell in ("", "", "", _known([series], step), *_rates(series))]
            body.append(el("tr", el("th", name, scope="row"), cells))
    left = len(body) - TABLE_MAX
    more = el("p", f"{left:,} quieter ones are left out.", class_="note") if left > 0 else None
    title = f"All {plural(len(ranked), 'topic')}" if len(ranked) > 1 else "The topic"
    return el("section", el("h2", title), overview("flow", body[:TABLE_MAX]), more)


def _rates(series: Series) -> tuple[Content, Content]:
    """Return the mean rate, and the peak with the start of its bucket."""
    mean, peak = mean_rate(series), peak_of(series)
    if mean is None:
        return (unknown("no samples"), EMPTY_CELL) if series else (EMPTY_CELL, EMPTY_CELL)
    if peak is None:
        return rate(mean), EMPTY_CELL
    peak_text = f"{'' if peak.is_whole else '≥ '}{rate(peak.rate)}"
    return rate(mean), [peak_text, " ", el("span", f"{peak.bucket_at:%b %d %H:%M}", class_="why")]


def _known(series: Sequence[Series], step: timedelta) -> Content:
    """Return the sum, with "≥" if a part is unknown."""
    readings = [reading for one in series for reading in one.values()]
    if not readings:
        return EMPTY_CELL
    if all(reading.messages is None for reading in readings):
        return unknown("no samples")
    return f"{'' if is_whole(series, step) else '≥ '}{count(sum(map(sum_of, series)))}"


THROUGHPUT_PAGE = Page(
    "Throughput",
    "In is what was stored in a topic, out is what groups consumed by their committed offsets. Offsets that a reset or"
    " retention moved do not count. ",
    throughput_body,
)
