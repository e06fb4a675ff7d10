"""The page of the backlog profile: ages, tags, keys, sizes and queues of the unconsumed messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark.page.bars import Bar, bars
from spark.page.chart import SMALL, ChartRenderer
from spark.page.formatting import count, number, plural, size, unknown
from spark.page.markup import Content, Html, el
from spark.page.page import Page, PageData
from spark.page.palette import ACCENT, QUIET
from spark.page.tables import overview

CHARTED_MAX: Final = 12
BARS_MAX: Final = 10
TABLE_MAX: Final = 1_000
NAME_CHARACTERS_MAX: Final = 200
"""The limit for the characters of a tag, a key or a filter. A key of a message may have 32,000, and the library that
draws charts takes minutes for some of these."""
UNKNOWN: Final = "(unknown)"
"""The bucket of messages whose value is unknown because they could not be read."""

# Section → (title, name of its bars, whether the bars are ordered by their bounds).
_SECTIONS: Final = {
    "age": ("How old", "Age", True),
    "tag": ("Tags", "Tag", False),
    "key": ("Keys", "Key", False),
    "size": ("Body sizes", "Size", True),
    "queue": ("Queues", "Queue", False),
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bar: a range of ages or sizes, a tag, a key or a queue. None means unknown."""

    name: str
    lower: float | None
    messages: float | None
    octets: float | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages of one topic that one group has not consumed, by section."""

    group: str
    topic: str
    sections: Mapping[str, Sequence[Bucket]]

    @property
    def messages(self) -> float | None:
        """The number of messages; None if it is unknown. Each message is in one queue, and in one range of ages."""
        for section in ("queue", "age", "size"):
            if section in self.sections:
                known = [bucket.messages for bucket in self.sections[section]]
                return None if None in known else sum(value for value in known if value is not None)
        return None

    @property
    def oldest(self) -> str | None:
        """The name of the highest range of ages; None if no age is known."""
        ages = [
            (bucket.lower, bucket.name)
            for bucket in self.sections.get("age", ())
            if bucket.messages and bucket.lower is not None
        ]
        return max(ages)[1] if ages else None

    @property
    def octets(self) -> float | None:
        """The size of all bodies in bytes; None if it is unknown."""
        known = [bucket.octets for bucket in self.sections.get("queue", ())]
        return None if None in known or not known else sum(value for value in known if value is not None)


def backlog_body(data: PageData) -> tuple[Html, Html]:
    """Return the contents of the page's header and of its main part."""
    backlogs = [item for item in _read(data.rows) if item.messages != 0]
    groups = len({item.group for item in backlogs})
    if not backlogs:
        head = el("p", "Nothing is waiting.", class_="headline")
        return el(
            "div", head, el("p", "Every group has consumed all that it may. There is nothing to do.", class_="lead")
        ), el("p")
    known = sum(item.messages or 0 for item in backlogs)
    lost = sum(item.messages is None for item in backlogs)
    headline = f"{count(known)} {'message waits' if known == 1 else 'messages wait'} for {plural(groups, 'group')}."
    largest = backlogs[0]
    lead = f"The largest backlog is that of {largest.group} on {largest.topic}: {_messages(largest)}{_share(largest, known)}.{_oldest(largest)}"
    if lost:
        lead += f" The size of {plural(lost, 'more backlog')} is unknown."
    head = el("div", el("p", headline, class_="headline"), el("p", lead, class_="lead"))
    renderer = ChartRenderer()
    charted = backlogs[:CHARTED_MAX]
    sections = [_backlog(renderer, item, f"b{at}") for at, item in enumerate(charted, start=1)]
    left = len(backlogs) - len(charted)
    note = el("p", f"The {left:,} smaller ones are in the table only.", class_="note") if left else None
    return head, el(
        "div", _overview(backlogs, len(charted)), el("section", el("h2", "What is in them"), sections, note)
    )


def _read(rows: Iterable[Mapping[str, Any]]) -> list[Backlog]:
    found: dict[tuple[str, str], dict[str, list[Bucket]]] = {}
    for row in rows:
        key = str(row.get("group") or row.get("group_name") or ""), str(row.get("topic") or "")
        lower = number(row.get("lower_bound"))
        section, upper = str(row.get("section")), number(row.get("upper_bound"))
        name = str(row.get("bucket") or "(none)")
        if section == "size" and lower is not None and upper is not None:
            name = "empty" if upper <= 1 else f"{size(lower)} to {size(upper)}"
        bucket = Bucket(_cut(name), lower, number(row.get("messages")), number(row.get("bytes")))
        found.setdefault(key, {}).setdefault(section, []).append(bucket)
    backlogs = [Backlog(group, topic, sections) for (group, topic), sections in found.items()]
    return sorted(backlogs, key=lambda item: (-(item.messages or 0), item.group, item.topic))


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}…"


def _messages(item: Backlog) -> str:
    return "an unknown number of messages" if item.messages is None else plural(round(item.messages), "message")


def _share(item: Backlog, of_all: float) -> str:
    return f", {item.messages / of_all:.0%} of all" if item.messages and item.messages < of_all else ""


def _oldest(item: Backlog) -> str:
    age = item.oldest
    return f" Its oldest messages are {age} old." if age else ""


def _overview(backlogs: Sequence[Backlog], charted: int) -> Html:
    body = [_row(item, f"b{at}" if at <= charted else None) for at, item in enumerate(backlogs[:TABLE_MAX], start=1)]
    left = len(backlogs) - len(body)
    more = el("p", f"{left:,} smaller ones are left out.", class_="note") if left else None
    title = f"All {plural(len(backlogs), 'backlog')}" if len(backlogs) > 1 else "The backlog"
    return el("section", el("h2", title), overview("backlog", body), more)


def _row(item: Backlog, anchor: str | None) -> Html:
    name = el("bdi", item.group)
    names = el("a", name, href=f"#{anchor}") if anchor else name
    queues = [bucket.messages for bucket in item.sections.get("queue", ()) if bucket.messages is not None]
    fullest = f"{max(queues) / item.messages:.0%}" if queues and item.messages else None
    missing = el("span", "unknown", class_="unknown")
    return el(
        "tr",
        el("th", names, " ", el("span", el("bdi", item.topic), class_="topicname"), scope="row"),
        el("td", missing if item.messages is None else count(item.messages)),
        el("td", missing if item.octets is None else size(item.octets)),
        el("td", item.oldest or missing),
        el("td", fullest or missing),
    )


def _backlog(renderer: ChartRenderer, item: Backlog, anchor: str) -> Html:
    total = (
        unknown("not every queue could be read") if item.messages is None else plural(round(item.messages), "message")
    )
    octets = None if item.octets is None else f", {size(item.octets)} of bodies"
    figures = [_figure(renderer, item, section) for section in _SECTIONS if item.sections.get(section)]
    return el(
        "section",
        el("h3", el("bdi", item.group), el("span", el("bdi", item.topic), class_="topicname")),
        el("p", total, octets),
        [el("p", _undecided(bucket), class_="note") for bucket in item.sections.get("filter", ())],
        el("div", figures, class_="figures three"),
        class_="group",
        id=anchor,
    )


def _undecided(bucket: Bucket) -> str:
    messages = "an unknown number of messages" if bucket.messages is None else plural(round(bucket.messages), "message")
    return f"The filter is not applied to {messages}: {bucket.name}."


def _figure(renderer: ChartRenderer, item: Backlog, section: str) -> Html:
    title, column, by_bound = _SECTIONS[section]
    buckets = sorted(item.sections[section], key=_by_bound if by_bound else _by_messages)
    charted = buckets if by_bound else buckets[:BARS_MAX]
    more = (
        f"The {len(charted)} largest of {len(buckets):,}." if len(charted) < len(buckets) else _skew(section, buckets)
    )
    items = [_bar(bucket) for bucket in charted]
    return renderer.figure(
        bars(items),
        title=title,
        note=more,
        description="; ".join(f"{bar.label}: {bar.value_text}" for bar in items),
        columns=(column, "Messages", "Bodies"),
        rows=[
            (bar.label, bar.value_text, "unknown" if bucket.octets is None else size(bucket.octets))
            for bar, bucket in zip(items, charted, strict=True)
        ],
        widths=(SMALL,),
    )


def _by_bound(bucket: Bucket) -> tuple[bool, float, str]:
    return bucket.lower is None, bucket.lower or 0, bucket.name


def _by_messages(bucket: Bucket) -> tuple[bool, float, str]:
    return bucket.name == UNKNOWN, -(bucket.messages or 0), bucket.name


def _bar(bucket: Bucket) -> Bar:
    value_text = "unknown" if bucket.messages is None else count(bucket.messages)
    if bucket.name == UNKNOWN:
        return Bar("? unknown", bucket.messages, value_text, QUIET)
    return Bar(bucket.name, bucket.messages, value_text, QUIET if bucket.messages is None else ACCENT)


def _skew(section: str, buckets: Sequence[Bucket]) -> Content:
    known = [bucket.messages for bucket in buckets if bucket.messages is not None]
    if section != "queue" or len(known) < 2 or not sum(known):
        return None
    return f"The fullest has {max(known) * len(known) / sum(known):.1f} times the mean."


BACKLOG_PAGE = Page(
    "Backlog profile",
    "A message waits for a group that has not consumed it and whose filter, where it is known, lets it through. ",
    backlog_body,
)
