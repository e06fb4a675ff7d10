"""The JSON form of objectives."""

from typing import Any

from services.gateway.db.objectives import Objective
from services.gateway.schemas.objectives import ALL_TOPICS
from services.gateway.schemas.times import format_moment


def objective_view(objective: Objective) -> dict[str, Any]:
    """Return an objective in the contract's form."""
    until = objective.ignore_until
    return {
        "group": objective.group_name,
        "topic": None if objective.topic == ALL_TOPICS else objective.topic,
        "max_lag_seconds": objective.max_lag_seconds,
        "max_lag_messages": objective.max_lag_messages,
        "ignore": objective.ignore,
        "ignore_until": None if until is None else format_moment(until),
        "reason": objective.reason,
        "updated_at": format_moment(objective.updated_at),
    }
