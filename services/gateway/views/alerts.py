"""The JSON form of alerts and their events, in answers and in the bodies of webhooks."""

from typing import Any

from services.gateway.db.alerts import AlertEvent, OpenAlert
from services.gateway.schemas.times import format_moment


def alert_view(alert: OpenAlert) -> dict[str, Any]:
    """Return an open alert in the contract's form."""
    return {
        "id": str(alert.alert_id),
        "group": alert.group_name,
        "topic": alert.topic,
        "verdict": alert.verdict,
        "opened_at": format_moment(alert.opened_at),
        "since": format_moment(alert.since),
        "seen_at": format_moment(alert.seen_at),
        "seen_verdict": alert.seen_verdict,
        "lag_messages": alert.lag_messages,
        "lag_seconds": alert.lag_seconds,
        "run": str(alert.run_id),
    }


def event_view(event: AlertEvent) -> dict[str, Any]:
    """Return an event in the contract's form."""
    return {
        "id": str(event.id),
        "at": format_moment(event.at),
        "alert": str(event.alert_id),
        "kind": event.kind,
        "group": event.group_name,
        "topic": event.topic,
        "old_verdict": event.old_verdict,
        "new_verdict": event.new_verdict,
        "since": format_moment(event.since),
        "lag_messages": event.lag_messages,
        "lag_seconds": event.lag_seconds,
        "cause": event.cause,
        "run": str(event.run_id),
    }
