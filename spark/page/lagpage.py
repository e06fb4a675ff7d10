"""The lag report's page: a sentence, charts, every group in one table, then what to know about those not well."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gantry.model.lag import severity
from spark.page.chart import Drawer
from spark.page.lagcharts import age_figure, drained_between, legend, line_figures, worst_figures
from spark.page.laggroups import badge, calm_groups, group_sections
from spark.page.lagrows import LagGroup, LagRow, read_groups, worst_first
from spark.page.lagsummary import summarise
from spark.page.markup import Content, Html, el, within
from spark.page.series import Point, read_history
from spark.page.shown import NOTHING, count, duration, plural, rate

OVERVIEW_BYTES_MAX: Final = 450_000
"""Of the table of all; what it leaves out is counted, and the last of the order: OK."""


def lag_body(
    rows: Iterable[Mapping[str, Any]], *, history: Iterable[Mapping[str, Any]], generated_at: datetime
) -> tuple[Html, Html]:
    """Return what goes into the page's header and its main part."""
    groups = read_groups(rows)
    topics = sorted((topic.row for group in groups for topic in group.topics), key=worst_first)
    said = summarise(groups)
    head = el("p", said.headline, class_="headline"), el("p", said.lead, class_="lead")
    step = el("p", el("b", "What to do: "), said.next_step, class_="do") if said.next_step else None
    if not groups:
        return Html("".join(head)), el("p")
    attention = [row for row in topics if row.verdict != "OK"]
    drawer = Drawer()
    main = [
        _charts(drawer, groups, attention),
        _over_time(
            drawer, attention or topics, _with_now(read_history(history), topics), now=generated_at, calm=not attention
        ),
        _overview(groups, topics),
        group_sections([group for group in groups if group.worst.verdict != "OK"]),
        calm_groups([group for group in groups if group.worst.verdict == "OK"]),
    ]
    return el("div", *head, step, _tiles(groups, topics)), el("div", *main)


def _with_now(
    history: Mapping[tuple[str, str], list[Point]], topics: Sequence[LagRow]
) -> dict[tuple[str, str], list[Point]]:
    """Add what the report itself found: the newest sample may be minutes old."""
    found = dict(history)
    for row in topics:
        points = found.get((row.group, row.topic))
        if points and row.as_of is not None and row.as_of > points[-1][0]:
            found[row.group, row.topic] = [*points, (row.as_of, row.lag_messages)]
    return found


def _tiles(groups: Sequence[LagGroup], topics: Sequence[LagRow]) -> Html:
    behind = sum(any(topic.row.is_behind for topic in group.topics) for group in groups)
    unjudged = sum(any(topic.row.verdict == "UNKNOWN" for topic in group.topics) for group in groups)
    lags = [row.lag_messages for row in topics if row.lag_messages is not None]
    ages = [row.lag_seconds for row in topics if row.lag_seconds]
    lefts = [row.retention_left_s for row in topics if row.retention_left_s is not None and row.waits]
    lost = sum(row.lag_messages is None for row in topics)
    tiles: list[tuple[str, str, str]] = [
        ("Groups behind", f"{behind:,}", f"of {len(groups):,}"),
        ("Messages waiting", count(sum(lags)) if lags else "unknown", f"and {lost:,} unknown" if lost and lags else ""),
        ("Longest wait", duration(max(ages)) if ages else "none" if not lost else "unknown", ""),
    ]
    if unjudged:
        tiles.insert(1, ("Not judged", f"{unjudged:,}", "see why below"))
    if lefts:
        left = min(lefts)
        tiles.append(("First deletion", f"in {duration(left)}" if left else "now", "of a message that waits"))
    return el(
        "dl",
        [
            el("div", el("dt", name), el("dd", value, el("small", more) if more else None))
            for name, value, more in tiles
        ],
        class_="tiles",
    )


def _charts(drawer: Drawer, groups: Sequence[LagGroup], attention: Sequence[LagRow]) -> Content:
    behind = [row for row in attention if row.waits]
    if not behind:
        return None
    queues = [queue for group in groups for topic in group.topics for queue in topic.queues]
    figures = worst_figures(drawer, behind)
    if any(queue.waits for queue in queues):
        figures.append(age_figure(drawer, queues))
    return el("section", el("h2", "The worst groups"), el("div", *figures, class_="figures three"))


def _over_time(
    drawer: Drawer, rows: Sequence[LagRow], history: Mapping[tuple[str, str], list[Point]], *, now: datetime, calm: bool
) -> Content:
    title = el("h2", "Lag over time, and forecast against actual")
    figures = line_figures(drawer, rows, history, now=now)
    if figures:
        return el("section", title, legend(), el("div", *figures, class_="figures"))
    if calm:
        return None
    reason = (
        "There are no samples of these groups yet: they are taken every 15 s while a gateway runs with its database."
    )
    return el("section", title, el("p", reason, class_="note"))


def _overview(groups: Sequence[LagGroup], topics: Sequence[LagRow]) -> Html:
    anchors = {group.name: f"g{at}" for at, group in enumerate(groups, start=1) if group.worst.verdict != "OK"}
    head = el(
        "tr",
        el("th", "Group and topic", scope="col"),
        el("th", "Messages behind", scope="col"),
        el("th", "Time behind", scope="col"),
        [el("th", name, scope="col", class_="less") for name in ("In", "Out", "Gone in", "Deletion in")],
    )
    shown = within((_overview_row(row, anchors.get(row.group)) for row in topics), OVERVIEW_BYTES_MAX)
    table = el(
        "table",
        el("thead", head),
        el("tbody", shown),
        class_="overview",
    )
    left = len(topics) - len(shown)
    rest = (
        el("p", f"{left:,} more, none of them worse than the last one here, are left out.", class_="note")
        if left
        else None
    )
    title = f"All {plural(len(groups), 'group')}" if len(groups) > 1 else "The group"
    return el("section", el("h2", title), _counts(topics), table, rest)


def _counts(topics: Sequence[LagRow]) -> Html:
    """Return how many rows have which verdict."""
    counted = Counter(row.verdict for row in topics)
    firsts = {row.verdict: row for row in reversed(topics)}
    return el(
        "ul",
        [el("li", badge(firsts[verdict]), f" {counted[verdict]:,}") for verdict in sorted(counted, key=severity)],
        class_="counts",
    )


def _overview_row(row: LagRow, anchor: str | None) -> Html:
    name, topic = el("bdi", row.group), el("span", el("bdi", row.topic), class_="topicname")
    is_told = row.verdict != "OK" or (row.lag_messages != 0 and not row.waits)
    why = el("span", row.cause, class_="cause") if is_told and row.cause else None
    names = el("div", el("a", name, href=f"#{anchor}") if anchor else name, " ", topic, why, class_="names")
    waits = row.waits
    if row.drains is False and row.matters:
        gone: Content = "never"
    else:
        gone = _short(row.drain_eta_s, duration) if row.matters else NOTHING
    return el(
        "tr",
        el("th", el("div", el("span", badge(row), class_="slot"), names, class_="name"), scope="row"),
        el("td", _short(row.lag_messages, count)),
        el("td", _short(row.lag_seconds, duration) if waits else NOTHING),
        el("td", _short(row.in_rate, rate), class_="less"),
        el("td", _short(row.out_rate, rate), class_="less"),
        el("td", gone, title=drained_between(row) or None, class_="less"),
        el("td", _short(row.retention_left_s, duration) if waits else NOTHING, class_="less"),
    )


def _short(value: float | None, show: Callable[[float], str]) -> Content:
    return el("span", "unknown", class_="unknown") if value is None else show(value)
