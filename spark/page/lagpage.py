"""The page of the lag report: a summary, charts, a table of all groups, and the details of groups that are not OK."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from spark.page.chart import ChartRenderer
from spark.page.combinedrows import CombinedRow, combine_rows, rows_to_chart
from spark.page.formatting import count, duration
from spark.page.lagcharts import age_figure, worst_figures
from spark.page.laggroups import calm_groups, group_sections
from spark.page.laglines import legend, line_figures, with_now
from spark.page.lagrows import LagGroup, LagRow, read_groups, worst_first
from spark.page.lagsummary import summarise
from spark.page.lagtable import lag_table
from spark.page.markup import Content, Html, el
from spark.page.page import Page, PageData
from spark.page.series import LagSeries, read_history


def lag_body(data: PageData) -> tuple[Html, Html]:
    """Return the contents of the page's header and of its main part."""
    groups = read_groups(data.rows)
    topics = sorted((topic.row for group in groups for topic in group.topics), key=worst_first)
    summary = summarise(groups)
    head = el("p", summary.headline, class_="headline"), el("p", summary.lead, class_="lead")
    step = el("p", el("b", "What to do: "), summary.next_step, class_="do") if summary.next_step else None
    if not groups:
        return Html("".join(head)), el("p")
    combined = combine_rows(topics)
    renderer = ChartRenderer()
    # The details are made before the table, so that the table only links to details that exist.
    sections, anchors = group_sections([group for group in groups if group.worst.verdict != "OK"], combined)
    main = [
        _charts(renderer, groups, [one for one in combined if one.worst.verdict not in {"OK", "IGNORED"}]),
        _over_time(
            renderer, rows_to_chart(combined), with_now(read_history(data.history), topics), now=data.generated_at
        ),
        lag_table(combined, groups=len(groups), anchors=anchors),
        sections,
        calm_groups([group for group in groups if group.worst.verdict == "OK"]),
    ]
    return el("div", *head, step, _tiles(groups, topics)), el("div", *main)


def _tiles(groups: Sequence[LagGroup], topics: Sequence[LagRow]) -> Html:
    behind = sum(any(topic.row.is_behind for topic in group.topics) for group in groups)
    unjudged = sum(any(topic.row.verdict == "UNKNOWN" for topic in group.topics) for group in groups)
    # Messages that the group's filter rejects do not wait.
    lags = [row.lag_messages if row.waits else 0 for row in topics if row.lag_messages is not None]
    ages = [row.lag_seconds for row in topics if row.lag_seconds]
    lefts = [row.retention_left_s for row in topics if row.retention_left_s is not None and row.waits]
    lost = sum(row.lag_messages is None for row in topics)
    tiles: list[tuple[str, str, str]] = [
        ("Groups behind", f"{behind:,}", f"of {len(groups):,}"),
        ("Messages waiting", count(sum(lags)) if lags else "unknown", f"and {lost:,} unknown" if lost and lags else ""),
        ("Longest wait", duration(max(ages)) if ages else "none" if not lost else "unknown", ""),
    ]
    ignored = sum(any(topic.row.is_ignored for topic in group.topics) for group in groups)
    if ignored:
        tiles.insert(1, ("Ignored", f"{ignored:,}", "not counted as behind"))
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


def _charts(renderer: ChartRenderer, groups: Sequence[LagGroup], attention: Sequence[CombinedRow]) -> Content:
    behind = [one for one in attention if any(row.waits for row in one.rows)]
    if not behind:
        return None
    queues = [queue for group in groups for topic in group.topics for queue in topic.queues]
    figures = worst_figures(renderer, behind)
    if any(queue.waits for queue in queues):
        figures.append(age_figure(renderer, queues))
    return el("section", el("h2", "The worst groups"), el("div", *figures, class_="figures three"))


def _over_time(
    renderer: ChartRenderer,
    combined: Sequence[CombinedRow],
    pasts: Mapping[tuple[str, str], LagSeries],
    *,
    now: datetime,
) -> Content:
    title = el("h2", "Lag over time, and forecast against actual")
    figures = line_figures(renderer, combined, pasts, now=now)
    if figures:
        return el("section", title, legend(), el("div", *figures, class_="figures"))
    if all(one.worst.verdict == "OK" for one in combined):
        return None
    reason = (
        "There are no samples of these groups yet: they are taken every 15 s while a gateway runs with its database."
    )
    return el("section", title, el("p", reason, class_="note"))


LAG_PAGE = Page(
    "Lag report",
    "Time behind is the age of the first message that a group has not consumed and its filter lets through. ",
    lag_body,
)
