"""Exchange: one HTTP request and its answer, as ASGI sees them.

uvicorn's `RequestResponseCycle` writes head and body of an answer separately. This costs one more system call, and wakes
the caller for half an answer. It also creates an event and a timer for each request. An `Exchange` writes an answer at
once, and a request whose body came with its head does not wait. Nearly all requests do. An answer in several pieces,
such as Starlette's response with a file, is written piece by piece.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import BODY_PARTS, Headers
from services.gateway.errors import ProblemError

log = logger("gateway.exchange")

# Received bytes of a body that the application has not read; above it, the connection is not read.
UNREAD_BYTES_MAX: Final = 64 * 1024
_NO_BODY_STATUSES: Final = (204, 304)
_TOO_LARGE: Final = 413
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_FAULT: Final = b"Internal Server Error"
_FAULT_HEADERS: Final = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAULT))]


class Connection(Protocol):
    """The part of a connection that an exchange uses."""

    transport: asyncio.Transport

    @property
    def flow(self) -> FlowControl:
        """Return the flow control, which pauses and resumes reading."""
        ...

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer."""
        ...

    def exchange_done(self, *, keep_alive: bool) -> None:
        """Note that the transport has the answer; without `keep_alive`, it is the last of the connection."""
        ...


class Exchange:
    """One request and its answer.

    Concurrency: the event loop's thread; one task receives and sends.
    """

    __slots__ = (
        "_connection",
        "_expects_continue",
        "_has_news",
        "_left_bytes",
        "_more_body",
        "_parts",
        "_problem",
        "_start",
        "_unread_bytes",
        "_waiter",
        "disconnected",
        "keep_alive",
        "response_complete",
        "scope",
    )

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self.scope = scope
        self._expects_continue = expects_continue
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._more_body = True
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._problem: ProblemError | None = None
        self._start: dict[str, Any] | None = None
        self._left_bytes: float | None = None
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    # Calls of the connection.

    def body_came(self, part: bytes) -> None:
        """Keep a part of the body for the application."""
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._connection.flow.pause_reading()
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def body_ended(self) -> None:
        """Note that the body is complete."""
        self._more_body = False
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def fail(self, problem: ProblemError) -> None:
        """Note that the body will never be complete; the application learns it from its next `receive`."""
        self._problem = problem
        self.keep_alive = False
        self._parts.clear()
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def disconnect(self) -> None:
        """Note that the caller has gone."""
        if not self.response_complete:
            self.disconnected = True
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    async def run(self, app: Any) -> None:
        """Call the application."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # boundary: of a request; the middleware has handled the errors that it expects.
            log.exception("the application failed")
            if not self.response_complete and not self.disconnected and self._left_bytes is None:
                self.keep_alive = False
                self._answer(500, _FAULT_HEADERS, _FAULT)
        finally:
            if not self.response_complete:
                # The request was cancelled, its caller has gone, or its answer broke off.
                self._connection.transport.close()
            self._problem = None  # Raised, it refers to this exchange.

    # ASGI

    async def receive(self) -> dict[str, Any]:
        """Return the bytes of the body that came since the last call, or that the caller has gone.

        Raises:
            ProblemError: The rest of the body came too slowly, or its framing is wrong.
        """
        connection = self._connection
        if self._expects_continue and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self.disconnected and not self.response_complete:
            if self._more_body:
                connection.flow.resume_reading()
            while not self._has_news:
                assert self._waiter is None, "two receive at once"
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        if self._problem is not None:
            raise self._problem
        body = b"".join(self._parts)
        self._parts.clear()
        self._unread_bytes = 0
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: dict[str, Any]) -> None:
        """Send the head of the answer, then its body in one piece or in several.

        Returns once the socket has taken nearly all bytes, or the caller has gone. Removes the body from the message.
        """
        if self._start is None:
            assert message["type"] == "http.response.start", message["type"]
            self._start = message
            return
        assert not self.response_complete, "an answer is given once"
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        body, more = message.pop("body", b""), message.get("more_body", False)
        if more:
            # A source that always has the next piece at hand must not keep the loop to itself, nor miss that it is
            # cancelled once the caller has gone.
            await asyncio.sleep(0)
        if self.disconnected:
            return
        if more or self._left_bytes is not None:
            self._write_piece(self._start["status"], self._start["headers"], body, is_last=not more)
        else:
            self._answer(self._start["status"], self._start["headers"], body, message.pop(BODY_PARTS, ()))
        if flow.write_paused:
            await flow.drain()

    # Inside

    def _answer(self, status: int, headers: Headers, body: bytes, rest: Sequence[bytes] = ()) -> None:
        connection = self._connection
        head, has_body = self._head(status, headers)
        self.response_complete = True
        if rest and has_body:
            connection.transport.writelines([b"%b\r\n%b" % (head, body), *rest])
        else:
            connection.transport.write(b"%b\r\n%b" % (head, body) if has_body else head + b"\r\n")
        connection.exchange_done(keep_alive=self.keep_alive)

    def _write_piece(self, status: int, headers: Headers, piece: bytes, *, is_last: bool) -> None:
        """Write one piece of an answer, the first one together with the head.

        A caller knows the end of an answer by its Content-Length, by its last chunk, or, with HTTP/1.0, by the end of
        the connection.
        """
        transport = self._connection.transport
        if self._left_bytes is None:
            length = next((value for name, value in headers if name == b"content-length"), None)
            self._left_bytes = math.inf if length is None else int(length)
            if length is None and self.scope["http_version"] == "1.1":
                headers = [*headers, _CHUNKED]
            head, has_body = self._head(status, headers)
            if not has_body:
                self._left_bytes = 0
            transport.write(head + b"\r\n")
        is_chunked = self._left_bytes == math.inf and self.scope["http_version"] == "1.1"
        # A file may grow while it is sent. More bytes than announced would be read as the next answer.
        if len(piece) > self._left_bytes:
            piece = piece[: int(self._left_bytes)]
        self._left_bytes -= len(piece)
        if piece:
            transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
        if not is_last:
            return
        if is_chunked:
            transport.write(b"0\r\n\r\n")
        elif self._left_bytes != math.inf and self._left_bytes > 0:
            # `run` closes the connection: the only way to say that the answer is not whole.
            return
        self.response_complete = True
        self._connection.exchange_done(keep_alive=self.keep_alive)

    def _head(self, status: int, headers: Headers) -> tuple[bytes, bool]:
        """Return the head of an answer without its last line end, and whether a body follows."""
        lines = [STATUS_LINE[status]]
        lines += [b"%b: %b\r\n" % header for header in self._connection.default_headers]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if self._more_body and (status == _TOO_LARGE or self._expects_continue):
            # The body may be endless, or may never come, so its bytes could not be told from the next request.
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        # With a line end within a header, the author of the header could write an answer of their own.
        assert head.count(b"\n") == head.count(b"\r") == len(lines), "a header holds a line end"
        return head, self.scope["method"] != "HEAD" and status not in _NO_BODY_STATUSES

    def _wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.done():
            self._waiter.set_result(None)
