"""Requests take turns if many come at once: first one of each caller, then the next of each.

A caller is a valid key, or else an address. Two thousand requests of one key that arrived before a request of another
key delay it by one turn of the event loop, and not by two thousand answers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from services.gateway.auth.keyring import KeyRing
from services.gateway.turns import PIECES_MAX, TURN_BYTES, Turns

# Most requests take about as long; those with large bodies take turns again when they read them.
_REQUEST_BYTES: Final = TURN_BYTES // PIECES_MAX
# The library parses a handshake's head ten times as slowly as the HTTP parser.
_HANDSHAKE_BYTES: Final = TURN_BYTES // 8
# Health probes must be answered even if their address sends thousands of requests.
_PROBES: Final = frozenset({b"/livez", b"/readyz"})
_PROBE: Final = "probe"


class Request(Protocol):
    """A request whose head was received.

    Attributes:
        disconnected: Whether its caller has disconnected.
    """

    disconnected: bool

    @property
    def scope(self) -> Mapping[str, Any]:
        """Return the ASGI scope."""
        ...


class Flow(Protocol):
    """The flow control of a connection's reading."""

    def pause_reading(self) -> None:
        """Stop reading until resumed."""
        ...


R = TypeVar("R", bound=Request)


class RequestTurns:
    """Starts requests.

    Concurrency: the event loop's thread.
    """

    def __init__(self, turns: Turns, keys: KeyRing) -> None:
        self._turns = turns
        self._keys = keys

    def begin(self, request: R, address: str, start: Callable[[R], None]) -> None:
        """Start a request now, or in its turn; skip it if its caller has disconnected by then."""
        if self._turns.take_at_once(_REQUEST_BYTES):
            start(request)
            return

        def start_if_wanted() -> bool:
            if not request.disconnected:
                start(request)
            return not request.disconnected

        self._turns.enqueue(self._caller(request, address), _REQUEST_BYTES, start_if_wanted)

    def begin_handshake(
        self, headers: Iterable[tuple[bytes, bytes]], address: str, flow: Flow, open_stream: Callable[[], bool]
    ) -> None:
        """Open a stream now, or in its turn; its connection is not read meanwhile.

        Args:
            headers: Headers of the handshake, with lower-case names.
            address: Address of the caller.
            flow: Flow control, paused if the stream has to wait; `open_stream` resumes it.
            open_stream: Opens the stream, or returns False if it is no longer wanted.
        """
        if self._turns.take_at_once(_HANDSHAKE_BYTES):
            open_stream()
            return
        flow.pause_reading()
        self._turns.enqueue(self._holder(headers) or address, _HANDSHAKE_BYTES, open_stream)

    def _caller(self, request: Request, address: str) -> str:
        scope = request.scope
        return _PROBE if scope["raw_path"] in _PROBES else self._holder(scope["headers"]) or address

    def _holder(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        for name, value in headers:
            if name == b"authorization":
                return self._keys.key_id_of(value)
        return None
