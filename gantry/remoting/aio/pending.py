"""Our requests that wait for a response of the peer, by opaque."""

import asyncio

from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectionLostError, RequestTimeoutError

_NEVER_MS = 1 << 62


class PendingRequests:
    """The table opaque → future of one channel.

    A cancelled caller leaves its cancelled future in the table. The response or the sweep removes it.
    """

    __slots__ = ("_earliest_ms", "_table", "_unsent")

    def __init__(self) -> None:
        self._table: dict[int, tuple[asyncio.Future[RemotingCommand], int]] = {}
        # The earliest deadline in the table, or a time before it. Most sweeps need not iterate over the table.
        self._earliest_ms = _NEVER_MS
        # Opaques of the requests whose frames the transport does not have yet.
        self._unsent: list[int] = []

    def __len__(self) -> int:
        return len(self._table)

    def add(self, opaque: int, answer: asyncio.Future[RemotingCommand], deadline_ms: int) -> None:
        """Register a request that is about to be written."""
        self._table[opaque] = (answer, deadline_ms)
        self._unsent.append(opaque)
        self._earliest_ms = min(self._earliest_ms, deadline_ms)

    def written(self) -> None:
        """Record that the transport has all frames so far. From now on they may reach the peer."""
        self._unsent.clear()

    def resolve(self, response: RemotingCommand) -> bool:
        """Set the result of the request that a response answers. Return whether there was such a request."""
        entry = self._table.pop(response.opaque, None)
        if entry is None:
            return False
        if not entry[0].done():
            entry[0].set_result(response)
        return True

    def expire(self, now_ms: int, address: str) -> int:
        """Fail the requests whose deadline has passed and return their number."""
        if now_ms < self._earliest_ms:
            return 0
        due = [opaque for opaque, (_, deadline_ms) in self._table.items() if deadline_ms <= now_ms]
        unsent = set(self._unsent)
        expired = 0
        for opaque in due:
            future, _ = self._table.pop(opaque)
            if not future.done():
                expired += 1
                future.set_exception(RequestTimeoutError(address, "no answer in time", sent=opaque not in unsent))
        self._earliest_ms = min((deadline_ms for _, deadline_ms in self._table.values()), default=_NEVER_MS)
        return expired

    def fail_all(self, address: str, reason: str) -> None:
        """Fail all requests, because the connection is closed."""
        unsent = set(self._unsent)
        table, self._table = self._table, {}
        self._earliest_ms = _NEVER_MS
        self._unsent.clear()
        for opaque, (future, _) in table.items():
            if not future.done():
                future.set_exception(ConnectionLostError(address, reason, sent=opaque not in unsent))
