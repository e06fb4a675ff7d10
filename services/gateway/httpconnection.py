"""One HTTP connection: httptools' parser, uvicorn's life cycle, and the limits that uvicorn does not have itself.

uvicorn's httptools protocol waits for ever for the first byte, for the rest of a head and for the rest of a body, and
keeps a head of any size. `GuardedProtocol` notes when each of these began, and the server's sweeper looks at all
connections once a second: cheaper than a timer a request, and a limit of ten seconds need not be exact.

What a request costs here is paid for each message, so the callbacks do what uvicorn's do in fewer steps; requests and
answers are exchange.py's.
"""

import asyncio
from collections import deque
from typing import Any, Final
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.gateway.errors import HEADERS_TOO_LARGE, MALFORMED_BODY, OVERLOADED, ProblemError
from services.gateway.exchange import Exchange

# As Apache's and twice nginx' default; a browser's cookies have room, a flood has not.
HEAD_BYTES_MAX: Final = 64 * 1024
# After a 413 the rest of the body is read and dropped, so that the client gets to see the answer; but not for ever.
DRAINED_BYTES_MAX: Final = 64 * 1024 * 1024
LINGER_S: Final = 2.0


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with what the sweeper needs to know of it.

    Attributes:
        head_since: When the head began that is not complete yet, or the wait for the very first.
        body_since: When the body began that is not complete yet.
        idle_since: When the last answer was given, while no request is under way.
    """

    cycle: Exchange | None  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_since: float | None = None
        self.body_since: float | None = None
        self.idle_since: float | None = None
        self._now = 0.0
        self._head_bytes = 0
        self._drained_bytes = 0
        self._is_refused = False
        self._waiting: deque[Exchange] = deque()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer."""
        return self.server_state.default_headers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time in which a request must come."""
        super().connection_made(transport)
        self.head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is under way."""
        self.connections.discard(self)
        if self.cycle is not None:
            self.cycle.disconnect()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse a head that does not end."""
        if self._is_refused:
            self._drain(len(data))
            return
        self._now = self.loop.time()
        self.idle_since = None
        if self.head_since is None and self.body_since is None:
            # Between two requests. Were it only blank lines, no message would begin, and no timer would run.
            self.head_since = self._now
            self._head_bytes = 0
        if self.head_since is not None:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self.refuse(ProblemError(MALFORMED_BODY, "request: is not HTTP/1.1 as it should be"))
        if self.head_since is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.refuse(ProblemError(HEADERS_TOO_LARGE, f"head: more than {HEAD_BYTES_MAX} bytes"))

    # What the parser calls

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.head_since = self._now
        self._head_bytes = 0
        self._drained_bytes = 0

    def on_headers_complete(self) -> None:
        """Note that the head has ended and the body begins, and have the application answer."""
        parser = self.parser
        version = parser.get_http_version()
        raw_path, path, query = split_target(self.url)
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
        }
        if parser.should_upgrade() and self._should_upgrade():
            self.head_since = None
            return
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.refuse(ProblemError(OVERLOADED, f"connections: {self.limit_concurrency} are open already"))
            return
        self.head_since = None
        self.body_since = self._now
        before = self.cycle
        self.cycle = exchange = Exchange(
            self,
            self.scope,  # type: ignore[arg-type]
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            # Sent before the answer to the one before it was there; answers keep the order of requests.
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; what nobody reads any more is dropped up to a limit."""
        exchange = self.cycle
        if exchange is None:
            return
        if exchange.response_complete:
            self._drain(len(body))
        else:
            exchange.body_came(body)

    def on_message_complete(self) -> None:
        """Note that the body has ended."""
        self.body_since = None
        exchange = self.cycle
        if exchange is None:
            return
        if exchange.response_complete:
            self.idle_since = self._now
        else:
            exchange.body_ended()

    # What others call

    def exchange_done(self) -> None:
        """Go on with a request that waits, or wait for the next."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._waiting:
            # Nothing more is read before all of them had their turn: each read may bring a thousand.
            self._start(self._waiting.popleft())
            return
        self.flow.resume_reading()
        if self.body_since is None and self.head_since is None:
            self.idle_since = self.loop.time()

    def shutdown(self) -> None:
        """Close, once the request under way is answered; called when the server stops."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def refuse(self, problem: ProblemError) -> None:
        """Answer without asking the application, and close.

        Closing with bytes unread would reset the connection, and the answer could be lost with it. So only our side ends
        at once; what still comes is dropped for a moment.
        """
        if self.transport.is_closing() or self._is_refused:
            return
        self._is_refused = True
        exchange = self.cycle
        # What was answered already, before its body was whole, gets no second answer.
        if self.head_since is not None or exchange is None or not exchange.response_complete:
            body = msgspec.json.encode(problem.to_dict("none"))
            head = (
                f"HTTP/1.1 {problem.status} {problem.kind.title}\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nx-request-id: none\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if exchange is not None:
            exchange.disconnect()
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    # Inside

    def _start(self, exchange: Exchange) -> None:
        task = self.loop.create_task(exchange.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _drain(self, count: int) -> None:
        self._drained_bytes += count
        if self._drained_bytes > DRAINED_BYTES_MAX:
            self.transport.close()


def split_target(target: bytes) -> tuple[bytes, str, bytes]:
    """Return a request target's path as it came, the path decoded, and the query.

    Raises:
        httptools.HttpParserError, ValueError: It is none.
    """
    if target[:1] == b"/" and b"#" not in target:
        raw_path, _, query = target.partition(b"?")
    else:
        url = httptools.parse_url(target)
        raw_path, query = url.path or b"", url.query or b""
    path = raw_path.decode("ascii")
    return raw_path, unquote(path) if "%" in path else path, query
