"""WebSocket handshakes: checks before the connection is handed over, and problems as answers.

uvicorn's WebSocket protocol never answers a handshake that its library can't read, such as one with a body or with a
header over 8 KiB, and it waits for ever for the application. So `check_handshake` has the library read the head first,
and only heads that the library accepts are handed over (streamprotocol.py). The sweeper (server.py) ends handshakes
that are not answered in time.
"""

import logging
from http import HTTPStatus
from typing import Final

from websockets.exceptions import InvalidHandshake, SecurityError
from websockets.http11 import Request
from websockets.server import ServerProtocol

from services.gateway.errors import (
    HEADERS_TOO_LARGE,
    INVALID_FIELD,
    MALFORMED_BODY,
    METHOD_NOT_ALLOWED,
    ProblemError,
)

VERSION: Final = b"13"


def check_handshake(head: bytes, headers: list[tuple[bytes, bytes]]) -> ProblemError | None:
    """Return the problem of a handshake, or None if it can be accepted.

    Args:
        head: Bytes of the request's head, which the WebSocket library reads.
        headers: Headers in `head`, with lower-case names.
    """
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            shown = "Transfer-Encoding" if name == b"transfer-encoding" else "Content-Length"
            detail = f"{shown}: {value.decode('latin-1')!r}, but a WebSocket handshake has no body"
            return ProblemError(INVALID_FIELD, detail, field=shown)
    library = ServerProtocol(logger=logging.getLogger("uvicorn.error"))
    library.receive_data(head)
    try:
        return _refusal(library)
    finally:
        break_cycles(library)


def break_cycles(library: ServerProtocol) -> None:
    """Break the library's reference cycles, so that its connection is freed without the garbage collector."""
    library.parser.close()
    for raised in (library.handshake_exc, library.parser_exc):
        error: BaseException | None = raised
        while error is not None:
            error.__traceback__ = None
            error = error.__context__
    library.handshake_exc = library.parser_exc = None


def _refusal(library: ServerProtocol) -> ProblemError | None:
    events = library.events_received()
    if not events or not isinstance(events[0], Request):
        return _unreadable(library.handshake_exc)
    response = library.accept(events[0])
    if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        return None
    reason = str(library.handshake_exc)
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"method: a WebSocket handshake must be a GET: {reason}"
        return ProblemError(METHOD_NOT_ALLOWED, detail, field="method", headers={"Allow": "GET"})
    field = getattr(library.handshake_exc, "name", None) or "Upgrade"
    more = {"Sec-WebSocket-Version": VERSION.decode()} if field == "Sec-WebSocket-Version" else None
    return ProblemError(
        INVALID_FIELD, f"{field}: the WebSocket handshake is rejected: {reason}", field=field, headers=more
    )


def _unreadable(error: Exception | None) -> ProblemError:
    """Return the problem of a head that the library can't read; its limits are stricter than those of the HTTP parser."""
    while isinstance(error, InvalidHandshake) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, SecurityError):
        return ProblemError(HEADERS_TOO_LARGE, f"head: the WebSocket handshake is too large: {error}")
    return ProblemError(MALFORMED_BODY, f"head: the WebSocket handshake can't be read: {error}")
