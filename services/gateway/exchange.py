"""Exchange: one HTTP request and its answer, as ASGI sees them.

uvicorn's own cycle writes head and body of an answer one after the other, which costs a system call more and wakes the
caller for half an answer; and it makes an event and a timer for each request. Here an answer is one piece and one write,
and a request whose body came with its head, as nearly all do, waits for nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gantry.runtime.telemetry import logger
from services.gateway.asgi.answer import REST
from services.gateway.errors import ProblemError

log = logger("gateway.exchange")

# What has come of a body and nobody has read; then the connection is not read for a while.
UNREAD_BYTES_MAX: Final = 64 * 1024
_NO_BODY_STATUSES: Final = (204, 304)
_TOO_LARGE: Final = 413
_FAULT: Final = b"Internal Server Error"
_FAULT_HEADERS: Final = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAULT))]


class Connection(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport

    @property
    def flow(self) -> FlowControl:
        """Return what pauses and resumes it."""
        ...

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer."""
        ...

    def exchange_done(self, *, keep_alive: bool) -> None:
        """Take note that the answer is with the transport, and whether it is the connection's last."""
        ...


class Exchange:
    """One request and its answer.

    Concurrency: the event loop's thread; one task receives and sends.
    """

    __slots__ = (
        "_connection",
        "_expects_continue",
        "_has_news",
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
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    # What the connection calls

    def body_came(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._connection.flow.pause_reading()
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def body_ended(self) -> None:
        """Take note that the body is whole."""
        self._more_body = False
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def fail(self, problem: ProblemError) -> None:
        """Take note that the body will never be whole; the application is told so when it reads on."""
        self._problem = problem
        self.keep_alive = False
        self._parts.clear()
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    def disconnect(self) -> None:
        """Take note that the caller has gone."""
        if not self.response_complete:
            self.disconnected = True
        if self._waiter is not None:
            self._wake()
        self._has_news = True

    async def run(self, app: Any) -> None:
        """Have the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # boundary: of a request; the application has dealt with what it knows of.
            log.exception("the application failed")
            if not self.response_complete and not self.disconnected:
                self.keep_alive = False
                self._answer(500, _FAULT_HEADERS, _FAULT)
        finally:
            if not self.response_complete:
                # Cancelled, or nobody is there to be answered.
                self._connection.transport.close()
            self._problem = None  # Raised, it refers to this exchange.

    # ASGI

    async def receive(self) -> dict[str, Any]:
        """Return what has come of the body since the last call, or that the caller has gone.

        Raises:
            ProblemError: The rest of the body came too slowly, or it is not framed as it should be.
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
        """Take the head of the answer, then its body; only whole bodies are needed, so nothing else is taken.

        Returns once the socket has taken nearly all of it, or the caller has gone; the body is taken out of the message.
        """
        if self._start is None:
            assert message["type"] == "http.response.start", message["type"]
            self._start = message
            return
        assert not self.response_complete, "an answer is given once"
        assert not message.get("more_body"), "an answer is one piece"
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if not self.disconnected:
            self._answer(self._start["status"], self._start["headers"], message.pop("body"), message.pop(REST, ()))
            if flow.write_paused:
                await flow.drain()

    # Inside

    def _answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, rest: Sequence[bytes] = ()) -> None:
        connection = self._connection
        lines = [STATUS_LINE[status]]
        lines += [b"%b: %b\r\n" % header for header in connection.default_headers]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if self._more_body and (status == _TOO_LARGE or self._expects_continue):
            # The body may be endless, or may never come: what follows can't be told from the next request.
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        # A line end within a header would let whoever put it there write an answer of his own.
        assert head.count(b"\n") == head.count(b"\r") == len(lines), "a header holds a line end"
        has_body = self.scope["method"] != "HEAD" and status not in _NO_BODY_STATUSES
        self.response_complete = True
        if rest and has_body:
            connection.transport.writelines([b"%b\r\n%b" % (head, body), *rest])
        else:
            connection.transport.write(b"%b\r\n%b" % (head, body) if has_body else head + b"\r\n")
        connection.exchange_done(keep_alive=self.keep_alive)

    def _wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.done():
            self._waiter.set_result(None)
