"""The details of groups in the lag report: verdict, cause, next step, numbers, and queues.

Groups that are not OK have a section each. Groups that share a row of the table because they are equal (combinedrows.py: same
topic, same verdict, and many of them) share a section, which contains theirs. Groups that are OK share one closed
section at the end of the page.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from spark.page.combinedrows import RETRY_TOPICS, CombinedRow
from spark.page.formatting import EMPTY_CELL, at, count, duration, moment, plural, rate, time_left, unknown
from spark.page.laglines import drained_between
from spark.page.lagrows import LagGroup, LagRow, LagTopic, Owner
from spark.page.lagsummary import sentence
from spark.page.markup import Content, Html, el, join, within
from spark.page.palette import CRITICAL, GOOD, QUIET, WARNING, verdict_style

SECTIONS_BYTES_MAX: Final = 750_000
"""The limit for the details of groups that are not OK, so that a page of any number of groups opens without delay. The
page says how many groups are left out."""
CALM_BYTES_MAX: Final = 250_000
"""The same limit for the groups that are OK."""
QUEUES_MAX: Final = 128
"""The limit for the queues listed for one topic of a group, the worst ones."""
MEMBERS_MAX: Final = 20
"""The limit for the groups whose details a shared section contains, the worst ones."""
OPEN_MAX: Final = 8
"""The number of sections that are open at first, those of the worst groups. A link from the table opens one of the
others."""

# The colour of a verdict → its CSS class.
_CLASSES: Final = {CRITICAL: "critical", WARNING: "warning", QUIET: "quiet", GOOD: "good"}


def badge(row: LagRow) -> Html:
    """Return the verdict of a row as an element: a sign and words, in the colour of the verdict."""
    colour, sign, words = verdict_style(row.verdict)
    return el("span", el("i", sign, aria_hidden="true"), words, class_=f"badge {_CLASSES[colour]}")


def group_sections(groups: Sequence[LagGroup], combined: Sequence[CombinedRow]) -> tuple[Content, Mapping[str, str]]:
    """Return the details of the groups that are not OK.

    Args:
        groups: The groups that are not OK, the worst first.
        combined: The rows of the table. Groups that share a row there share a section here.

    Returns:
        The section, None without groups; and the group → the id of its details, for each group that is fitting. The
        table links to these ids.
    """
    if not groups:
        return None, {}
    shared = {row.group: one for one in combined if len(one.rows) > 1 for row in one.rows}
    together: dict[int | str, list[LagGroup]] = {}
    topics: dict[str, str] = {group: one.topic for group, one in shared.items()}
    for group in groups:
        # A group with several topics is in several rows, so it gets its own section.
        one = shared.get(group.name) if len(group.topics) == 1 else None
        together.setdefault(group.name if one is None else id(one), []).append(group)
    ids = {group.name: f"g{position}" for position, group in enumerate(groups, start=1)}
    parts = (_part(found, ids, topics, is_open=index < OPEN_MAX) for index, found in enumerate(together.values()))
    fitting = within(parts, SECTIONS_BYTES_MAX)
    kept, left = list(together.values())[: len(fitting)], list(together.values())[len(fitting) :]
    anchors = {group.name: ids[group.name] for found in kept for group in found[:MEMBERS_MAX]}
    section = el(
        "section", el("h2", "What is wrong, and what to do"), fitting, _left_out([one for few in left for one in few])
    )
    return section, anchors


def calm_groups(groups: Sequence[LagGroup]) -> Content:
    """Return a closed section with the groups that are OK, each with its numbers and its queues; None without groups."""
    if not groups:
        return None
    parts = (
        el("div", el("h4", el("bdi", group.name), " ", el("span", el("bdi", topic.row.topic), class_="topicname")),
           _facts(topic.row), _queues(topic), class_="topic")
        for group in groups for topic in group.topics
    )  # fmt: skip
    fitting = within(parts, CALM_BYTES_MAX)
    left = sum(len(group.topics) for group in groups) - len(fitting)
    rest = (
        el("p", f"{plural(left, 'more row')} of groups that are OK are in the table above only.", class_="note")
        if left
        else None
    )
    title = f"{plural(len(groups), 'group')} with nothing to do"
    return el("details", el("summary", title), fitting, rest, class_="calm")


def _left_out(groups: Sequence[LagGroup]) -> Content:
    """Return the note on groups whose details the page does not show; `groups` are these groups, the worst first."""
    if not groups:
        return None
    return el(
        "p",
        f"Details of {plural(len(groups), 'more group')}, from ",
        el("bdi", groups[0].name),
        " on, are left out to keep this page small: ",
        el("code", "gantry report show lag_report --group NAME"),
        " prints them.",
        class_="note",
    )


def _part(groups: Sequence[LagGroup], ids: Mapping[str, str], topics: Mapping[str, str], *, is_open: bool) -> Html:
    """Return the section of one group, or one section that contains the sections of equal groups.

    Args:
        groups: The groups, the worst first.
        ids: Group → the id of its details.
        topics: Group → the name of the topic that it shares with other groups.
        is_open: Whether the section is open at first.
    """
    if len(groups) == 1:
        return _section(groups[0], ids[groups[0].name], is_open=is_open)
    worst, listed = groups[0].worst, groups[:MEMBERS_MAX]
    topic = topics[groups[0].name]
    title = el(
        "h3",
        el("span", f"{len(groups):,} groups"),
        el("span", el("bdi", topic), class_="topicname"),
        badge(worst),
    )
    inner = [_section(group, ids[group.name], is_open=False) for group in listed]
    left = len(groups) - len(listed)
    more = None
    if left:
        # Each retry topic is of one group only.
        command = "gantry report show lag_report", [] if topic == RETRY_TOPICS else [" --topic ", el("bdi", topic)]
        more = el("p", f"{plural(left, 'more group')}, none of them worse: ", el("code", command), class_="note")
    detail = el("p", "The worst, ", el("bdi", worst.group), f": {sentence(worst.cause)}") if worst.cause else None
    return el("details", el("summary", title), detail, inner, more, class_="group many", open=is_open)


def _section(group: LagGroup, anchor: str, *, is_open: bool) -> Html:
    topics = [topic.row.topic for topic in group.topics]
    where = el("bdi", topics[0]) if len(topics) == 1 else plural(len(topics), "topic")
    title = el("h3", el("bdi", group.name), el("span", where, class_="topicname"), badge(group.worst))
    named = [
        el("h4", el("bdi", topic.row.topic), badge(topic.row)) if len(topics) > 1 else None for topic in group.topics
    ]
    body = [el("div", name, _topic(topic), class_="topic") for name, topic in zip(named, group.topics, strict=True)]
    # A link opens the `details` element around its target, not one that is the target itself.
    return el(
        "details", el("summary", title), el("div", body, id=anchor, class_="target"), class_="group", open=is_open
    )


def _topic(topic: LagTopic) -> Html:
    row = topic.row
    return join(
        [
            el("p", sentence(row.cause)) if row.cause else None,
            el("p", el("b", "Next step: "), sentence(row.next_step)) if row.next_step else None,
            _facts(row),
            _queues(topic),
            _evidence(row.evidence),
        ]
    )


def _until_deletion(seconds: float) -> str:
    return duration(seconds) if seconds else "now: at any moment"


# The name of a fact, its column of LagRow, the function that shows its value, and whether it has a meaning if no message
# waits.
_FACTS: Final[tuple[tuple[str, str, Callable[[Any], str], bool], ...]] = (
    ("Messages behind", "lag_messages", count, True),
    ("Time behind", "lag_seconds", duration, False),
    ("Waiting since", "oldest_unconsumed_at", at, False),
    ("Comes in", "in_rate", rate, True),
    ("Goes out", "out_rate", rate, True),
    ("Gone in", "drain_eta_s", duration, False),
    (
        "Deletion of the first in",
        "retention_left_s",
        _until_deletion,
        False,
    ),
    ("Skew over the queues", "skew", "{:.2f}".format, False),
    ("Consumers connected", "clients", count, True),
)
ONE_REASON_MIN: Final = 3
"""The number of unknown facts with the same reason from which the reason is shown only once."""
TAGS_MAX: Final = 8
"""The limit for the tags shown of one row."""
CLIENTS_MAX: Final = 16
"""The limit for the clients listed for one row."""
TIMES: Final = "\N{MULTIPLICATION SIGN}"


def _facts(row: LagRow) -> Html:
    """Return the numbers of a row, each with its name. An unknown one has its reason instead."""
    waits = row.waits
    named_facts: list[tuple[str, Content]] = []
    unknowns: dict[str, list[str]] = {}
    for name, column, show, always in _FACTS:
        if not (waits or always) or (column == "drain_eta_s" and not row.matters):
            continue
        value = getattr(row, column)
        if value is not None:
            detail = drained_between(row) if column == "drain_eta_s" else ""
            if column == "drain_eta_s" and row.drain_eta_high_s is None:
                low = row.drain_eta_low_s
                named_facts.append((name, detail if low is None else f"{detail}: at least {duration(low)}"))
                continue
            if column == "retention_left_s" and value and row.evidence.get("retention_is_lower_bound"):
                detail = "or later: its file is still being written"
            named_facts.append((name, [show(value), el("span", f" ({detail})", class_="why") if detail else None]))
        elif column == "drain_eta_s" and row.drains is False:
            named_facts.append((name, "never, at these rates"))
        elif column != "skew":
            unknowns.setdefault(row.reason(column), []).append(name)
    rest = []
    for reason, names in unknowns.items():
        if len(names) < ONE_REASON_MIN:
            named_facts += [(name, unknown(reason)) for name in names]
        else:
            listed = ", ".join(name.lower() for name in names)
            rest.append(
                el(
                    "p",
                    el("span", "Unknown", class_="unknown"),
                    f": {listed}. ",
                    el("span", sentence(reason), class_="why"),
                )
            )
    if row.waits and row.verdict != "OK":
        named_facts.insert(2, ("Behind since", _since(row)))
    if row.top_tags:
        named_facts.append(("Tags waiting first", _tags(row)))
    if row.owners:
        named_facts.append(("Clients", _clients(row.owners)))
    return join(
        [el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in named_facts], class_="facts"), rest]
    )


def _since(row: LagRow) -> Content:
    """Return the time since which the group is behind, or the time before which it fell behind, or why both are unknown."""
    if row.behind_since is not None:
        return at(row.behind_since)
    at_latest = moment(row.evidence.get("behind_at_latest"))
    return unknown(row.reason("behind_since")) if at_latest is None else ["before ", at(at_latest)]


def _clients(owners: Sequence[Owner]) -> Content:
    """Return the connected clients, each with its host and the number of queues that it reports."""
    items = [
        el(
            "li",
            el("bdi", one.client_id),
            " at ",
            el("bdi", one.host),
            ": queues unknown" if one.queues is None else f": {plural(one.queues, 'queue')}",
        )
        for one in owners[:CLIENTS_MAX]
    ]
    left = len(owners) - len(items)
    return el("ul", items, el("li", f"{left:,} more") if left else None, class_="clients")


def _tags(row: LagRow) -> str:
    return ", ".join(
        tag or "(none)" if messages is None else f"{tag or '(none)'} {TIMES} {count(messages)}"
        for tag, messages in row.top_tags[:TAGS_MAX]
    )


def _queues(topic: LagTopic) -> Content:
    """Return a closed section with the table of the topic's queues; None if the report has none."""
    if not topic.queues:
        return None
    listed = topic.queues[:QUEUES_MAX]
    columns = ("Queue", "Verdict", "Messages", "Time behind", "In", "Out", "Deletion in", "Owner", "Note")
    texts = {"Verdict", "Owner", "Note"}
    head = el("tr", [el("th", name, scope="col", class_="text" if name in texts else None) for name in columns])
    table = el("table", el("thead", head), el("tbody", [_queue(row) for row in listed]))
    left = len(topic.queues) - len(listed)
    more = el("p", f"{plural(left, 'more queue')}, none of them worse, are left out.", class_="note") if left else None
    words = plural(len(topic.queues), "queue")
    not_ok = sum(row.verdict != "OK" for row in topic.queues)
    summary = f"{words}, {f'{not_ok:,} of them not OK' if not_ok else 'all OK'}"
    region = el("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Queues of {topic.row.topic}")
    return el("details", el("summary", summary), region, more)


def _queue(row: LagRow) -> Html:
    missing = [column for column in ("lag_messages", "lag_seconds") if getattr(row, column) is None]
    note = row.cause or (row.reason(missing[0]) if missing and row.waits else "")
    waits = row.waits
    cells: list[Content] = [
        _cell(row.lag_messages, count),
        _cell(row.lag_seconds, duration) if waits else EMPTY_CELL,
        _cell(row.in_rate, rate),
        _cell(row.out_rate, rate),
        _cell(row.retention_left_s, time_left) if waits else EMPTY_CELL,
    ]
    place = row.broker or "broker unknown"
    return el(
        "tr",
        el("th", f"{place}/{'?' if row.queue_id is None else row.queue_id}", scope="row"),
        el("td", badge(row), class_="text"),
        [el("td", cell) for cell in cells],
        el("td", _owner(row), class_="text"),
        el("td", note if row.verdict != "OK" or missing else "", class_="text"),
    )


def _owner(row: LagRow) -> Content:
    if row.owners is None and (row.verdict == "OK" or row.clients == 0):
        return EMPTY_CELL
    if row.owners is None:
        return el("span", "unknown", class_="unknown")
    return ", ".join(f"{one.client_id} at {one.host}" for one in row.owners) or "nobody"


def _cell(value: float | None, show: Any) -> Content:
    return el("span", "unknown", class_="unknown") if value is None else str(show(value))


def _evidence(evidence: Mapping[str, Any]) -> Content:
    """Return a closed section with the numbers from which the verdict was made; None if there are none."""
    facts = [(name, value) for name, value in evidence.items() if name != "unknown"]
    if not facts:
        return None
    pairs = [[el("dt", name.replace("_", " ")), el("dd", _plain(value))] for name, value in facts]
    return el("details", el("summary", "The numbers behind this verdict"), el("dl", pairs, class_="evidence"))


def _plain(value: Any) -> Content:
    if value is None:
        return el("span", "unknown", class_="unknown")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
