"""Live consumers: the instances of each group and the group's subscriptions.

A subscription belongs to the group, not to an instance. A heart-beat replaces a subscription only with a greater
version, and it removes the subscriptions to topics that it does not name. So two instances of one group with different
topics keep removing each other's subscription. RocketMQ does the same, and its clients rely on this rule.

Concurrency: the loop's thread only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gantry.model.group import SubscriptionData
from services.broker.registry.clients import ClientChannel, ClientInfo, Memberships


@dataclass(slots=True)
class ConsumerGroup:
    """The live part of a consumer group. `consume_type` and the two fields after it come from the latest heart-beat."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[tuple[ClientChannel, str], ClientInfo] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """Return the client ids exactly as heart-beats gave them, each once, in the order of joining.

        If an id occurred twice, the allocation would give it two shares of the queues, and nobody would consume the
        second.
        """
        return list(dict.fromkeys(client_id for _, client_id in self.members))

    def connections(self) -> list[ClientChannel]:
        """Return the connections of the members, each once."""
        return list(dict.fromkeys(connection for connection, _ in self.members))

    def find_member(self, client_id: str) -> ClientInfo | None:
        """Return the instance with this id that sent the latest heart-beat, or None."""
        found = [member for member in self.members.values() if member.client_id == client_id]
        return max(found, key=lambda member: member.seen_monotonic_ms, default=None)


class ConsumerTable:
    """The live part of each consumer group. A group without members is not in the table."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._memberships = Memberships()

    @property
    def members_count(self) -> int:
        """Number of instances, each counted once per group."""
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
        """Record a heart-beat. If `subscriptions` is None, the group keeps its subscriptions.

        Returns:
            Whether the other members must be notified: a member is new, or a topic was added or removed.
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
        assert self._memberships.count >= len(self._groups), "every group in the table has a member"
        has_changed = subscriptions is not None and _replace_subscriptions(info, subscriptions)
        return is_new or has_changed

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> bool:
        """Remove one instance from a group. Return whether it was a member."""
        info = self._groups.get(group)
        if info is None or info.members.pop((connection, client_id), None) is None:
            return False
        self._memberships.remove(connection, group, client_id)
        if not info.members:
            del self._groups[group]
        assert self._memberships.count >= len(self._groups), "every group in the table has a member"
        return True

    def drop_connection(self, connection: ClientChannel) -> list[str]:
        """Remove all instances of a closed connection. Return the groups that lost a member."""
        members = self._memberships.of(connection)
        for group, client_id in members:
            self.unregister(group, connection, client_id)
        assert connection not in self._memberships, "a closed connection owns no member"
        return list(dict.fromkeys(group for group, _ in members))

    def expire(self, monotonic_ms: int, timeout_ms: int) -> tuple[list[str], set[ClientChannel]]:
        """Remove the instances that have been silent for longer than the time-out.

        Returns:
            The groups that lost a member, and the connections of the removed instances.
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
        """Return the live part of a group, or None if it has no members."""
        return self._groups.get(group)

    def has_member(self, group: str, key: tuple[ClientChannel, str]) -> bool:
        """Return whether an instance, given by connection and id, is a member of a group."""
        info = self._groups.get(group)
        return info is not None and key in info.members

    def has_connection_in(self, group: str, connection: object) -> bool:
        """Return whether an instance of the connection is a member of a group."""
        info = self._groups.get(group)
        return info is not None and any(member is connection for member, _ in info.members)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have subscribed to a topic."""
        return [group for group, info in self._groups.items() if topic in info.subscriptions]

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups that have members."""
        return list(self._groups.values())

    def has_connection(self, connection: ClientChannel) -> bool:
        """Return whether an instance of the connection is still a member of a group."""
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
