"""Consumers: the connected instances of groups, and their subscriptions.

Brokers know the instances that are connected now. Postgres also remembers earlier ones; `subscriptionmirror.py` copies
them there from the brokers.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.errors import InvalidValueError
from gantry.remoting.bodies.connections import ClientConnection, ConsumerConnection
from gantry.remoting.codes import RequestCode, ResponseCode, version_name
from gantry.remoting.headers.client import GetConsumerConnectionListHeader
from gantry.runtime.clock import Clock
from services.gateway.db.models import Subscription
from services.gateway.db.subscriptions import CLIENTS_NAMED_MAX, Sighting, SubscriptionRepository, judge
from services.gateway.errors import ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.times import format_moment, format_time
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable

LISTING: Final = "subscriptions"
_ID_MAX: Final = 2**63 - 1


class Consumers:
    """Reads consumers. The caller checks the right to the group."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata, *, clock: Clock) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata
        self._clock = clock

    async def clients(self, group: str) -> dict[str, Any]:
        """Return the instances of a group that are connected now. Raises ProblemError (503)."""
        asked = await self.connections(group)
        asked.require_any()
        return {"items": client_views(asked.answers), "next_cursor": None}

    async def connections(self, group: str) -> BrokerAnswers[ConsumerConnection]:
        """Return each broker's connections of a group; empty on a broker without instances of it."""

        async def ask(address: str) -> ConsumerConnection:
            header = GetConsumerConnectionListHeader(consumer_group=group)
            try:
                response = await self._engine.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except BrokerError as error:
                if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                    return ConsumerConnection()
                raise
            return ConsumerConnection.decode(response.body_bytes)

        return await self._brokers.ask(ask)

    async def subscribed_topics(self, group: str) -> frozenset[str] | None:
        """Return the topics for which clients of a group are connected now; None if a broker does not answer.

        Raises:
            ProblemError: 503: no broker is registered.
        """
        asked = await self.connections(group)
        if not asked.is_complete:
            return None
        return frozenset(topic for one in asked.answers.values() if one.connections for topic in one.subscriptions)

    async def subscriptions(self, group: str, *, cursor: str | None, limit: int) -> dict[str, Any]:
        """Return a group's subscriptions, including those of instances that have disconnected.

        Raises:
            InvalidValueError: The cursor is not one of this list.
            ProblemError: 503: neither Postgres nor any broker answers.
        """
        after = 0
        if cursor is not None:
            text = decode_cursor(cursor, LISTING)
            if not (text.isascii() and text.isdigit() and int(text) <= _ID_MAX):
                raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
            after = int(text)
        try:
            async with self._metadata.transaction() as session:
                rows = await SubscriptionRepository(session).page(group=group, after_id=after, limit=limit)
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return await self._live(group)
        return {
            "items": [_row_view(row) for row in rows],
            "next_cursor": encode_cursor(LISTING, str(rows[-1].id)) if len(rows) == limit else None,
            "metadata": "available",
        }

    async def _live(self, group: str) -> dict[str, Any]:
        asked = await self.connections(group)
        asked.require_any()
        sightings = sightings_of(asked.answers.values())
        verdicts = judge(sightings)
        now = format_time(self._clock.now_ms())
        items = [
            {
                "topic": seen.topic,
                "filter": seen.expression,
                "filter_type": seen.expression_type,
                "message_model": seen.message_model,
                "client_kind": seen.client_kind,
                "clients": list(seen.clients[:CLIENTS_NAMED_MAX]),
                "clients_count": len(seen.clients),
                "active": True,
                "verdict": verdicts[seen.topic].value,
                "first_seen_at": None,
                "last_seen_at": now,
            }
            for seen in sightings
        ]
        return {"items": items, "next_cursor": None, "metadata": "unavailable"}


def sightings_of(connections: Iterable[ConsumerConnection]) -> list[Sighting]:
    """Return the subscriptions of one group's instances, merged from all brokers; pure.

    A broker keeps one subscription for each topic and group, the newest. So differing instances show up when brokers
    differ, or one after the other.
    """
    seen: dict[tuple[str, str, str, str, str], tuple[int, set[str]]] = {}
    for connection in connections:
        model = str(connection.message_model or "")
        for topic, subscription in connection.subscriptions.items():
            for client in connection.connections:
                key = (topic, client.language, model, subscription.expression_type, subscription.sub_string)
                version, clients = seen.setdefault(key, (subscription.sub_version, set()))
                clients.add(client.client_id)
                seen[key] = (max(version, subscription.sub_version), clients)
    return [
        Sighting(topic, kind, model, expression_type, expression, version, tuple(sorted(clients)))
        for (topic, kind, model, expression_type, expression), (version, clients) in sorted(seen.items())
    ]


def client_views(connections: Mapping[str, ConsumerConnection]) -> list[dict[str, Any]]:
    """Return the views of a group's instances, merged from all brokers; pure."""
    views: dict[str, dict[str, Any]] = {}
    for broker, connection in connections.items():
        for client in connection.connections:
            view = views.setdefault(client.client_id, _client_view(client, connection))
            if broker not in view["brokers"]:
                view["brokers"].append(broker)
    return [views[client_id] for client_id in sorted(views)]


def _client_view(client: ClientConnection, connection: ConsumerConnection) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "address": client.client_addr,
        "language": client.language,
        "version": version_name(client.version),
        "brokers": [],
        "message_model": str(connection.message_model or ""),
        "consume_type": str(connection.consume_type or ""),
        "from_where": str(connection.consume_from_where or ""),
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
