"""The JSON form of the life of a message."""

from typing import Any

from services.gateway.schemas.times import format_time
from services.gateway.usecases.lives.facts import Life
from services.gateway.views.optional import time_view


def life_view(life: Life) -> dict[str, Any]:
    """Return the life of a message in the contract's form."""
    return {
        "message_id": life.message_id,
        "topic": life.topic,
        "events": [
            {
                "at": format_time(event.at_ms),
                "kind": event.kind.value,
                "broker": event.broker,
                "group": event.group,
                "client": event.client,
                "attempt": event.attempt,
                "detail": event.detail,
            }
            for event in life.events
        ],
        "groups": [
            {"group": one.group, "state": one.state.value, "since": time_view(one.since_ms), "why": one.why}
            for one in life.groups
        ],
        "missing": life.missing,
    }
