"""Requests begin in turn where many come at once: first one of each caller, then the next of each.

A caller is a key that opens something, or else an address. Two thousand requests of one key, which came before a request
of another key, delay it by one turn of the event loop and not by two thousand answers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from services.gateway.auth.keyring import KeyRing
from services.gateway.turns import PIECES_MAX, TURN_BYTES, Turns

# Most requests take about as long; those with large bodies take turns again when they read them.
_REQUEST_BYTES: Final = TURN_BYTES // PIECES_MAX
# Whoever watches the gateway must hear from it, even from an address that sends thousands of requests.
_PROBES: Final = frozenset({b"/livez", b"/readyz"})
_PROBE: Final = "probe"


class Request(Protocol):
    """A request whose head has come.

    Attributes:
        disconnected: Whether its caller has gone.
    """

    disconnected: bool

    @property
    def scope(self) -> Mapping[str, Any]:
        """Return what ASGI says of it."""
        ...


R = TypeVar("R", bound=Request)


class RequestTurns:
    """Begins requests.

    Concurrency: the event loop's thread.
    """

    def __init__(self, turns: Turns, keys: KeyRing) -> None:
        self._turns = turns
        self._keys = keys

    def begin(self, request: R, address: str, start: Callable[[R], None]) -> None:
        """Start a request now, or in its turn; a caller who goes meanwhile is passed over."""
        if self._turns.take_at_once(_REQUEST_BYTES):
            start(request)
            return

        def start_if_wanted() -> bool:
            if not request.disconnected:
                start(request)
            return not request.disconnected

        self._turns.stand_in_line(self._caller(request, address), _REQUEST_BYTES, start_if_wanted)

    def _caller(self, request: Request, address: str) -> str:
        scope = request.scope
        if scope["raw_path"] in _PROBES:
            return _PROBE
        for name, value in scope["headers"]:
            if name == b"authorization":
                return self._keys.key_id_of(value) or address
        return address
