"""The JSON form of connected clients, of subscriptions, and of what they differ in."""

from typing import Any

from gantry.remoting.codes import version_name
from services.gateway.db.models import Subscription
from services.gateway.db.subscriptions import CLIENTS_NAMED_MAX
from services.gateway.schemas.times import format_moment, format_time
from services.gateway.usecases.consuming.consistency import Consistency
from services.gateway.usecases.consuming.consumers import ConnectedClient, LiveSubscription
from services.gateway.views.optional import time_view


def client_view(client: ConnectedClient) -> dict[str, Any]:
    """Return a connected client in the contract's form."""
    return {
        "client_id": client.client_id,
        "address": client.address,
        "language": client.language,
        "version": version_name(client.version),
        "brokers": client.brokers,
        "message_model": str(client.message_model or ""),
        "consume_type": str(client.consume_type or ""),
        "from_where": str(client.from_where or ""),
    }


def subscription_view(subscription: Subscription | LiveSubscription) -> dict[str, Any]:
    """Return a subscription in the contract's form."""
    return _live_view(subscription) if isinstance(subscription, LiveSubscription) else _row_view(subscription)


def consistency_view(found: Consistency) -> dict[str, Any]:
    """Return whether the members of a group agree in the contract's form."""
    return {
        "consistent": found.is_consistent,
        "since": time_view(found.since_ms),
        "differences": [
            {
                "kind": difference.kind,
                "topic": difference.topic,
                "sides": [
                    {
                        "value": side.value,
                        "clients": list(side.clients),
                        "clients_count": side.clients_count,
                        "since": format_time(side.since_ms),
                    }
                    for side in difference.sides
                ],
            }
            for difference in found.differences
        ],
        "missing": list(found.missing),
    }


def _live_view(live: LiveSubscription) -> dict[str, Any]:
    seen = live.sighting
    return {
        "topic": seen.topic,
        "filter": seen.expression,
        "filter_type": seen.expression_type,
        "message_model": seen.message_model,
        "client_kind": seen.client_kind,
        "clients": seen.clients[:CLIENTS_NAMED_MAX],
        "clients_count": len(seen.clients),
        "active": True,
        "verdict": live.verdict.value,
        "first_seen_at": None,
        "last_seen_at": format_time(live.seen_at_ms),
    }


def _row_view(row: Subscription) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "filter": row.expression,
        "filter_type": row.expression_type,
        "message_model": row.message_model,
        "client_kind": row.client_kind,
        "clients": row.clients,
        "clients_count": row.clients_count,
        "active": row.active,
        "verdict": row.verdict,
        "first_seen_at": format_moment(row.first_seen_at),
        "last_seen_at": format_moment(row.last_seen_at),
    }
