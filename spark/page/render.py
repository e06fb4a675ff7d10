"""A report's page: `render`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from spark.page.backlogpage import backlog_body
from spark.page.formatting import at, duration, moment, number
from spark.page.lagpage import lag_body
from spark.page.markup import Content, Html, el
from spark.page.style import STYLE
from spark.page.throughputpage import throughput_body

Rows: TypeAlias = Iterable[Mapping[str, Any]]

_UNKNOWN_MEANS: Final = "Times are UTC. Unknown means that it could not be found out, never that it is zero."
_FEET: Final = {
    "lag_report": "Time behind is the age of the first message that a group has not consumed and its filter lets through. ",
    "backlog_profile": "A message waits for a group that has not consumed it and whose filter, where it is known, lets it through. ",
    "throughput_rollup": "In is what was stored in a topic, out is how far the groups' committed offsets moved. ",
}
TITLES: Final = {"lag_report": "Lag report", "backlog_profile": "Backlog profile", "throughput_rollup": "Throughput"}


def render(
    job: str, rows: Rows, *, history: Rows, generated_at: datetime, run: Mapping[str, Any], left_out: str = ""
) -> str:
    """Return the page of a finished run: one HTML file without scripts, with nothing fetched from anywhere.

    It works under `default-src 'none'; style-src 'unsafe-inline'; img-src data:`, and stays under 2 MB whatever the
    number of rows; what it leaves out it counts.

    Args:
        job: `lag_report`, `backlog_profile` or `throughput_rollup`.
        rows: What the job's table of results has, columns by name; a None is not known.
        history: Samples of lag: sampled_at, group, topic, lag, behind_s (None where it was not known); of the pairs that
            `charted_pairs` names. May be empty.
        generated_at: When the page was made.
        run: The run as the REST API shows it.
        left_out: A sentence about rows of the report that `rows` does not have; empty if it has all.

    Raises:
        ValueError: There is no such job.
    """
    if job not in TITLES:
        raise ValueError(f"no page for a job {job!r}: there are {', '.join(TITLES)}")
    rows = list(rows)
    made_at = moment(generated_at)
    assert made_at is not None
    if job == "lag_report":
        head, main = lag_body(rows, history=history, generated_at=made_at)
    elif job == "backlog_profile":
        head, main = backlog_body(rows)
    else:
        head, main = throughput_body(rows)
    if left_out:
        head = el("div", el("p", left_out, class_="note"), head)
    return "<!DOCTYPE html>\n" + _page(TITLES[job], head, main, about=_about(rows, made_at, run), foot=_FEET[job])


def _page(title: str, head: Html, main: Html, *, about: Content, foot: str) -> Html:
    return el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", f"{title} · Gantry"),
            Html(f"<style>{STYLE}</style>"),
        ),
        el(
            "body",
            el("header", el("h1", title), head, el("p", about, class_="about")),
            el("main", main),
            el("footer", el("p", foot, _UNKNOWN_MEANS)),
        ),
        lang="en",
    )


def _about(rows: Sequence[Mapping[str, Any]], made_at: datetime, run: Mapping[str, Any]) -> Content:
    as_of = max((found for row in rows if (found := moment(row.get("as_of"))) is not None), default=None)
    window = run.get("window") or {}
    # What is of one moment is not about its run's window, which only names the run.
    since, until = (None, None) if as_of else (moment(window.get("from")), moment(window.get("to")))
    took = number(run.get("duration_ms"))
    parts: list[Content] = [
        ["As of ", at(as_of)] if as_of else None,
        ["From ", at(since), " to ", at(until)] if since and until else None,
        ["Made ", at(made_at), f" in {duration(took / 1_000)}" if took else None],
        f"Run {run['id']}" if run.get("id") else None,
    ]
    said = [part for part in parts if part]
    return [[part, " · " if index < len(said) - 1 else None] for index, part in enumerate(said)]
