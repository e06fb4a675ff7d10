"""Renders the page of a report as one HTML file."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from spark.page.formatting import at, duration, moment, number
from spark.page.markup import Content, Html, el
from spark.page.page import Page, PageData, Rows
from spark.page.style import STYLE

_UNKNOWN_MEANS: Final = "Times are UTC. Unknown means that it could not be found out, never that it is zero."


def render(
    page: Page, rows: Rows, *, history: Rows, generated_at: datetime, run: Mapping[str, Any], left_out: str = ""
) -> str:
    """Return the page of a finished run: one HTML file without scripts, which fetches nothing.

    It works under `default-src 'none'; style-src 'unsafe-inline'; img-src data:`, and stays below 2 MB for any number
    of rows. It says how many rows it leaves out.

    Args:
        page: The page of the job.
        rows: The rows of the job's table of results, with columns by name; None means unknown.
        history: Samples of lag: sampled_at, group, topic, lag, behind_s (None if it was unknown), for the pairs that
            `charted_pairs` returns. May be empty.
        generated_at: The time when the page was made.
        run: The run as the REST API shows it.
        left_out: A sentence about rows of the report that are not in `rows`; empty if all are.
    """
    made_at = moment(generated_at)
    assert made_at is not None
    data = PageData(list(rows), history, made_at)
    head, main = page.body(data)
    if left_out:
        head = el("div", el("p", left_out, class_="note"), head)
    return "<!DOCTYPE html>\n" + _document(page, head, main, about=_report_facts(data.rows, made_at, run))


def _document(page: Page, head: Html, main: Html, *, about: Content) -> Html:
    return el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", f"{page.title} · Gantry"),
            Html(f"<style>{STYLE}</style>"),
        ),
        el(
            "body",
            el("header", el("h1", page.title), head, el("p", about, class_="about")),
            el("main", main),
            el("footer", el("p", page.foot, _UNKNOWN_MEANS)),
        ),
        lang="en",
    )


def _report_facts(rows: Sequence[Mapping[str, Any]], made_at: datetime, run: Mapping[str, Any]) -> Content:
    as_of = max((found for row in rows if (found := moment(row.get("as_of"))) is not None), default=None)
    window = run.get("window") or {}
    # A report on one moment is not about the window of its run: that window only identifies the run.
    since, until = (None, None) if as_of else (moment(window.get("from")), moment(window.get("to")))
    took = number(run.get("duration_ms"))
    parts: list[Content] = [
        ["As of ", at(as_of)] if as_of else None,
        ["From ", at(since), " to ", at(until)] if since and until else None,
        ["Made ", at(made_at), f" in {duration(took / 1_000)}" if took else None],
        f"Run {run['id']}" if run.get("id") else None,
    ]
    known = [part for part in parts if part]
    return [[part, " · " if index < len(known) - 1 else None] for index, part in enumerate(known)]
