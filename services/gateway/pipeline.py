"""Pipeline: requests that came before the answer to the one before them was given.

They wait without a task, and nobody has asked yet whose key they carry. So the bytes of their bodies count with the
address of the caller.
"""

from collections import deque

from services.gateway.bodies import Bodies, Body
from services.gateway.errors import ProblemError
from services.gateway.exchange import Exchange
from services.gateway.requesthead import RefusedError


class Pipeline:
    """The requests of one connection that wait, in the order in which they came.

    Concurrency: the event loop's thread.
    """

    __slots__ = ("_bodies", "_bytes", "_waiting")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes: Body | None = None
        self._waiting: deque[Exchange] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, exchange: Exchange) -> None:
        """Have a request wait."""
        self._waiting.append(exchange)

    def take(self) -> Exchange:
        """Return the next one, whose turn has come."""
        exchange = self._waiting.popleft()
        if not self._waiting:
            self.clear()
        return exchange

    def count(self, count: int, address: str) -> None:
        """Count bytes of a body. Raises RefusedError (429, 503): there are too many."""
        if self._bytes is None:
            self._bytes = self._bodies.of_address(address)
        try:
            self._bytes.grow(count)
        except ProblemError as problem:
            raise RefusedError(problem, "body_bytes") from None

    def clear(self) -> None:
        """Forget them."""
        self._waiting.clear()
        if self._bytes is not None:
            self._bytes.close()
            self._bytes = None
