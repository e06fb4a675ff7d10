"""One client instance, as its heart-beats describe it."""

from dataclasses import dataclass
from typing import Protocol

from gantry.remoting.codes import LanguageCode
from gantry.remoting.command import RemotingCommand


class ClientChannel(Protocol):
    """The connection of a client. Connections are compared by identity."""

    def send_one_way(self, command: RemotingCommand) -> None:
        """Send a command that expects no reply."""
        ...

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request of the broker and return the client's reply."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection."""
        ...


@dataclass(slots=True)
class ClientInfo:
    """An instance of a group.

    The key of a group's member is (connection, client id). A gateway carries many instances over one connection, and
    two processes may use the same client id by mistake.
    """

    connection: ClientChannel
    client_id: str
    language: LanguageCode
    version: int
    address: str
    seen_at_ms: int
    """Wall-clock time of the last heart-beat, for people."""
    seen_monotonic_ms: int
    """Monotonic time of the last heart-beat, for expiry."""

    @property
    def key(self) -> tuple[ClientChannel, str]:
        """The key that identifies a member of a group."""
        return (self.connection, self.client_id)


class Memberships:
    """The memberships of each connection: the groups and client ids of its instances.

    If one of 10,000 connections closes, the broker only handles the members of this connection and does not search all
    groups.

    Attributes:
        count: Number of members.
    """

    __slots__ = ("_table", "count")

    def __init__(self) -> None:
        self.count = 0
        self._table: dict[ClientChannel, dict[tuple[str, str], None]] = {}

    def __contains__(self, connection: ClientChannel) -> bool:
        return connection in self._table

    def add(self, connection: ClientChannel, group: str, client_id: str) -> None:
        """Add a member, unless it is known."""
        members = self._table.setdefault(connection, {})
        if (group, client_id) not in members:
            members[group, client_id] = None
            self.count += 1
        assert self.count >= len(self._table), "every connection in the table has a member"

    def remove(self, connection: ClientChannel, group: str, client_id: str) -> None:
        """Remove a known member."""
        members = self._table.get(connection)
        assert members is not None, f"no member of group {group} has the connection of {client_id}"
        assert (group, client_id) in members, f"{client_id} is not a member of group {group}"
        del members[group, client_id]
        self.count -= 1
        if not members:
            del self._table[connection]
        assert self.count >= len(self._table), "every connection in the table has a member"

    def of(self, connection: ClientChannel) -> list[tuple[str, str]]:
        """Return group and client id of each member of a connection."""
        return list(self._table.get(connection, ()))
