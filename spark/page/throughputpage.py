"""The throughput page: messages in and out over time, altogether and by topic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from spark.page.chart import Drawer
from spark.page.lines import in_and_out
from spark.page.markup import Content, Html, el
from spark.page.series import POINTS_MAX, Point
from spark.page.shown import NOTHING, at, count, moment, number, plural, unknown

TOPICS_CHARTED: Final = 8
TABLE_MAX: Final = 1_000

_UNITS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_WHOLE: Final = 0.99
"""Of a bucket's length: samples don't fall on its borders."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A bucket's messages; None is not known, and what is not whole is the least it may be."""

    messages: float | None
    is_whole: bool = True


Series: TypeAlias = dict[datetime, Reading]


@dataclass(slots=True)
class Flow:
    """Messages of a topic by the start of their bucket."""

    into: Series = field(default_factory=dict)
    by_group: dict[str, Series] = field(default_factory=dict)

    def out(self) -> Series:
        """Return what all groups took together."""
        return _total(self.by_group.values())


def throughput_body(rows: Iterable[Mapping[str, Any]]) -> tuple[Html, Html]:
    """Return what goes into the page's header and its main part."""
    unit, flows = _read(rows)
    if not flows:
        why = "No messages came or went in the time that this run looked at, or there were no samples of it."
        return el("div", el("p", "There is nothing to show.", class_="headline"), el("p", why, class_="lead")), el("p")
    step = _UNITS[unit]
    intos = [flow.into for flow in flows.values()]
    outs = [series for flow in flows.values() for series in flow.by_group.values()]
    into, out = _total(intos), _total(outs)
    since, until = _span([into, out])
    in_sum, out_sum = _sum(into), _sum(out)
    groups = {group for flow in flows.values() for group in flow.by_group}
    lead = (
        f"{'' if _is_whole(outs, step) else 'At least '}{count(out_sum)} went out to {plural(len(groups), 'group')}; a message that several groups took counts for each. "
        f"By the {unit}, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC."
    )
    messages = f"{'' if _is_whole(intos, step) else 'at least '}{plural(round(in_sum), 'message')}"
    headline = f"{messages[0].upper()}{messages[1:]} came in to {plural(len(flows), 'topic')}."
    drawer = Drawer()
    ranked = sorted(flows.items(), key=lambda item: (-_sum(item[1].into), item[0]))
    figures = [_figure(drawer, "All topics", into, out, span=(since, until), unit=unit)]
    if len(ranked) > 1:
        figures += [
            _figure(drawer, topic, flow.into, flow.out(), span=(since, until), unit=unit)
            for topic, flow in ranked[:TOPICS_CHARTED]
        ]
    left = len(ranked) - TOPICS_CHARTED
    note = f"Solid: in. Dashed: out. Messages a {unit}; a hole is a time that is not known."
    if left > 0:
        note += f" The {TOPICS_CHARTED} busiest of {len(ranked):,} topics; the table has all."
    charts = el("section", el("h2", "In and out"), el("p", note, class_="note"), el("div", figures, class_="figures"))
    return el("div", el("p", headline, class_="headline"), el("p", lead, class_="lead")), el(
        "div", charts, _table(ranked, step)
    )


def _read(rows: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Flow]]:
    """Return the finest unit that a picture can still show, and its flows by topic."""
    by_unit: dict[str, dict[str, Flow]] = {}
    for row in rows:
        bucket_at, unit = moment(row.get("bucket_at")), str(row.get("unit"))
        if bucket_at is None or unit not in _UNITS:
            continue
        flow = by_unit.setdefault(unit, {}).setdefault(str(row.get("topic") or ""), Flow())
        group = row.get("group") or row.get("group_name")
        series = flow.into if group is None else flow.by_group.setdefault(str(group), {})
        covered = number(row.get("covered_s"))
        is_whole = covered is None or covered >= _WHOLE * _UNITS[unit].total_seconds()
        series[bucket_at] = Reading(number(row.get("messages")), is_whole)
    there = [unit for unit in _UNITS if unit in by_unit]
    if not there:
        return "hour", {}
    fitting = [unit for unit in there if _buckets(by_unit[unit]) <= 2 * POINTS_MAX]
    unit = fitting[0] if fitting else there[-1]
    return unit, by_unit[unit]


def _buckets(flows: Mapping[str, Flow]) -> int:
    return len(
        {moment for flow in flows.values() for series in (flow.into, *flow.by_group.values()) for moment in series}
    )


def _total(series: Iterable[Series]) -> Series:
    """Add series up: unknown where one of them is, and whole where all of them are."""
    total: Series = {}
    for one in series:
        for bucket_at, reading in one.items():
            before = total.get(bucket_at, Reading(0))
            known = None if reading.messages is None or before.messages is None else before.messages + reading.messages
            total[bucket_at] = Reading(known, before.is_whole and reading.is_whole)
    return total


def _sum(series: Series) -> float:
    return sum(reading.messages or 0 for reading in series.values())


def _is_whole(series: Iterable[Series], step: timedelta) -> bool:
    """Say whether sums are known: no bucket is missing between a series' first and its last, and all are whole."""
    return all(
        len(one) == round((max(one) - min(one)) / step) + 1
        and all(reading.is_whole and reading.messages is not None for reading in one.values())
        for one in series
        if one
    )


def _line(series: Series, step: timedelta) -> list[Point]:
    """Return the points of a line, with a hole where buckets are missing: nobody looked."""
    points: list[Point] = []
    for bucket_at in sorted(series):
        if points and bucket_at - points[-1][0] > 1.5 * step:
            points.append((bucket_at - step, None))
        points.append((bucket_at, series[bucket_at].messages))
    return points


def _span(series: Sequence[Series]) -> tuple[datetime, datetime]:
    moments = [moment_ for one in series for moment_ in one]
    return min(moments), max(moments)


def _figure(
    drawer: Drawer,
    title: str,
    into: Series,
    out: Series,
    *,
    span: tuple[datetime, datetime],
    unit: str,
) -> Html:
    lines = _line(into, _UNITS[unit]), _line(out, _UNITS[unit])
    description = f"Messages a {unit}: {count(_sum(into))} in, {count(_sum(out))} out."
    moments = sorted({*into, *out})[-POINTS_MAX:]
    return drawer.figure(
        in_and_out(*lines, since=span[0], until=span[1]),
        title=title,
        note=f"{count(_sum(into))} in, {count(_sum(out))} out",
        description=description,
        columns=("From", "In", "Out"),
        rows=[(at(moment_), _messages(into, moment_), _messages(out, moment_)) for moment_ in moments],
    )


def _messages(series: Series, bucket_at: datetime) -> Content:
    reading = series.get(bucket_at)
    if reading is None:
        return NOTHING
    if reading.messages is None:
        return unknown("no samples")
    return f"{'' if reading.is_whole else '≥ '}{count(reading.messages)}"


def _table(ranked: Sequence[tuple[str, Flow]], step: timedelta) -> Html:
    head = el("tr", el("th", "Topic and group", scope="col"), el("th", "In", scope="col"), el("th", "Out", scope="col"))
    body: list[Html] = []
    for topic, flow in ranked:
        body.append(
            el(
                "tr",
                el("th", el("bdi", topic), scope="row"),
                el("td", _known([flow.into], step)),
                el("td", _known(list(flow.by_group.values()), step)),
            )
        )
        for group, series in sorted(flow.by_group.items(), key=lambda item: (-_sum(item[1]), item[0])):
            name = el("span", "↳ ", el("bdi", group), class_="topicname")
            body.append(el("tr", el("th", name, scope="row"), el("td", ""), el("td", _known([series], step))))
    left = len(body) - TABLE_MAX
    more = el("p", f"{left:,} quieter ones are left out.", class_="note") if left > 0 else None
    table = el("table", el("thead", head), el("tbody", body[:TABLE_MAX]), class_="overview")
    return el(
        "section", el("h2", f"All {plural(len(ranked), 'topic')}" if len(ranked) > 1 else "The topic"), table, more
    )


def _known(series: Sequence[Series], step: timedelta) -> Content:
    """Return the sum; "≥" where a part is not known."""
    readings = [reading for one in series for reading in one.values()]
    if not readings:
        return NOTHING
    if all(reading.messages is None for reading in readings):
        return unknown("no samples")
    return f"{'' if _is_whole(series, step) else '≥ '}{count(sum(map(_sum, series)))}"
