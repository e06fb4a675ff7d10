"""Report pages in a real Chromium: a narrow screen cuts off nothing, and a page with thousands of groups opens at once."""

import json
from functools import cache
from typing import Any

import pytest

from spark.page import charted_pairs
from spark.page.tables import COLUMNS
from tests.support.chromium import Page
from tests.unit.spark.page.reportrows import lag, many, page, queue, samples, stopped, unknown

PHONE = 390
SCREEN = 1_280


def lag_page(groups: int) -> str:
    rows = many(groups) if groups > 1 else [stopped(), queue(stopped(), "broker-a", 0)]
    rows.append(lag("x" * 80, topic="y" * 80, lag_messages=10**12, in_rate=1e6, out_rate=1e6, verdict="LAGGING"))
    past = [
        sample
        for group, topic in charted_pairs(rows, 20)
        for sample in samples(group, list(range(100)), topic=topic, every_s=300)
    ]
    return page(rows, history=past)


def other_pages() -> dict[str, str]:
    flows = [
        {"unit": "hour", "bucket_at": f"2026-11-22T{hour:02}:00:00Z", "topic": f"orders-{topic}", "group": group,
         "messages": 10**9, "rate_max": 300_000.0, "covered_s": 3_600.0}
        for hour in range(9) for topic in range(11) for group in (None, "billing", "search")
    ]  # fmt: skip
    backlog: list[dict[str, Any]] = [
        {"group": f"billing-{group}", "topic": "ORDERS", "section": section, "bucket": f"{section}-{bucket}",
         "lower_bound": float(bucket), "upper_bound": None, "messages": 10**9 + bucket, "bytes": 10**12}
        for group in range(11) for section in ("age", "tag", "key", "size", "queue") for bucket in range(9)
    ]  # fmt: skip
    return {
        "throughput": page(flows, job="throughput_rollup"),
        "backlog": page(backlog, job="backlog_profile"),
        "unknown": page([unknown(), queue(unknown(), "broker-b", 0)]),
    }


PAGES = ("lag-1", "lag-11", "lag-300", "throughput", "backlog", "unknown")


@cache
def page_of(name: str) -> str:
    """Return a page. A test makes it, not the import: every process of a test run imports this file."""
    kind, _, groups = name.partition("-")
    return lag_page(int(groups)) if kind == "lag" else other_pages()[name]


# Elements that reach over an edge of the screen and do not lie in an element that scrolls to them.
CUT_OFF = """
[...document.querySelectorAll("body *")].filter(found => {
  const box = found.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !found.closest(".scroll") && !found.closest("svg");
}).map(found => found.outerHTML.slice(0, 120))
"""
# For each table row: the visible cells, by the name that is shown beside each cell.
CARDS = """
[...document.querySelectorAll("table.overview > tbody > tr")].filter(row => row.checkVisibility()).map(row => [
  row.closest("table").className.split(" ")[1],
  [...row.children].filter(cell => cell.tagName == "TD" && !cell.classList.contains("folded")).map(cell => [
    cell.innerText.trim(), cell.checkVisibility(), getComputedStyle(cell, "::before").content.replaceAll('"', "")])])
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, SCREEN])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_reaches_over_the_edge_of_the_screen(browser: Page, name: str, width: int, dark: bool) -> None:
    browser.open(page_of(name), width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(found => found.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("name", PAGES)
def test_on_a_telephone_every_column_is_there_with_its_name(browser: Page, name: str) -> None:
    browser.open(page_of(name), width=PHONE)
    browser.evaluate("document.querySelectorAll('.folded details').forEach(found => found.open = true)")
    cards = browser.evaluate(CARDS)
    assert cards
    for kind, cells in cards:
        if not cells:  # The row that unfolds.
            continue
        assert [label for _, _, label in cells] == list(COLUMNS[kind][1:])
        assert [value for value, is_seen, _ in cells if value and not is_seen] == []
    assert kind_has_all(cards)


def kind_has_all(cards: list[Any]) -> bool:
    """Return whether every column has a value in at least one row."""
    return any(cells and all(value for value, _, _ in cells) for _, cells in cards)


@pytest.mark.parametrize("name", PAGES)
def test_on_a_telephone_wide_content_can_be_scrolled(browser: Page, name: str) -> None:
    browser.open(page_of(name), width=PHONE)
    browser.evaluate("document.querySelectorAll('details').forEach(found => found.open = true)")
    moved = """
    [...document.querySelectorAll(".scroll")].filter(found => found.scrollWidth > found.clientWidth + 1).filter(found => {
      found.scrollLeft = 1e6;
      const last = found.querySelector("tr").lastElementChild.getBoundingClientRect();
      return getComputedStyle(found).overflowX != "auto" || last.right > innerWidth + 1;
    }).length
    """
    assert browser.evaluate(moved) == 0


def test_a_link_opens_its_section_and_the_fold_around_it(browser: Page) -> None:
    browser.open(page_of("lag-300"), width=PHONE)
    browser.evaluate("document.querySelectorAll('.folded details')[0].open = true")
    link = "document.querySelector('.folded a')"
    target = json.dumps(browser.evaluate(f"{link}.getAttribute('href')"))
    assert browser.evaluate(f"document.querySelector({target}).checkVisibility()") is False
    browser.evaluate(f"{link}.click()")
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.evaluate(f"document.querySelector({target}).checkVisibility()") is True


def test_a_page_of_3000_groups_opens_at_once(browser: Page) -> None:
    html = lag_page(3_000)
    assert len(html.encode()) < 2_000_000
    browser.open(html, width=PHONE)
    # Elements cost the browser time; text and pictures do not.
    assert browser.evaluate("document.querySelectorAll('*').length") < 60_000
    started = "performance.now()"
    began = browser.evaluate(started)
    browser.resize(SCREEN)
    browser.evaluate("document.documentElement.getBoundingClientRect().height")
    assert browser.evaluate(started) - began < 5_000
