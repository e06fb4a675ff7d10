"""The name servers: the client starts with a random one, keeps it until it fails, and then takes the next."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from gantry.client.errors import BrokerError, ClientError, NoAnswerError
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand

# Codes of a name server that stops or is not ready yet. The answer of another name server counts more.
_TRANSIENT_CODES = (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)

Call = Callable[[str, int, Any, bytes | None], Awaitable[RemotingCommand]]
"""Sends a request (address, code, header, body) and returns its SUCCESS answer. Raises BrokerError, NoAnswerError."""


class NameServers:
    """The list of name servers, and the one in use.

    Concurrency: the event loop's thread.
    """

    def __init__(self, addresses: Sequence[str], call: Call, draw: Callable[[int], int]) -> None:
        """Start at a random name server, so that a thousand clients do not all ask the first one."""
        assert addresses, "settings refuse an empty list"
        self.addresses = tuple(addresses)
        self._call = call
        self._current = draw(len(self.addresses))

    @property
    def current(self) -> str:
        """Address of the name server in use."""
        return self.addresses[self._current]

    async def ask(self, code: int, header: Any = None, *, body: bytes | None = None) -> RemotingCommand:
        """Ask the name servers in turn until one answers SUCCESS, and stay with that one.

        If a name server refuses, the next one is asked, because the first may have just started and not know the answer
        yet.

        Raises:
            BrokerError: At least one name server refused, and none answered SUCCESS.
            NoAnswerError: No name server answered.
        """
        refusal: BrokerError | None = None
        silence: NoAnswerError | None = None
        for address in self._in_turn():
            try:
                response = await self._call(address, code, header, body)
            except BrokerError as error:
                if refusal is None or refusal.code in _TRANSIENT_CODES:
                    refusal = error
            except NoAnswerError as error:
                silence = error
            else:
                self._current = self.addresses.index(address)
                return response
        if refusal is not None:
            raise refusal
        assert silence is not None, "there is at least one name server"
        raise silence

    async def send_to_all(self, code: int, header: Any = None, *, body: bytes | None = None) -> None:
        """Send a request to all name servers, because they do not forward it to each other.

        Raises:
            BrokerError, NoAnswerError: The first failure, after all name servers have been tried.
        """
        failure: ClientError | None = None
        for address in self.addresses:
            try:
                await self._call(address, code, header, body)
            except (BrokerError, NoAnswerError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _in_turn(self) -> Iterator[str]:
        start = self._current
        for step in range(len(self.addresses)):
            yield self.addresses[(start + step) % len(self.addresses)]
