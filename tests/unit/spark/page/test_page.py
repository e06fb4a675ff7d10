"""Pages as a whole: no script and no request for any names; well-formed, and small for any number of rows."""

import re
from typing import Any

import pytest

from tests.unit.spark.page.reportrows import (
    NOW,
    SVG,
    ParsedPage,
    lag,
    page,
    queue,
    read,
    samples,
    stopped,
    text,
    unknown,
)

EVIL = "</title></style><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>]]>"
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "div", "h1", "h2", "h3"),
    *("h4", "p", "b", "i", "a", "bdi", "span", "small", "code", "time", "dl", "dt", "dd", "ul", "li", "figure"),
    *("figcaption", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "text", "line", "rect", "desc", "defs", "clippath"),
}  # fmt: skip
BACKLOG = [
    {"group": EVIL, "topic": EVIL, "section": section, "bucket": EVIL, "lower_bound": None, "upper_bound": None,
     "messages": 3, "bytes": 10}
    for section in ("age", "tag", "key", "size", "queue")
]  # fmt: skip
FLOW = [
    {"unit": "hour", "bucket_at": "2026-11-22T08:00:00Z", "topic": EVIL, "group": group, "messages": 3}
    for group in (None, EVIL)
]


def evil_pages() -> list[tuple[str, list[dict[str, Any]]]]:
    row = stopped(
        EVIL, topic=EVIL, cause=EVIL, next_step=EVIL, top_tags=[{"tag": EVIL, "messages": 1}], evidence={EVIL: EVIL}
    )
    rows = [
        row,
        queue(row, EVIL, 1),
        lag(EVIL, "T", verdict=EVIL),
        unknown("u", cause=EVIL, evidence={"unknown": EVIL}),
    ]
    return [("lag_report", rows), ("backlog_profile", BACKLOG), ("throughput_rollup", FLOW)]


@pytest.mark.parametrize(("job", "rows"), evil_pages(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_script_runs_and_no_request_is_made_for_any_names(job: str, rows: list[dict[str, Any]]) -> None:
    html = page(rows, job=job, history=samples(EVIL, list(range(40)), topic=EVIL), run={"id": EVIL})
    read(html)
    for tag, attributes in ParsedPage(html).elements:
        assert tag in ALLOWED
        assert not any(name.startswith("on") or name in {"src", "srcset", "data", "action"} for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert attributes.get("xlink:href") is None
        assert "http-equiv" not in attributes
    addresses = set(re.findall(r"[a-z]+://[^\"' )<]*", html)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert EVIL in text(html)


@pytest.mark.parametrize("letter", ["\x00", "\x1b[31m", "\u202e", "\ud800", "\x85", "\u2028", "\ufffe", "\x7f"])
def test_characters_that_break_or_reverse_a_page_are_escaped(letter: str) -> None:
    name = f"a{letter}b"
    html = page([stopped(name, top_tags=[{"tag": name, "messages": 1}])], history=samples(name, list(range(40))))
    html.encode()
    read(html)
    assert letter[0] not in html
    assert f"a\\u{{{ord(letter[0]):x}}}{letter[1:]}b" in text(html)


def test_other_scripts_are_unchanged() -> None:
    assert "订单 🚀 ünïcode" in text(page([stopped("订单 🚀 ünïcode")]))


@pytest.mark.parametrize("groups", [300, 1_200])
def test_a_page_of_many_groups_stays_small_and_counts_the_omitted_ones(groups: int) -> None:
    rows = []
    for index in range(groups):
        name = f"group-{index}-{'x' * 40}"
        row = stopped(name, topic=f"T{index}", evidence={"readings": 3, "window_s": 900}, clients=0)
        rows += [row, *[queue(row, "broker-a", number) for number in range(16)]]
    html = page(rows, history=[sample for row in rows[::17][:40] for sample in samples(row["group"], [5, 6, None, 9])])
    assert len(html.encode()) < 2_000_000
    said = text(html)
    assert f"{groups:,} of {groups:,} groups are behind." in said
    assert f"stopped {groups:,}" in said
    shown = len(read(html).findall(".//details[@class='group']"))
    assert (f"Details of {groups - shown:,} more groups" in said) == (shown < groups)
    if groups == 1_200:
        table = len(read(html).findall(".//table[@class='overview lag']/tbody/tr"))
        assert f"{groups - table:,} more, none of them worse" in said


def test_a_topic_of_very_many_queues_shows_the_worst() -> None:
    row = stopped()
    queues = [queue(row, "broker-a", number, verdict="OK" if number else "STALLED") for number in range(1_000)]
    said = text(page([row, *queues]))
    assert "1,000 queues, 1 of them not OK" in said
    assert "872 more queues, none of them worse, are left out." in said


def test_charts_have_a_title_a_description_and_a_table() -> None:
    row = stopped()
    root = read(page([row, queue(row, "broker-a", 0)], history=samples("billing", list(range(100)))))
    pictures = root.findall(f".//{SVG}svg")
    assert len(pictures) == 2 * 5  # By messages, by time, by age and two over time, each for two widths.
    for picture in pictures:
        assert picture.get("role") == "img"
        marks = (picture.get("aria-labelledby") or "").split()
        said = {part.get("id"): part.text for part in picture if part.tag in {f"{SVG}title", f"{SVG}desc"}}
        assert sorted(said) == sorted(marks)
        assert all(said.values())
    for figure in root.findall(".//figure"):
        assert figure.find("figcaption/b") is not None
        assert figure.find("details/div/table/tbody/tr") is not None


def test_all_colours_have_a_dark_variant() -> None:
    row = stopped()
    rows = [row, queue(row, "broker-a", 0), unknown(), lag("slow", verdict="LAGGING", lag_messages=5, lag_seconds=9.0)]
    root = read(page(rows, history=samples("billing", list(range(100)))))
    style = root.findtext("head/style") or ""
    used = {
        value
        for element in root.iter()
        for name in ("fill", "stroke")
        if (value := element.get(name)) not in (None, "none", "transparent")
    }
    assert used
    assert [colour for colour in used if f'[fill="{colour}"]{{fill:var(' not in style] == []
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style


def test_the_page_shows_the_time_and_the_run() -> None:
    said = text(page([lag()]))
    assert "As of 2026-11-22 09:30:00 UTC · Made 2026-11-22 09:30:00 UTC in 4.2 s · Run 0199aa10" in said
    window = {"from": "2026-11-21T00:00:00.000Z", "to": "2026-11-22T00:00:00.000Z"}
    said = text(page(FLOW, job="throughput_rollup", run={"id": "r", "window": window, "duration_ms": None}))
    assert f"From 2026-11-21 00:00:00 UTC to 2026-11-22 00:00:00 UTC · Made {NOW:%Y-%m-%d %H:%M:%S} UTC · Run r" in said
    assert "2026-11-21" not in text(page([stopped()], run={"id": "r", "window": window, "duration_ms": None}))
