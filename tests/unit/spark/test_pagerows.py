"""The rows of a large report that its page shows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark import pagerows, storedrows
from spark.jobs.worker import job_named
from spark.pagerows import PageRows, page_rows
from spark.storedrows import StoredRows

QUEUES = 4
Rows = Sequence[dict[str, Any]]
PageOf = Callable[[str, Rows], PageRows]


@pytest.fixture
def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageOf:
    """Return the rows of a page, given all rows of a job; they are read three at a time."""
    monkeypatch.setattr(storedrows, "ROWS_AT_ONCE", 3)

    def page_of_rows(job: str, rows: Rows) -> PageRows:
        parquet.write_table(pa.Table.from_pylist(list(rows)), tmp_path / "rows.parquet")
        return page_rows(StoredRows([tmp_path / "rows.parquet"]), job=job, ranking=job_named(job).ranking)

    return page_of_rows


def lag_rows(pairs: int) -> list[dict[str, Any]]:
    """Return pairs in ascending order of their lag, each with its queues."""
    rows: list[dict[str, Any]] = []
    for pair in range(pairs):
        place = {"group": f"g{pair}", "topic": "T", "verdict": "LAGGING" if pair % 2 else "OK"}
        numbers = {"lag_messages": 10, "lag_seconds": float(pair)}
        rows += [{**place, **numbers, "level": "queue", "queue_id": queue} for queue in range(QUEUES)]
        rows.append({**place, **numbers, "level": "topic", "queue_id": None})
    return rows


def test_a_page_shows_all_rows_that_fit(page_of: PageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lag_rows(3)
    monkeypatch.setattr(pagerows, "ROWS_MAX", len(rows))
    shown = page_of("lag_report", rows)
    assert (shown.rows, shown.left_out) == (rows, "")


def test_a_long_report_shows_the_worst_groups_in_full_and_counts_the_others(
    page_of: PageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagerows, "ROWS_MAX", 3 * (QUEUES + 1) + 2)
    shown = page_of("lag_report", lag_rows(10))
    assert {row["group"] for row in shown.rows} == {"g9", "g7", "g5"}
    assert len(shown.rows) == 3 * (QUEUES + 1)
    assert shown.left_out == (
        "This report has 50 rows on 10 groups and topics (5 LAGGING, 5 OK; 100 messages behind), the worst first. This page"
        " counts and shows the first 3 of them only; all rows: gantry report show lag_report."
    )


def test_a_group_that_does_not_fit_leaves_its_room_to_the_next_one(
    page_of: PageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagerows, "ROWS_MAX", 6)
    wide = [{**row, "group": "wide"} for row in lag_rows(1) * 2 if row["level"] == "queue"]
    (topic,) = (row for row in lag_rows(1) if row["level"] == "topic")
    worst = {**topic, "group": "wide", "verdict": "STOPPED", "lag_messages": None, "lag_seconds": None}
    shown = page_of("lag_report", [*wide, worst, *lag_rows(1)])
    assert {row["group"] for row in shown.rows} == {"g0"}


def test_the_largest_backlogs_are_shown(page_of: PageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagerows, "ROWS_MAX", 4)
    rows = [
        {"group": f"g{size}", "topic": "T", "section": section, "messages": size}
        for size in (1, 5, 3)
        for section in ("queue", "age")
    ]
    shown = page_of("backlog_profile", rows)
    assert [row["group"] for row in shown.rows] == ["g5", "g5", "g3", "g3"]
    assert "3 groups and topics (9 messages wait), the largest first" in shown.left_out


def test_the_busiest_topics_are_shown(page_of: PageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagerows, "ROWS_MAX", 4)
    rows = [
        {"topic": topic, "group": group, "unit": unit, "messages": count}
        for topic, came in (("quiet", 1), ("busy", 7))
        for unit, group, count in (("hour", None, came), ("minute", None, 9), ("hour", "g", 99))
    ]
    shown = page_of("throughput_rollup", rows)
    assert [row["topic"] for row in shown.rows] == ["busy"] * 3
    assert "2 topics, the busiest first" in shown.left_out
