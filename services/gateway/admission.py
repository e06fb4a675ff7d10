"""Admission of connections: which ones the gateway accepts, and which it closes to make room.

There are two limits: on all connections, and on those of one address. A connection over a limit is accepted if an idle
one can be closed for it: first the oldest that never sent a request, then the one that has been idle for the longest
time. If all are busy, the new connection is answered 503. So idle sockets, however many a stranger opens, keep no other
caller out.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from services.gateway.asgi.answer import Headers, last_answer
from services.gateway.asgi.cors import Cors
from services.gateway.auth.keyring import KeyRing
from services.gateway.errors import NOT_STORED, OVERLOADED, ProblemError
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.readturns import ReadTurns
from services.gateway.requestids import RequestIds
from services.gateway.requestturns import RequestTurns

# A scan of ten thousand connections takes some milliseconds, so one list of spare connections is used for a second.
# This also gives every new connection a second in which its request can come.
SCAN_INTERVAL_S: Final = 1.0
# Rejected connections that wait for their answer. Beyond this number they are closed without an answer.
TURNED_AWAY_MAX: Final = 128


class IdleConnection(NamedTuple):
    """An idle connection: whether it ever sent a request, and the time since which it is idle.

    The order of these tuples is the order in which connections are closed to make room.
    """

    had_request: bool
    since: float


class AdmittedConnection(Protocol):
    """An open connection, as far as admission needs it."""

    address: str

    def spare(self) -> IdleConnection | None:
        """Return the idle state, or None while the connection serves a request."""
        ...

    def make_room(self) -> None:
        """Close the connection."""
        ...


class Admission:
    """Counts connections, decides about new ones, and holds the state that all connections share.

    Attributes:
        metrics: Counters of the gateway.
        cors: Origins whose pages may read errors; None if there are none.
        bodies: Bytes of requests in memory.
        requests: Starts requests, in turn if many come at once.
        reads: Lets connections with much data be read in turn.
        request_ids: Source of ids for answers that the application does not give.
        is_draining: Whether the gateway is about to stop, so that every answer ends its connection.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self, limits: Limits, metrics: GatewayMetrics, keys: KeyRing, cors_origins: Sequence[str] = ()
    ) -> None:
        self.metrics = metrics
        self.cors = Cors(cors_origins) if cors_origins else None
        self.request_ids = RequestIds()
        self.is_draining = False
        self.bodies = limits.bodies
        self.requests = RequestTurns(limits.turns, keys)
        self.reads = ReadTurns()
        self._quota = limits.connections
        # In the order in which they were opened.
        self._open: dict[AdmittedConnection, None] = {}
        self._rejected: set[AdmittedConnection] = set()
        self._scanned_at: float | None = None
        self._spares: deque[tuple[IdleConnection, AdmittedConnection]] = deque()
        self._spares_of: dict[str, deque[tuple[IdleConnection, AdmittedConnection]]] = {}

    def admit(self, connection: AdmittedConnection, now: float) -> ProblemError | None:
        """Count a new connection.

        Returns:
            None if it is accepted, else the problem to answer.
        """
        address, quota = connection.address, self._quota
        problem = None
        if quota.held_by(address) >= quota.each_max and not self._evict(now, address):
            self.metrics.refused_connection("address")
            quota.refused_each += 1
            problem = f"connections: this address has {quota.each_max} open already, which is the limit"
        elif quota.used >= quota.total_max and not self._evict(now, None):
            self.metrics.refused_connection("connections")
            quota.refused_total += 1
            problem = f"connections: {quota.total_max} are open already, which is the limit"
        if problem is not None:
            self._rejected.add(connection)
            # The request is not even read, so a send is certainly not stored.
            return ProblemError(OVERLOADED, problem, outcome=NOT_STORED)
        self._open[connection] = None
        quota.take_back(address)
        return None

    def refusal(self, problem: ProblemError, headers: Sequence[tuple[bytes, bytes]], more: Headers) -> bytes:
        """Return the bytes of a connection's last answer, for a head of which these headers were received.

        Args:
            problem: Problem to answer.
            headers: Received headers, with lower-case names.
            more: Headers of every answer.
        """
        readable = [] if self.cors is None else self.cors.early_headers(headers)
        return last_answer(problem, self.request_ids.of(headers), [*more, *readable])

    @property
    def is_crowded(self) -> bool:
        """Whether so many rejected connections wait for their answer that a further one gets none."""
        return len(self._rejected) > TURNED_AWAY_MAX

    def release(self, connection: AdmittedConnection) -> None:
        """Remove a connection that ends; a second call changes nothing."""
        self._rejected.discard(connection)
        if connection not in self._open:
            return
        del self._open[connection]
        self._quota.give(connection.address)

    def replace(self, before: AdmittedConnection, after: AdmittedConnection) -> None:
        """Count `after` in the place of `before`, which is the same connection with another protocol."""
        assert before.address == after.address
        if before in self._open:
            del self._open[before]
            self._open[after] = None

    def forget_spares(self, now: float) -> None:
        """Drop an outdated list of spare connections, so that it keeps no closed connections in memory."""
        if self._scanned_at is not None and now - self._scanned_at >= SCAN_INTERVAL_S:
            self._scanned_at = None
            self._spares = deque()
            self._spares_of = {}

    def _evict(self, now: float, address: str | None) -> bool:
        if self._scanned_at is None or now - self._scanned_at >= SCAN_INTERVAL_S:
            self._scanned_at = now
            self._scan()
        spares = self._spares if address is None else self._spares_of.get(address, deque())
        while spares:
            seen, connection = spares.popleft()
            # It may have received a request, or been closed, since the scan.
            if connection in self._open and connection.spare() == seen:
                self.metrics.refused_connection("made_room")
                self.release(connection)
                connection.make_room()
                return True
        return False

    def _scan(self) -> None:
        found = sorted(_spares(self._open), key=lambda entry: entry[0])
        self._spares = deque(found)
        self._spares_of = {}
        for entry in found:
            self._spares_of.setdefault(entry[1].address, deque()).append(entry)


def _spares(connections: Iterable[AdmittedConnection]) -> Iterable[tuple[IdleConnection, AdmittedConnection]]:
    for connection in connections:
        spare = connection.spare()
        if spare is not None:
            yield spare, connection
