"""Reads data from Postgres that no broker can report now: subscriptions of absent groups, and queues of absent brokers.

The gateway maintains these tables (services/gateway/db/models.py). This module only reads them, over one connection with
time limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from spark.datasource.filters import GroupFilter

_LIMITS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "application_name": "gantry-spark",
    "options": "-c statement_timeout=30000 -c lock_timeout=4000 -c default_transaction_read_only=on -c timezone=UTC",
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}

# The newest subscription of a group's instances to a topic counts. In a broker's table, the newest wins, too.
_SUBSCRIPTIONS: Final = """
    SELECT DISTINCT ON (group_name, topic) group_name, topic, expression_type, expression
    FROM subscriptions
    ORDER BY group_name, topic, last_seen_at DESC, sub_version DESC, id DESC
"""
# Gateways note every half minute which groups pull over HTTP (HTTP_PULL of services/gateway/db/subscriptions.py).
_SERVICE: Final = """
    SELECT group_name,
        coalesce(bool_or(last_seen_at > now() - interval '2 minutes') FILTER (WHERE client_kind = 'HTTP_PULL'), false),
        coalesce(max(last_seen_at) FILTER (WHERE client_kind <> 'HTTP_PULL')
            >= coalesce(max(last_seen_at) FILTER (WHERE client_kind = 'HTTP_PULL'), '-infinity'), false)
    FROM subscriptions
    GROUP BY group_name
"""
_GROUPS: Final = "SELECT name FROM groups WHERE state <> 'deleting'"
_TOPICS: Final = "SELECT name, observed FROM topics WHERE state <> 'deleting'"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The data in Postgres. `error` says why Postgres could not be asked. Without a database, all fields are empty."""

    has_database: bool = False
    filters: Mapping[str, Mapping[str, GroupFilter]] = field(default_factory=dict)
    """Group → topic → the filter that was seen last."""
    groups: frozenset[str] = frozenset()
    """The groups that should exist. `filters` may have other groups, too, because their subscriptions stay."""
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Topic → broker name → number of read queues, as last observed there."""
    pulling: frozenset[str] = frozenset()
    """The groups that pull over HTTP now."""
    connected: frozenset[str] = frozenset()
    """The groups that were consumed last by a connected client, and not over HTTP."""
    error: str | None = None

    def has_seen(self, group: str) -> bool | None:
        """Return whether a group was consumed last by a connected client; None if that is unknown."""
        if not self.has_database or self.error is not None:
            return None
        return group in self.connected


def read_metadata(database: str) -> Metadata:
    """Read the data. Return an error instead of raising it, because a survey gets most of its data from brokers."""
    try:
        with psycopg.connect(database, **_LIMITS) as connection:
            subscriptions = connection.execute(_SUBSCRIPTIONS).fetchall()
            service = connection.execute(_SERVICE).fetchall()
            groups = connection.execute(_GROUPS).fetchall()
            topics = connection.execute(_TOPICS).fetchall()
    except psycopg.Error as error:
        first_line = str(error).strip().partition("\n")[0]
        return Metadata(has_database=True, error=f"Postgres could not be asked for subscriptions: {first_line}")
    filters: dict[str, dict[str, GroupFilter]] = {}
    for group, topic, kind, expression in subscriptions:
        filters.setdefault(group, {})[topic] = GroupFilter.of_expression(kind, expression)
    return Metadata(
        has_database=True,
        filters=filters,
        groups=frozenset(name for (name,) in groups),
        queues={name: _read_queues(observed) for name, observed in topics},
        pulling=frozenset(group for group, is_pulling, _ in service if is_pulling),
        connected=frozenset(group for group, _, is_connected in service if is_connected),
    )


def _read_queues(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    counts = {broker: config.get("read_queues") for broker, config in observed.items()}
    return {broker: count for broker, count in counts.items() if isinstance(count, int)}
