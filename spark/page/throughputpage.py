"""The throughput page: messages in and out over time, altogether and by topic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from spark.page.chart import Drawer
from spark.page.lines import in_and_out
from spark.page.markup import Content, Html, el
from spark.page.series import POINTS_MAX, Point
from spark.page.shown import NOTHING, at, count, moment, number, plural, unknown

TOPICS_CHARTED: Final = 8
TABLE_MAX: Final = 1_000

_UNITS: Final = ("minute", "hour", "day")


@dataclass(slots=True)
class Flow:
    """Messages of a topic by the start of their bucket; None is not known."""

    into: dict[datetime, float | None] = field(default_factory=dict)
    by_group: dict[str, dict[datetime, float | None]] = field(default_factory=dict)

    def out(self) -> dict[datetime, float | None]:
        """Return what all groups took together; unknown where one of them is."""
        return _total(self.by_group.values())


def throughput_body(rows: Iterable[Mapping[str, Any]]) -> tuple[Html, Html]:
    """Return what goes into the page's header and its main part."""
    unit, flows = _read(rows)
    if not flows:
        why = "No messages came or went in the time that this run looked at, or there were no samples of it."
        return el("div", el("p", "There is nothing to show.", class_="headline"), el("p", why, class_="lead")), el("p")
    into, out = _total(flow.into for flow in flows.values()), _total(flow.out() for flow in flows.values())
    since, until = _span([into, out])
    in_sum, out_sum = _sum(into), _sum(out)
    groups = {group for flow in flows.values() for group in flow.by_group}
    lead = (
        f"{'At least ' if None in out.values() else ''}{count(out_sum)} went out to {plural(len(groups), 'group')}; a message that several groups took counts for each. "
        f"By the {unit}, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC."
    )
    messages = f"{'at least ' if None in into.values() else ''}{plural(round(in_sum), 'message')}"
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
        "div", charts, _table(ranked)
    )


def _read(rows: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Flow]]:
    """Return the finest unit that a picture can still show, and its flows by topic."""
    by_unit: dict[str, dict[str, Flow]] = {}
    for row in rows:
        bucket_at = moment(row.get("bucket_at"))
        if bucket_at is None:
            continue
        flow = by_unit.setdefault(str(row.get("unit")), {}).setdefault(str(row.get("topic") or ""), Flow())
        group = row.get("group") or row.get("group_name")
        series = flow.into if group is None else flow.by_group.setdefault(str(group), {})
        series[bucket_at] = number(row.get("messages"))
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


def _total(series: Iterable[Mapping[datetime, float | None]]) -> dict[datetime, float | None]:
    total: dict[datetime, float | None] = {}
    for one in series:
        for moment_, messages in one.items():
            before = total.get(moment_, 0)
            total[moment_] = None if messages is None or before is None else before + messages
    return total


def _sum(series: Mapping[datetime, float | None]) -> float:
    return sum(messages or 0 for messages in series.values())


def _span(series: Sequence[Mapping[datetime, float | None]]) -> tuple[datetime, datetime]:
    moments = [moment_ for one in series for moment_ in one]
    return min(moments), max(moments)


def _figure(
    drawer: Drawer,
    title: str,
    into: Mapping[datetime, float | None],
    out: Mapping[datetime, float | None],
    *,
    span: tuple[datetime, datetime],
    unit: str,
) -> Html:
    lines: tuple[list[Point], list[Point]] = sorted(into.items()), sorted(out.items())
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


def _messages(series: Mapping[datetime, float | None], moment_: datetime) -> Content:
    if moment_ not in series:
        return NOTHING
    messages = series[moment_]
    return unknown("no samples") if messages is None else count(messages)


def _table(ranked: Sequence[tuple[str, Flow]]) -> Html:
    head = el("tr", el("th", "Topic and group", scope="col"), el("th", "In", scope="col"), el("th", "Out", scope="col"))
    body: list[Html] = []
    for topic, flow in ranked:
        body.append(
            el("tr", el("th", el("bdi", topic), scope="row"), el("td", _known(flow.into)), el("td", _known(flow.out())))
        )
        for group, series in sorted(flow.by_group.items(), key=lambda item: (-_sum(item[1]), item[0])):
            name = el("span", "↳ ", el("bdi", group), class_="topicname")
            body.append(el("tr", el("th", name, scope="row"), el("td", ""), el("td", _known(series))))
    left = len(body) - TABLE_MAX
    more = el("p", f"{left:,} quieter ones are left out.", class_="note") if left > 0 else None
    table = el("table", el("thead", head), el("tbody", body[:TABLE_MAX]), class_="overview")
    return el(
        "section", el("h2", f"All {plural(len(ranked), 'topic')}" if len(ranked) > 1 else "The topic"), table, more
    )


def _known(series: Mapping[datetime, float | None]) -> Content:
    """Return the sum; "≥" where a part is not known."""
    if not series:
        return NOTHING
    lost = [messages for messages in series.values() if messages is None]
    if len(lost) == len(series):
        return unknown("no samples")
    return f"≥ {count(_sum(series))}" if lost else count(_sum(series))
