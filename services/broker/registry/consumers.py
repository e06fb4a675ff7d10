"""Live consumers: who reads in the name of which group, and what the group has subscribed to.

A subscription belongs to the group, not to an instance: a heart-beat replaces it only with a greater version, and
topics that the latest heart-beat does not name are removed. So two instances of one group with different topics keep
removing each other's subscription, as they do in RocketMQ, whose clients count on the rule.

Concurrency: the loop's thread only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gantry.model.group import SubscriptionData
from services.broker.registry.clients import ClientChannel, ClientInfo, Memberships


@dataclass(slots=True)
class ConsumerGroup:
    """The live side of a consumer group. `consume_type` and the others are as the latest heart-beat said."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[tuple[ClientChannel, str], ClientInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """Return the ids byte for byte as heart-beats gave them, each once, in the order of joining.

        An id that stood twice would be given its share of the queues twice, and the second share nobody would read.
        """
        return list(dict.fromkeys(client_id for _, client_id in self.members))

    def connections(self) -> list[ClientChannel]:
        """Return the connections of the members, each once."""
        return list(dict.fromkeys(connection for connection, _ in self.members))

    def find_member(self, client_id: str) -> ClientInfo | None:
        """Return the instance with this id that was seen last, or None."""
        found = [member for member in self.members.values() if member.client_id == client_id]
        return max(found, key=lambda member: member.seen_monotonic_ms, default=None)


class ConsumerTable:
    """Consumer group → its live side; a group without a member has none."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._memberships = Memberships()

    @property
    def members_count(self) -> int:
        """How many instances there are, each counted once a group."""
        return self._memberships.count

    def register(
        self,
        group: str,
        client: ClientInfo,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[SubscriptionData] | None,
    ) -> bool:
        """Note a heart-beat; `subscriptions` None leaves them as they are.

        Returns:
            Whether the others of the group have to hear of it: a new member, or a topic more or less.
        """
        info = self._groups.get(group)
        if info is None:
            info = self._groups[group] = ConsumerGroup(group, consume_type, message_model, consume_from_where)
        info.consume_type = consume_type
        info.message_model = message_model
        info.consume_from_where = consume_from_where
        is_new = client.key not in info.members
        info.members[client.key] = client
        self._memberships.add(client.connection, group, client.client_id)
        has_changed = subscriptions is not None and _replace_subscriptions(info, subscriptions)
        return is_new or has_changed

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> bool:
        """Remove one instance from a group; return whether it was there."""
        info = self._groups.get(group)
        if info is None or info.members.pop((connection, client_id), None) is None:
            return False
        self._memberships.remove(connection, group, client_id)
        if not info.members:
            del self._groups[group]
        return True

    def drop_connection(self, connection: ClientChannel) -> list[str]:
        """Remove all instances of a connection that is gone; return the groups that lost one."""
        members = self._memberships.of(connection)
        for group, client_id in members:
            self.unregister(group, connection, client_id)
        return list(dict.fromkeys(group for group, _ in members))

    def expire(self, monotonic_ms: int, timeout_ms: int) -> tuple[list[str], set[ClientChannel]]:
        """Remove the instances that have been silent for longer than the time-out.

        Returns:
            The groups that lost one, and the connections of those removed.
        """
        groups: dict[str, None] = {}
        connections: set[ClientChannel] = set()
        for group, info in list(self._groups.items()):
            for client in list(info.members.values()):
                if monotonic_ms - client.seen_monotonic_ms > timeout_ms:
                    self.unregister(group, client.connection, client.client_id)
                    groups[group] = None
                    connections.add(client.connection)
        return list(groups), connections

    def find(self, group: str) -> ConsumerGroup | None:
        """Return the live side of a group, or None if nobody is there."""
        return self._groups.get(group)

    def has_member(self, group: str, key: tuple[ClientChannel, str]) -> bool:
        """Say whether an instance, by connection and id, is in a group."""
        info = self._groups.get(group)
        return info is not None and key in info.members

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have subscribed to a topic."""
        return [group for group, info in self._groups.items() if topic in info.subscriptions]

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups somebody is in."""
        return list(self._groups.values())

    def has_connection(self, connection: ClientChannel) -> bool:
        """Say whether an instance of the connection is left."""
        return connection in self._memberships


def _replace_subscriptions(info: ConsumerGroup, subscriptions: Iterable[SubscriptionData]) -> bool:
    has_changed = False
    named = set()
    for subscription in subscriptions:
        named.add(subscription.topic)
        known = info.subscriptions.get(subscription.topic)
        if known is None:
            has_changed = True
        if known is None or subscription.sub_version > known.sub_version:
            info.subscriptions[subscription.topic] = subscription
    for topic in [topic for topic in info.subscriptions if topic not in named]:
        del info.subscriptions[topic]
        has_changed = True
    return has_changed
