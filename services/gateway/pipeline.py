"""Pipeline: requests that came before the answer to the one before them was given.

They wait without a task, and nobody has asked yet whose key they carry. So the bytes of their bodies count with the
address of the caller.
"""

from collections import deque

from services.gateway.bodies import Bodies, Body
from services.gateway.errors import ProblemError
from services.gateway.exchange import Exchange
from services.gateway.requesthead import RefusedError


class Pipeline(deque[Exchange]):
    """The requests of one connection that wait, in the order in which they came.

    Concurrency: the event loop's thread.
    """

    __slots__ = ("_bodies", "_bytes")

    def __init__(self, bodies: Bodies) -> None:
        super().__init__()
        self._bodies = bodies
        self._bytes: Body | None = None

    def take(self) -> Exchange:
        """Return the next one, whose turn has come."""
        exchange = self.popleft()
        if not self:
            self.clear()
        return exchange

    def grow(self, count: int, address: str) -> None:
        """Count bytes of a body. Raises RefusedError (429, 503): there are too many."""
        if self._bytes is None:
            self._bytes = self._bodies.of_address(address)
        try:
            self._bytes.grow(count)
        except ProblemError as problem:
            raise RefusedError(problem, "body_bytes") from None

    def clear(self) -> None:
        """Forget them."""
        super().clear()
        if self._bytes is not None:
            self._bytes.close()
            self._bytes = None
