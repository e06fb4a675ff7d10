"""Consumers: the connected instances of groups, and their subscriptions.

Brokers know the instances that are connected now. Postgres also remembers earlier ones; `subscriptionmirror.py` copies
them there from the brokers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.errors import InvalidValueError
from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from gantry.remoting.bodies.connections import ClientConnection, ConsumerConnection
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import GetConsumerConnectionListHeader
from gantry.runtime.clock import Clock
from gantry.runtime.digits import parse_digits
from services.gateway.db.models import Subscription, Verdict
from services.gateway.db.subscriptions import Sighting, SubscriptionRepository, judge
from services.gateway.errors import ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable
from services.gateway.usecases.page import MetadataPage

LISTING: Final = "subscriptions"
_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """An instance of a group that is connected now.

    Attributes:
        client_id: Id of the instance.
        address: Address from which it is connected, `host:port`.
        language: Language of its client, as the broker reports it: `JAVA`, `PYTHON`, ….
        version: Number of its protocol version.
        brokers: Names of the broker sets that it is connected to.
        message_model: Message model of the group; None if the broker does not report it.
        consume_type: Whether the group pulls or is pushed to; None as above.
        from_where: Position at which the group starts in new queues; None as above.
    """

    client_id: str
    address: str
    language: str
    version: int
    brokers: Sequence[str]
    message_model: MessageModel | None
    consume_type: ConsumeType | None
    from_where: ConsumeFromWhere | None


@dataclass(frozen=True, slots=True)
class LiveSubscription:
    """A subscription that brokers see now; it is not known when it was first seen.

    Attributes:
        sighting: The subscription and the instances that have it.
        verdict: Whether the instances of the group agree on the topic.
        seen_at_ms: The present.
    """

    sighting: Sighting
    verdict: Verdict
    seen_at_ms: int


class Consumers:
    """Reads consumers. The caller checks the right to the group."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata, *, clock: Clock) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata
        self._clock = clock

    async def clients(self, group: str) -> list[ConnectedClient]:
        """Return the instances of a group that are connected now. Raises ProblemError (503)."""
        asked = await self.connections(group)
        asked.require_any()
        return connected_clients(asked.answers)

    async def connections(self, group: str, among: Collection[str] | None = None) -> BrokerAnswers[ConsumerConnection]:
        """Return the connections of a group at all brokers, or at those in `among`; empty where it has no instances."""

        async def ask(address: str) -> ConsumerConnection:
            header = GetConsumerConnectionListHeader(consumer_group=group)
            try:
                response = await self._engine.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except BrokerError as error:
                if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                    return ConsumerConnection()
                raise
            return ConsumerConnection.decode(response.body_bytes)

        return await self._brokers.ask(ask, among)

    async def subscribed_topics(self, group: str) -> frozenset[str] | None:
        """Return the topics for which clients of a group are connected now; None if a broker does not answer.

        Raises:
            ProblemError: 503: no broker is registered.
        """
        asked = await self.connections(group)
        if not asked.is_complete:
            return None
        return frozenset(topic for one in asked.answers.values() if one.connections for topic in one.subscriptions)

    async def subscriptions(
        self, group: str, *, cursor: str | None, limit: int
    ) -> MetadataPage[Subscription | LiveSubscription]:
        """Return a group's subscriptions, including those of instances that have disconnected.

        While Postgres is unavailable, the page has all subscriptions of the instances that are connected now.

        Raises:
            InvalidValueError: The cursor is not one of this list.
            ProblemError: 503: neither Postgres nor any broker answers.
        """
        after = 0
        if cursor is not None:
            text = decode_cursor(cursor, LISTING)
            found = parse_digits(text, _ID_MAX)
            if found is None:
                raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
            after = found
        try:
            async with self._metadata.transaction() as session:
                rows = await SubscriptionRepository(session).page(group=group, after_id=after, limit=limit)
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return await self._live(group)
        next_cursor = encode_cursor(LISTING, str(rows[-1].id)) if len(rows) == limit else None
        return MetadataPage(rows, next_cursor, is_metadata_available=True)

    async def _live(self, group: str) -> MetadataPage[Subscription | LiveSubscription]:
        asked = await self.connections(group)
        asked.require_any()
        sightings = sightings_of(asked.answers.values())
        verdicts = judge(sightings)
        now_ms = self._clock.now_ms()
        live = [LiveSubscription(seen, verdicts[seen.topic], now_ms) for seen in sightings]
        return MetadataPage(live, is_metadata_available=False)


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


def connected_clients(connections: Mapping[str, ConsumerConnection]) -> list[ConnectedClient]:
    """Return a group's instances by id, merged from all brokers; pure."""
    found: dict[str, tuple[ClientConnection, ConsumerConnection, list[str]]] = {}
    for broker, connection in connections.items():
        for client in connection.connections:
            _, _, brokers = found.setdefault(client.client_id, (client, connection, []))
            if broker not in brokers:
                brokers.append(broker)
    return [_connected_client(*found[client_id]) for client_id in sorted(found)]


def _connected_client(client: ClientConnection, group: ConsumerConnection, brokers: Sequence[str]) -> ConnectedClient:
    return ConnectedClient(
        client_id=client.client_id,
        address=client.client_addr,
        language=client.language,
        version=client.version,
        brokers=brokers,
        message_model=group.message_model,
        consume_type=group.consume_type,
        from_where=group.consume_from_where,
    )
