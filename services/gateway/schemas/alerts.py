"""Alerts and their events as answers and webhooks show them."""

from typing import Any

from services.gateway.schemas.times import format_moment


def alert_view(row: Any) -> dict[str, Any]:
    """Return the view of an open alert."""
    return {
        "id": str(row.alert_id),
        "group": row.group_name,
        "topic": row.topic,
        "verdict": row.verdict,
        "opened_at": format_moment(row.opened_at),
        "since": format_moment(row.since),
        "seen_at": format_moment(row.seen_at),
        "seen_verdict": row.seen_verdict,
        "lag_messages": row.lag_messages,
        "lag_seconds": row.lag_seconds,
        "run": str(row.run_id),
    }


def event_view(row: Any) -> dict[str, Any]:
    """Return the view of an event, for answers and webhooks."""
    return {
        "id": str(row.id),
        "at": format_moment(row.at),
        "alert": str(row.alert_id),
        "kind": row.kind,
        "group": row.group_name,
        "topic": row.topic,
        "old_verdict": row.old_verdict,
        "new_verdict": row.new_verdict,
        "since": format_moment(row.since),
        "lag_messages": row.lag_messages,
        "lag_seconds": row.lag_seconds,
        "cause": row.cause,
        "run": str(row.run_id),
    }
