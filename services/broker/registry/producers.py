"""Live producers: the instances of each producer group.

Concurrency: the loop's thread only.
"""

from collections.abc import Mapping

from services.broker.registry.clients import ClientChannel, ClientInfo, Memberships


class ProducerTable:
    """Producer group → its instances."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[ClientChannel, str], ClientInfo]] = {}
        self._memberships = Memberships()
        # Client id → its connections → number of its groups. The connection of the latest heart-beat is the last one.
        self._connections: dict[str, dict[ClientChannel, int]] = {}

    @property
    def members_count(self) -> int:
        """Number of instances, each counted once per group."""
        return self._memberships.count

    def register(self, group: str, client: ClientInfo) -> None:
        """Record a heart-beat."""
        members = self._groups.setdefault(group, {})
        connections = self._connections.setdefault(client.client_id, {})
        groups_count = connections.pop(client.connection, 0)
        connections[client.connection] = groups_count + (client.key not in members)
        members[client.key] = client
        self._memberships.add(client.connection, group, client.client_id)
        assert self._memberships.count >= len(self._groups), "every group in the table has a member"

    def unregister(self, group: str, connection: ClientChannel, client_id: str) -> None:
        """Remove one instance from a group, if it is a member."""
        members = self._groups.get(group)
        if members is None or members.pop((connection, client_id), None) is None:
            return
        self._memberships.remove(connection, group, client_id)
        self._leave(client_id, connection)
        if not members:
            del self._groups[group]
        assert self._memberships.count >= len(self._groups), "every group in the table has a member"

    def drop_connection(self, connection: ClientChannel) -> None:
        """Remove all instances of a closed connection."""
        for group, client_id in self._memberships.of(connection):
            self.unregister(group, connection, client_id)
        assert connection not in self._memberships, "a closed connection owns no member"

    def expire(self, monotonic_ms: int, timeout_ms: int) -> set[ClientChannel]:
        """Remove the instances that have been silent for longer than the time-out. Return their connections."""
        connections: set[ClientChannel] = set()
        for group, members in list(self._groups.items()):
            for client in list(members.values()):
                if monotonic_ms - client.seen_monotonic_ms > timeout_ms:
                    self.unregister(group, client.connection, client.client_id)
                    connections.add(client.connection)
        return connections

    def find_connection(self, client_id: str) -> ClientChannel | None:
        """Return the connection on which a producer with this id sent its latest heart-beat, or None."""
        connections = self._connections.get(client_id)
        return next(reversed(connections)) if connections else None

    def ids_on(self, connection: ClientChannel) -> dict[str | None, set[str]]:
        """Return the client ids of the instances on a connection by group, and those of all groups under None."""
        everyone: set[str] = set()
        ids: dict[str | None, set[str]] = {None: everyone}
        for group, client_id in self._memberships.of(connection):
            ids.setdefault(group, set()).add(client_id)
            everyone.add(client_id)
        return ids

    def members(self, group: str) -> list[ClientInfo]:
        """Return the instances of a group; an empty list if there is no such group."""
        return list(self._groups.get(group, {}).values())

    def has_member(self, group: str, key: tuple[ClientChannel, str]) -> bool:
        """Return whether an instance, given by connection and id, is a member of a group."""
        return key in self._groups.get(group, {})

    def has_group(self, group: str, connection: ClientChannel) -> bool:
        """Return whether an instance on the connection is a member of the group."""
        return any(name == group for name, _ in self._memberships.of(connection))

    def groups(self) -> Mapping[str, list[ClientInfo]]:
        """Return every group with its instances."""
        return {group: list(members.values()) for group, members in self._groups.items()}

    def has_connection(self, connection: ClientChannel) -> bool:
        """Return whether an instance of the connection is still a member of a group."""
        return connection in self._memberships

    def _leave(self, client_id: str, connection: ClientChannel) -> None:
        connections = self._connections[client_id]
        connections[connection] -= 1
        assert connections[connection] >= 0, f"{client_id} has left more groups than it joined"
        if not connections[connection]:
            del connections[connection]
        if not connections:
            del self._connections[client_id]
