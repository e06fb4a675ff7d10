"""The table of a lag report: groups with their verdicts, worst first, and the causes of the worst."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from gantry.cli.formatting import cell, print_table
from gantry.model.lag import NO_END, UNKNOWN_RANGE, brief_duration, drain_range, severity

REASONS_MAX: Final = 10
"""Maximum number of rows with their cause and next step under the table."""
OWNERS_MAX: Final = 8
"""Maximum number of clients named for each of these rows."""
OK_ROWS_MAX: Final = 20
"""Maximum number of rows with the verdict OK. More of them would scroll the late groups off the screen."""


class Level(StrEnum):
    """The level of a row in a lag report."""

    TOPIC = "topic"
    QUEUE = "queue"


def print_lag(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows of a lag report, worst first, then the causes of those that are not OK."""
    ordered = sorted(
        rows,
        key=lambda row: (
            severity(row["verdict"]),
            -(row["lag_seconds"] or 0),
            -(row["lag_messages"] or 0),
            row["group"],
            row["topic"],
        ),
    )
    has_queues = any(row["queue_id"] is not None for row in rows)
    queue_cell = ["queue"] if has_queues else []
    columns = ["verdict", "group", "topic", *queue_cell, "messages", "behind", "since", "gone_in", "deleted_in"]
    late = [row for row in ordered if row["verdict"] != "OK"]
    ok_rows = ordered[len(late) :]
    listed = [*late, *ok_rows[:OK_ROWS_MAX]]
    print_table(
        columns, [_lag_cells(row, has_queues=has_queues) for row in listed], empty="there are no groups to report on"
    )
    if len(ok_rows) > OK_ROWS_MAX:
        print(f"and {len(ok_rows) - OK_ROWS_MAX:,} more rows are OK: the page and --json show all rows")
    late_topics = [row for row in late if row["level"] == Level.TOPIC]
    for row in late_topics[:REASONS_MAX]:
        print(f"\n{cell(row['verdict'])} {cell(row['group'])} on {cell(row['topic'])}: {cell(row['cause'])}")
        if row["next_step"]:
            print(f"  next step: {cell(row['next_step'])}")
        if owners := _clients_text(row):
            print(f"  clients (queues): {cell(owners)}")
    if len(late_topics) > REASONS_MAX:
        print(f"\n{len(late_topics) - REASONS_MAX:,} more rows are not OK: the page and --json show all rows")


def _lag_cells(row: dict[str, Any], *, has_queues: bool) -> list[object]:
    has_lag = row["lag_messages"] != 0
    queue_cell = None if row["queue_id"] is None else f"{row['broker']}/{row['queue_id']}"
    return [
        row["verdict"],
        row["group"],
        row["topic"],
        *([queue_cell] if has_queues else []),
        count_text(row["lag_messages"]),
        duration_text(row["lag_seconds"]) if has_lag else None,
        _since_text(row) if has_lag else None,
        _drain_text(row) if has_lag else None,
        duration_text(row["retention_left_s"]) if has_lag else None,
    ]


def count_text(messages: int | None) -> str:
    """Return a number of messages with thousands separators, or `unknown`."""
    return "unknown" if messages is None else f"{messages:,}"


def duration_text(seconds: float | None) -> str:
    """Return a duration such as `2 d 3 h`, or `unknown`."""
    return "unknown" if seconds is None else brief_duration(seconds)


def _since_text(row: dict[str, Any]) -> str | None:
    """Return the time since which a group is behind. Rows of older gateways lack it."""
    if row["verdict"] == "OK" or row["level"] != Level.TOPIC:
        return None
    at_latest = (row["evidence"] or {}).get("behind_at_latest")
    since = row.get("behind_since")
    return _minute(since) if since else f"before {_minute(at_latest)}" if at_latest else "unknown"


def _minute(moment: str) -> str:
    return f"{moment[:10]} {moment[11:16]}"


def _clients_text(row: dict[str, Any]) -> str | None:
    """Return the clients of the group, each with its host and its number of queues."""
    owners = row.get("owners")
    if not owners:
        return None
    named = [
        f"{one['client_id']} at {one['host']} ({'queues unknown' if one['queues'] is None else one['queues']})"
        for one in owners[:OWNERS_MAX]
    ]
    left = len(owners) - len(named)
    return ", ".join(named) + (f" and {left:,} more" if left else "")


def _drain_text(row: dict[str, Any]) -> str | None:
    if row["drain_eta_s"] is not None:
        return drain_range(row["drain_eta_low_s"], row["drain_eta_high_s"])
    if row["verdict"] == "OK":  # The group keeps up: a few messages are always in flight.
        return None
    if row["in_rate"] is None or row["out_rate"] is None:
        return UNKNOWN_RANGE
    if row["out_rate"] <= row["in_rate"]:
        return "never"
    # After a move of offsets it takes a while until there are rates for a forecast.
    return UNKNOWN_RANGE if "moved_s" in (row["evidence"] or {}) else NO_END
