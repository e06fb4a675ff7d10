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
