"""Rows, samples and runs for pages, and a strict parser of the result."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from spark.page import BACKLOG_PAGE, LAG_PAGE, THROUGHPUT_PAGE, render

NOW = datetime(2026, 11, 22, 9, 30, 0, 123_000, UTC)
RUN = {"id": "0199aa10-7c1e-7f55-9a55-0c5a1d2e3f40", "job": "lag_report", "window": None, "duration_ms": 4_210}
PAGES = {"lag_report": LAG_PAGE, "backlog_profile": BACKLOG_PAGE, "throughput_rollup": THROUGHPUT_PAGE}
SVG = "{http://www.w3.org/2000/svg}"


def lag(group: str = "billing", topic: str = "ORDERS", **more: Any) -> dict[str, Any]:
    return {
        "level": "topic", "group": group, "topic": topic, "broker": None, "queue_id": None,
        "as_of": "2026-11-22T09:30:00.123Z", "lag_messages": 0, "lag_seconds": 0.0, "oldest_unconsumed_at": None,
        "in_rate": 1.0, "out_rate": 1.0, "drain_eta_s": None, "drain_eta_low_s": None, "drain_eta_high_s": None,
        "retention_left_s": None, "skew": None, "top_tags": None, "clients": 2, "verdict": "OK", "cause": "",
        "next_step": "", "evidence": {}, **more,
    }  # fmt: skip


def stopped(group: str = "billing", **more: Any) -> dict[str, Any]:
    return lag(
        group,
        **{
            "verdict": "STOPPED",
            "lag_messages": 1_204,
            "lag_seconds": 7_500.0,
            "retention_left_s": 93_600.0,
            "cause": "No consumer is connected, though there was one; 1,204 messages wait, the oldest for 2 h.",
            "next_step": "Start the group's consumers again.",
            **more,
        },
    )


def ignored(group: str = "batch", **more: Any) -> dict[str, Any]:
    cause = "Ignored until 2026-12-01 08:00 UTC, else STOPPED. No consumer is connected."
    return stopped(group, **{"verdict": "IGNORED", "cause": cause, "next_step": "", **more})


def unknown(group: str = "lost", **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("lag_messages", "lag_seconds", "in_rate", "out_rate", "clients"))
    reason = {"unknown": "broker-b can't be reached", "clients_unknown": "no broker said who is connected"}
    said = {"verdict": "UNKNOWN", "cause": "broker-b can't be reached.", "evidence": reason}
    return lag(group, **{**nothing, **said, **more})


def queue(row: dict[str, Any], broker: str, queue_id: int, **more: Any) -> dict[str, Any]:
    return {**row, "level": "queue", "broker": broker, "queue_id": queue_id, **more}


def samples(group: str, lags: list[int | None], *, topic: str = "ORDERS", every_s: int = 15) -> list[dict[str, Any]]:
    start = NOW - timedelta(seconds=every_s * (len(lags) - 1))
    return [
        {
            "sampled_at": start + timedelta(seconds=every_s * index),
            "group": group,
            "topic": topic,
            "lag": value,
            "behind_s": None if value is None else value / 2,
        }
        for index, value in enumerate(lags)
    ]


def many(groups: int) -> list[dict[str, Any]]:
    """Return rows of many groups: a third stopped on one topic, a few unknown, the others fine; two queues each."""
    rows = []
    for index in range(groups):
        name, topic = f"warehouse-eu-{index:04}", f"orders.shipped-{index % 97}"
        if index % 3 == 0:
            row = stopped(name, topic="orders.created", lag_messages=1_000 + index, lag_seconds=7_500.0 + index)
        elif index % 17 == 1:
            row = unknown(name, topic=topic)
        else:
            row = lag(name, topic=topic, lag_messages=index % 5, lag_seconds=float(index % 5) / 10)
        rows += [row, *[queue(row, "broker-a", number) for number in range(2)]]
    return rows


def page(rows: list[dict[str, Any]], *, job: str = "lag_report", history: Any = (), run: Any = RUN) -> str:
    return render(PAGES[job], rows, history=history, generated_at=NOW, run=run)


@lru_cache(maxsize=1)
def read(html: str) -> ET.Element:
    """Read a page as the XML that it is too: every element closed, every attribute quoted.

    Tests ask a page many questions one after another; a large one takes half a second to read.
    """
    kind, _, rest = html.partition("\n")
    assert kind == "<!DOCTYPE html>"
    root = ET.fromstring(rest)
    ids = [found for element in root.iter() if (found := element.get("id")) is not None]
    assert len(ids) == len(set(ids))
    return root


def text(html: str) -> str:
    """Return the text of a page outside of charts, with each run of blanks as one."""
    return " ".join(" ".join(_words(read(html).find("body"))).split())


def _words(element: ET.Element | None) -> Iterator[str]:
    assert element is not None
    if element.tag == f"{SVG}svg":
        return
    yield element.text or ""
    for child in element:
        yield from _words(child)
        yield child.tail or ""


class ParsedPage(HTMLParser):
    """The view of a browser's parser: elements with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
