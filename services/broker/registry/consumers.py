"""Live consumers: the instances of each group, and what they subscribe to.

Each member has its own subscriptions. A pull that names no filter gets that of a member on its connection, so members
that disagree don't change each other's filters. The subscription of the group to a topic is the one with the greatest
version among its members; the group subscribes to a topic as long as one member does. RocketMQ keeps one table for each
group, which every heart-beat overwrites, so that members with different topics keep removing each other's subscription.

Concurrency: the loop's thread only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gantry.model.group import MessageModel, SubscriptionData
from services.broker.registry.clients import ClientChannel, ClientInfo, Memberships
from services.broker.registry.variants import Variants, signature_of

MemberKey = tuple[ClientChannel, str]
_NO_VERSION: Final = -(2**63)


@dataclass(slots=True)
class ConsumerGroup:
    """The live part of a consumer group. `consume_type` and `consume_from_where` come from the latest heart-beat.

    Attributes:
        variants: The announcements of the members, and whether they agree.
    """

    name: str
    consume_type: str
    consume_from_where: str
    members: dict[MemberKey, ClientInfo] = field(default_factory=dict)
    variants: Variants = field(default_factory=Variants)
    _announced: dict[MemberKey, Mapping[str, SubscriptionData]] = field(default_factory=dict)
    _client_ids: dict[ClientChannel, dict[str, None]] = field(default_factory=dict)
    _shared: dict[str, SubscriptionData] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _stale: set[str] = field(default_factory=set)

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """The subscriptions of the group, by topic."""
        if self._stale:
            for announced in self._announced.values():
                for topic in self._stale & announced.keys():
                    self._share(announced[topic])
            self._stale.clear()
        return self._shared

    @property
    def message_model(self) -> str:
        """The message model: BROADCASTING if no member consumes in clustering mode."""
        models = self.variants.models()
        return MessageModel.BROADCASTING if models == {MessageModel.BROADCASTING} else MessageModel.CLUSTERING

    def is_broadcasting(self, connection: Any) -> bool:
        """Return whether the members on a connection, or else those of the whole group, consume in broadcasting mode."""
        client_ids = self._client_ids.get(connection, ())
        models = {self.variants.model_of((connection, client_id)) for client_id in client_ids} - {None}
        return (models or {self.message_model}) == {MessageModel.BROADCASTING}

    def subscription_of(self, connection: Any, topic: str, version: int) -> SubscriptionData | None:
        """Return the subscription that a pull without a filter means; None if there is none.

        It is that of a member on the connection, if possible with the version that the pull names.

        Args:
            connection: Connection of the pull.
            topic: The topic.
            version: Version of the subscription that the consumer has. Its heart-beat may still be under way.
        """
        own: SubscriptionData | None = None
        for client_id in self._client_ids.get(connection, ()):
            found = self._announced.get((connection, client_id), {}).get(topic)
            if found is not None and (own is None or found.sub_version > own.sub_version):
                if found.sub_version == version:
                    return found
                own = found
        shared = self.subscriptions.get(topic)
        if own is None or (shared is not None and own.sub_version < version and _is_same_filter(own, shared)):
            return shared
        return own

    def announce(
        self, key: MemberKey, message_model: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> bool:
        """Record the subscriptions of a member. Return whether the group gained or lost a topic."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        before = self._announced.get(key, {})
        self._announced[key] = wanted
        self.variants.put(key, signature_of(message_model, wanted.values()), now_ms)
        return False if wanted == before else self._change(before, wanted)

    def add(self, client: ClientInfo) -> bool:
        """Add a member, or note its latest heart-beat. Return whether it is new."""
        is_new = client.key not in self.members
        self.members[client.key] = client
        self._client_ids.setdefault(client.connection, {})[client.client_id] = None
        return is_new

    def remove(self, key: MemberKey) -> bool:
        """Remove a member. Return whether there was one."""
        if self.members.pop(key, None) is None:
            return False
        connection, client_id = key
        client_ids = self._client_ids[connection]
        del client_ids[client_id]
        if not client_ids:
            del self._client_ids[connection]
        self.variants.remove(key)
        self._change(self._announced.pop(key, {}), {})
        return True

    def client_ids(self) -> list[str]:
        """Return the client ids exactly as heart-beats gave them, each once, in the order of joining.

        If an id occurred twice, the allocation would give it two shares of the queues, and nobody would consume the
        second.
        """
        return list(dict.fromkeys(client_id for _, client_id in self.members))

    def sharing_ids(self, connection: Any) -> list[str]:
        """Return the client ids among which the queues are allocated, for a member on this connection.

        A member in broadcasting mode has all queues, so it takes no share from those in clustering mode: nobody would
        consume this share for them.
        """
        if self.is_broadcasting(connection) or MessageModel.BROADCASTING not in self.variants.models():
            return self.client_ids()
        sharing = [key for key in self.members if self.variants.model_of(key) != MessageModel.BROADCASTING]
        return list(dict.fromkeys(client_id for _, client_id in sharing))

    def connections(self) -> list[ClientChannel]:
        """Return the connections of the members, each once."""
        return list(dict.fromkeys(connection for connection, _ in self.members))

    def find_member(self, client_id: str) -> ClientInfo | None:
        """Return the instance with this id that sent the latest heart-beat, or None."""
        found = [member for member in self.members.values() if member.client_id == client_id]
        return max(found, key=lambda member: member.seen_monotonic_ms, default=None)

    def has_connection(self, connection: Any) -> bool:
        """Return whether a member has this connection."""
        return connection in self._client_ids

    def _change(self, before: Mapping[str, SubscriptionData], after: Mapping[str, SubscriptionData]) -> bool:
        """Replace the subscriptions of one member. Return whether the group gained or lost a topic."""
        has_changed = False
        for topic, old in before.items():
            if topic not in after:
                self._counts[topic] -= 1
                if not self._counts[topic]:
                    del self._counts[topic]
                    del self._shared[topic]
                    self._stale.discard(topic)
                    has_changed = True
                    continue
            if self._shared[topic] == old and after.get(topic) != old:
                # The newest one of the others is searched when somebody asks: thousands of members may leave together.
                self._stale.add(topic)
                self._shared[topic] = replace(old, sub_version=_NO_VERSION)
        for topic, new in after.items():
            if topic not in before:
                self._counts[topic] += 1
                has_changed |= self._counts[topic] == 1
            self._share(new)
        return has_changed

    def _share(self, subscription: SubscriptionData) -> None:
        known = self._shared.get(subscription.topic)
        if known is None or subscription.sub_version > known.sub_version:
            self._shared[subscription.topic] = subscription


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
        """Record a heart-beat. If `subscriptions` is None, the member keeps its subscriptions.

        Returns:
            Whether the other members must be notified: a member is new, or a topic was added or removed.
        """
        info = self._groups.get(group)
        if info is None:
            info = self._groups[group] = ConsumerGroup(group, consume_type, consume_from_where)
        info.consume_type = consume_type
        info.consume_from_where = consume_from_where
        is_new = info.add(client)
        self._memberships.add(client.connection, group, client.client_id)
        assert self._memberships.count >= len(self._groups), "every group in the table has a member"
        if subscriptions is None:
            return is_new
        has_changed = info.announce(client.key, message_model, subscriptions, client.seen_at_ms)
        return is_new or has_changed

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> bool:
        """Remove one instance from a group. Return whether it was a member."""
        info = self._groups.get(group)
        if info is None or not info.remove((connection, client_id)):
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

    def has_connection_in(self, group: str, connection: Any) -> bool:
        """Return whether an instance of the connection is a member of a group."""
        info = self._groups.get(group)
        return info is not None and info.has_connection(connection)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have subscribed to a topic."""
        return [group for group, info in self._groups.items() if topic in info.subscriptions]

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups that have members."""
        return list(self._groups.values())

    def has_connection(self, connection: ClientChannel) -> bool:
        """Return whether an instance of the connection is still a member of a group."""
        return connection in self._memberships


def _is_same_filter(one: SubscriptionData, other: SubscriptionData) -> bool:
    return replace(one, sub_version=_NO_VERSION) == replace(other, sub_version=_NO_VERSION)
