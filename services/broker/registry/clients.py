"""One client instance, as heart-beats describe it."""

from dataclasses import dataclass
from typing import Protocol

from gantry.remoting.codes import LanguageCode
from gantry.remoting.command import RemotingCommand


class ClientChannel(Protocol):
    """A client's connection; told apart by identity."""

    def send_one_way(self, command: RemotingCommand) -> None:
        """Send without wanting an answer."""
        ...

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request of ours and return its answer."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection."""
        ...


@dataclass(slots=True)
class ClientInfo:
    """An instance of a group.

    A group's members are keyed by (connection, client id): a gateway carries many instances over one connection, and
    two processes may, by mistake, call themselves the same.
    """

    connection: ClientChannel
    client_id: str
    language: LanguageCode
    version: int
    address: str
    seen_at_ms: int
    """Wall time of the last heart-beat, for people."""
    seen_monotonic_ms: int
    """The same on the monotonic clock, for expiry."""

    @property
    def key(self) -> tuple[ClientChannel, str]:
        """What tells members of one group apart."""
        return (self.connection, self.client_id)


class Memberships:
    """The groups that a connection's instances are members of.

    To lose one of 10,000 connections costs the work for its own members, not a look at all groups.

    Attributes:
        count: How many members there are.
    """

    __slots__ = ("_table", "count")

    def __init__(self) -> None:
        self.count = 0
        self._table: dict[ClientChannel, dict[tuple[str, str], None]] = {}

    def __contains__(self, connection: ClientChannel) -> bool:
        return connection in self._table

    def add(self, connection: ClientChannel, group: str, client_id: str) -> None:
        """Note a member; one that is known stays."""
        members = self._table.setdefault(connection, {})
        if (group, client_id) not in members:
            members[group, client_id] = None
            self.count += 1

    def remove(self, connection: ClientChannel, group: str, client_id: str) -> None:
        """Forget a member that was noted."""
        members = self._table[connection]
        del members[group, client_id]
        self.count -= 1
        if not members:
            del self._table[connection]

    def of(self, connection: ClientChannel) -> list[tuple[str, str]]:
        """Return group and client id of a connection's members."""
        return list(self._table.get(connection, ()))
