"""Pipelined requests: requests that arrived before the previous request was answered.

They wait without a task, and their keys are not checked yet. So the bytes of their bodies count against the quota of
the caller's address.
"""

from collections import deque

from services.gateway.bodies import Bodies, Body
from services.gateway.errors import ProblemError
from services.gateway.exchange import Exchange
from services.gateway.requesthead import RefusedError


class Pipeline(deque[Exchange]):
    """The waiting requests of one connection, in the order of their arrival.

    Concurrency: the event loop's thread.
    """

    __slots__ = ("_bodies", "_bytes")

    def __init__(self, bodies: Bodies) -> None:
        super().__init__()
        self._bodies = bodies
        self._bytes: Body | None = None

    def take(self) -> Exchange:
        """Remove and return the first request."""
        exchange = self.popleft()
        if not self:
            self.clear()
        return exchange

    def grow(self, count: int, address: str) -> None:
        """Count bytes of a body. Raises RefusedError (429, 503) if a limit is exceeded."""
        if self._bytes is None:
            self._bytes = self._bodies.of_address(address)
        try:
            self._bytes.grow(count)
        except ProblemError as problem:
            raise RefusedError(problem, "body_bytes") from None

    def clear(self) -> None:
        """Drop all requests, and release the bytes of their bodies."""
        super().clear()
        if self._bytes is not None:
            self._bytes.close()
            self._bytes = None
