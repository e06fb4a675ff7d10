"""Live producers: who sends in the name of which group.

Concurrency: the loop's thread only.
"""

from collections.abc import Mapping

from services.broker.registry.clients import ClientChannel, ClientInfo, Memberships


class ProducerTable:
    """Producer group → its instances."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[ClientChannel, str], ClientInfo]] = {}
        self._memberships = Memberships()

    @property
    def members_count(self) -> int:
        """How many instances there are, each counted once a group."""
        return self._memberships.count

    def register(self, group: str, client: ClientInfo) -> None:
        """Note a heart-beat."""
        self._groups.setdefault(group, {})[client.key] = client
        self._memberships.add(client.connection, group, client.client_id)

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> None:
        """Remove one instance from a group, if it is there."""
        members = self._groups.get(group)
        if members is None or members.pop((connection, client_id), None) is None:
            return
        self._memberships.remove(connection, group, client_id)
        if not members:
            del self._groups[group]

    def drop_connection(self, connection: ClientChannel) -> None:
        """Remove all instances of a connection that is gone."""
        for group, client_id in self._memberships.of(connection):
            self.unregister(group, connection, client_id)

    def expire(self, monotonic_ms: int, timeout_ms: int) -> set[ClientChannel]:
        """Remove the instances that have been silent for longer than the time-out; return their connections."""
        connections: set[ClientChannel] = set()
        for group, members in list(self._groups.items()):
            for client in list(members.values()):
                if monotonic_ms - client.seen_monotonic_ms > timeout_ms:
                    self.unregister(group, client.connection, client.client_id)
                    connections.add(client.connection)
        return connections

    def members(self, group: str) -> list[ClientInfo]:
        """Return a group's instances, empty if there is no such group."""
        return list(self._groups.get(group, {}).values())

    def has_member(self, group: str, key: tuple[ClientChannel, str]) -> bool:
        """Say whether an instance, by connection and id, is in a group."""
        return key in self._groups.get(group, {})

    def groups(self) -> Mapping[str, list[ClientInfo]]:
        """Return every group with its instances."""
        return {group: list(members.values()) for group, members in self._groups.items()}

    def has_connection(self, connection: ClientChannel) -> bool:
        """Say whether an instance of the connection is left."""
        return connection in self._memberships
