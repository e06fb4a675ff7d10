"""Rows and runs as other programs read them, and the window of a rollup."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark.jobs.arguments import Window
from spark.jobs.backlog_profile import limits_of
from spark.jobs.lag_report import TABLE
from spark.jobs.running import run_view
from spark.jobs.throughput_rollup import day_of, hour_of, window_of
from spark.runs import Run
from spark.storedrows import to_rows

NOON = datetime(2026, 11, 21, 12, 34, 56, 789_000, tzinfo=UTC)


def run(**changed: Any) -> Run:
    values: dict[str, Any] = {
        "id": UUID(int=1), "job": "lag_report", "window_start": None, "window_end": NOON, "trigger": "manual",
        "requested_by": None, "status": "running", "attempt": 2, "error": None, "created_at": NOON, "started_at": None,
    }  # fmt: skip
    return Run(**(values | changed))


def test_rows_are_plain_values() -> None:
    table = pa.table(
        {
            "group": ["a"],
            "evidence": ['{"lag": 3}'],
            "top_tags": pa.array([[("AA", 2)]], pa.map_(pa.string(), pa.int64())),
            "cause": ['{"not": "json by name"}'],
        }
    )
    assert to_rows(table, json=TABLE.json) == [
        {"group": "a", "evidence": {"lag": 3}, "top_tags": {"AA": 2}, "cause": '{"not": "json by name"}'}
    ]
    assert to_rows(table.slice(0, 0), json=TABLE.json) == []


def test_unknown_values_stay_null() -> None:
    table = pa.table({"evidence": pa.array([None], pa.string()), "top_tags": pa.array([None], pa.list_(pa.int64()))})
    assert to_rows(table, json=TABLE.json) == [{"evidence": None, "top_tags": None}]


def test_a_run_is_shown_as_the_rest_api_does() -> None:
    view = run_view(run(started_at=NOON + timedelta(seconds=1)), NOON + timedelta(seconds=3))
    assert (view["id"], view["window"], view["duration_ms"], view["attempt"]) == (str(UUID(int=1)), None, 2_000, 2)
    assert view["started_at"] == "2026-11-21T12:34:57.789Z"
    windowed = run_view(run(window_start=NOON - timedelta(hours=1)), NOON)
    assert windowed["window"] == {"from": "2026-11-21T11:34:56.789Z", "to": "2026-11-21T12:34:56.789Z"}
    # A clock that was set back gives no negative duration.
    assert run_view(run(), NOON - timedelta(seconds=9))["duration_ms"] == 0


@pytest.mark.parametrize(
    ("of_run", "expected"),
    [
        (NOON - timedelta(hours=3), Window(NOON - timedelta(hours=3), NOON)),
        (None, Window(NOON - timedelta(hours=1), NOON)),
    ],
)
def test_a_rollup_covers_the_requested_window(of_run: datetime | None, expected: Window) -> None:
    work: Any = SimpleNamespace(run=run(window_start=of_run), now=NOON)
    assert window_of(work) == expected


def test_a_profile_covers_messages_stored_in_the_window() -> None:
    assert limits_of(run()) == {}
    assert limits_of(run(window_start=NOON - timedelta(hours=1))) == {
        "from": "2026-11-21T11:34:56.789Z",
        "to": "2026-11-21T12:34:56.789Z",
    }


def test_a_rollup_begins_at_the_start_of_its_hour_and_day() -> None:
    assert hour_of(NOON) == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert day_of(NOON) == datetime(2026, 11, 21, tzinfo=UTC)
