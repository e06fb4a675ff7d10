"""Live producers: who sends in the name of which group.

Concurrency: the loop's thread only.
"""

from collections.abc import Mapping

from services.broker.registry.clients import ClientChannel, ClientInfo


class ProducerTable:
    """Producer group → its instances."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[ClientChannel, str], ClientInfo]] = {}

    def register(self, group: str, client: ClientInfo) -> None:
        """Note a heart-beat."""
        self._groups.setdefault(group, {})[client.key] = client

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> None:
        """Remove one instance from a group, if it is there."""
        members = self._groups.get(group)
        if members is not None:
            members.pop((connection, client_id), None)
            if not members:
                del self._groups[group]

    def drop_connection(self, connection: ClientChannel) -> None:
        """Remove all instances of a connection that is gone."""
        for group, members in list(self._groups.items()):
            for _, client_id in [key for key in members if key[0] is connection]:
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

    def groups(self) -> Mapping[str, list[ClientInfo]]:
        """Return every group with its instances."""
        return {group: list(members.values()) for group, members in self._groups.items()}

    def has_connection(self, connection: ClientChannel) -> bool:
        """Say whether an instance of the connection is left."""
        return any(key[0] is connection for members in self._groups.values() for key in members)
