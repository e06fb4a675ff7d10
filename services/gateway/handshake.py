"""WebSocket handshakes: checked before a connection is handed over, limited in time, answered with problems.

uvicorn's WebSocket protocol never answers a handshake that its library can't read, such as one with a body or with a
header over 8 KiB, and it waits for ever for the application. `check_handshake` has the library read the head first, so
that only a head it accepts is handed over. The sweeper (server.py) ends what is not answered in time.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake, SecurityError
from websockets.http11 import Request
from websockets.server import ServerProtocol

from services.gateway.addresses import address_group
from services.gateway.admission import Admission, Spare
from services.gateway.asgi.answer import last_answer
from services.gateway.errors import (
    HEADERS_TOO_LARGE,
    INVALID_FIELD,
    MALFORMED_BODY,
    METHOD_NOT_ALLOWED,
    ProblemError,
)

VERSION: Final = b"13"


class StreamProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, counted by admission and known to the sweeper.

    Attributes:
        address: Address that the connection is counted for.
        handed_over_at: When the handshake was handed over, in the loop's time.
    """

    def __init__(self, *args: Any, admission: Admission, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.handed_over_at = 0.0
        self._admission = admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note when the handshake was handed over."""
        super().connection_made(transport)
        # What the HTTP protocol had set is for single answers, not for a stream of frames.
        self.transport.set_write_buffer_limits()
        self.handed_over_at = self.loop.time()
        remote = get_remote_addr(self.transport)
        self.address = address_group(remote[0]) if remote else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell admission that the connection has ended."""
        self._admission.release(self)
        super().connection_lost(exc)

    @property
    def is_answered(self) -> bool:
        """Whether the handshake has got its answer, be it a refusal."""
        return self.handshake_complete or self.close_sent

    def give_up(self, problem: ProblemError) -> None:
        """Refuse a handshake that the application has not answered, and close."""
        self.transport.write(last_answer(problem, self._admission.request_ids.next(), []))
        self.close_sent = True
        self.transport.close()

    def spare(self) -> Spare | None:
        """Return None: a stream is never closed to make room."""
        return None

    def make_room(self) -> None:
        """Close it."""
        self.transport.close()


def check_handshake(head: bytes, headers: list[tuple[bytes, bytes]]) -> ProblemError | None:
    """Return why a handshake can't be accepted, or None.

    Args:
        head: The request's head as the WebSocket library will read it.
        headers: The same headers, with lower-case names.
    """
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            shown = "Transfer-Encoding" if name == b"transfer-encoding" else "Content-Length"
            detail = f"{shown}: {value.decode('latin-1')!r}, but a WebSocket handshake has no body"
            return ProblemError(INVALID_FIELD, detail, field=shown)
    library = ServerProtocol(logger=logging.getLogger("uvicorn.error"))
    library.receive_data(head)
    events = library.events_received()
    if not events or not isinstance(events[0], Request):
        return _unreadable(library.handshake_exc)
    response = library.accept(events[0])
    if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        return None
    reason = str(library.handshake_exc)
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"method: a WebSocket handshake is a GET: {reason}"
        return ProblemError(METHOD_NOT_ALLOWED, detail, field="method", headers={"Allow": "GET"})
    field = getattr(library.handshake_exc, "name", None) or "Upgrade"
    more = {"Sec-WebSocket-Version": VERSION.decode()} if field == "Sec-WebSocket-Version" else None
    return ProblemError(
        INVALID_FIELD, f"{field}: the WebSocket handshake is refused: {reason}", field=field, headers=more
    )


def _unreadable(error: Exception | None) -> ProblemError:
    """Return the problem of a head that the library can't read; it has stricter limits than the HTTP parser."""
    while isinstance(error, InvalidHandshake) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, SecurityError):
        return ProblemError(HEADERS_TOO_LARGE, f"head: the WebSocket handshake is too large: {error}")
    return ProblemError(MALFORMED_BODY, f"head: the WebSocket handshake can't be read: {error}")
