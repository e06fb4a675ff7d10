"""One HTTP connection: httptools' parser, uvicorn's life cycle, and limits that uvicorn does not have.

uvicorn's httptools protocol waits for ever for the first byte, for the rest of a head, for the rest of a body and for
the caller to read, and it accepts a head of any size. `GuardedProtocol` records when each of these waits began. The
server's sweeper checks all connections once a second, which is cheaper than a timer for each request.

Answers, refusals included, keep the order of the requests. If a body is not valid, the answer to its request says so. A
close with unread bytes would reset the connection, and the answer could be lost. So while the caller may still be
sending, the gateway first ends only its own side (`_linger`).

The parser stops at every upgrade and takes the body for another protocol. RFC 9110 demands that the gateway ignores
upgrades to other protocols than WebSocket: a new parser reads the same head without its `Upgrade`.

These callbacks run for each message, so they take fewer steps than uvicorn's. exchange.py has requests and answers.
"""

import asyncio
import functools
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr

from services.gateway import requesthead
from services.gateway.addresses import address_group
from services.gateway.admission import Admission, IdleConnection
from services.gateway.asgi.call import CONNECTION
from services.gateway.errors import CONFLICT, NOT_STORED, UNKNOWN, ProblemError
from services.gateway.exchange import Exchange
from services.gateway.handshake import check_handshake
from services.gateway.limits import UNSENT_BYTES_FREE
from services.gateway.pipeline import Pipeline
from services.gateway.readturns import LARGE_READ_BYTES
from services.gateway.streamprotocol import StreamProtocol
from services.gateway.timedflow import TimedFlow

# Limit of one body on the wire, framing included: a body of 8 MiB in chunks of one byte takes 48 MiB. After an early
# answer, the rest of the body is read and dropped up to this limit, so that the caller can read the answer.
BODY_WIRE_BYTES_MAX: Final = 64 * 1024 * 1024
LAST_READ_S: Final = 0.1  # When the server stops, a request may have arrived that is not read yet.
_WATCHED: Final = frozenset({b"host", b"transfer-encoding", b"expect"})


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with the state that the sweeper and admission need; times are those of the event loop, in s.

    Attributes:
        address: Address whose limits count the connection.
        head_since: Begin of the incomplete head, or of the wait for the first head.
        body_since: Begin of the incomplete body.
        idle_since: Time of the last answer, if no request is in flight.
        linger_since: Time at which the gateway ended its side, if the caller's side is still open.
        heard_at: Time of the last bytes received while lingering.
    """

    cycle: Exchange | None  # type: ignore[assignment]
    flow: TimedFlow

    def __init__(self, *args: Any, admission: Admission, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.head_since: float | None = None
        self.body_since: float | None = None
        self.idle_since: float | None = None
        self.linger_since: float | None = None
        self.heard_at = 0.0
        self._admission = admission
        self._now = 0.0
        self._opened_at = 0.0
        self._read_bytes = self._head_bytes = self._body_bytes = 0
        self._head_slack_bytes: int | None = 0
        self._hosts_count = 0
        self._is_deaf = self._is_pipelining = False
        self._refusal: bytes | None = None
        self._waiting = Pipeline(admission.bodies)
        self._extensions: dict[str, Any] = {CONNECTION: self}

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer."""
        return self.server_state.default_headers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time-out of the first head, or reject the connection."""
        super().connection_made(transport)
        self.flow = TimedFlow(transport, self, self._admission.reads, self.loop.time)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_FREE)
        now = self._now = self._opened_at = self.head_since = self.loop.time()
        remote = get_remote_addr(transport)
        self.address = address_group(remote[0]) if remote else ""
        problem = self._admission.admit(self, now)
        if problem is not None and self._admission.is_crowded:
            transport.abort()
        elif problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request in flight, and release the connection."""
        self._admission.release(self)
        self.connections.discard(self)
        if self.cycle is not None:
            self.cycle.disconnect()
        self._waiting.clear()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break the reference cycles, so that the connection is freed without the garbage collector."""
        self.cycle = None
        self.parser = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]
        self._extensions = {}

    def data_received(self, data: bytes) -> None:
        """Parse, and reject a head or a body that exceeds its limit."""
        now = self._now = self.loop.time()
        count = self._read_bytes = len(data)
        if count >= LARGE_READ_BYTES:
            self.flow.take_turn()
        if self._is_deaf:
            self.heard_at = now
            self._count_body(count)
            return
        self.idle_since = None
        if self.body_since is not None:
            self._count_body(count)
        elif self.head_since is None:
            # Between two requests. Blank lines begin no message, so the timer must start here.
            self.head_since = now
            self._head_bytes = 0
            self._head_slack_bytes = 0
        self._head_bytes += count
        self._parse(data)
        if self.head_since is not None and not self._is_deaf:
            self._check_open_head()

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._hosts_count = 0
        if self.head_since is None:
            # Another request precedes this head in the same read, so only a part of the read belongs to this head.
            self._head_bytes = self._read_bytes
            self._head_slack_bytes = None
            self.head_since = self._now

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers of a chunked body are ignored, because they come too late for the checks."""
        if self.head_since is None:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _WATCHED:
            if name == b"host":
                self._hosts_count += 1
            elif name == b"transfer-encoding":
                requesthead.check_coding(value)
            elif value.lower() == b"100-continue":
                self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        """Record the end of the head and the begin of the body, and start or queue the request."""
        parser = self.parser
        version = parser.get_http_version()
        if version != "1.1" or self._hosts_count != 1 or self._head_bytes > requesthead.HEAD_BYTES_MAX:
            # The count of bytes may include other requests of the same read, so check_head measures the head exactly.
            requesthead.check_head(version, self._hosts_count, self.url, self.headers)
        if parser.should_upgrade():
            return  # The parser stops after this head, and _upgrade continues.
        raw_path, path, query = requesthead.split_target(self.url)
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
            "extensions": self._extensions,
        }
        self.headers = []
        self.head_since = None
        self.body_since = self._now
        self._body_bytes = 0
        before = self.cycle
        self.cycle = exchange = Exchange(
            self,
            self.scope,  # type: ignore[arg-type]
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self._admission.is_draining,
            expects_continue=version != "1.0" and self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._admission.requests.begin(exchange, self.address, self._start)
        else:
            self._is_pipelining = True
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the request, or drop the part if the request is already answered."""
        exchange = self.cycle
        if exchange is not None and not exchange.response_complete:
            if self._waiting:
                self._waiting.grow(len(body), self.address)
            exchange.body_came(body)

    def on_message_complete(self) -> None:
        """Record the end of the body."""
        if self.body_since is None:
            return  # This was the head of an upgrade.
        self.body_since = None
        exchange = self.cycle
        if exchange is None:
            return
        if exchange.response_complete:
            self.idle_since = self._now
        else:
            exchange.body_ended()

    def exchange_done(self, *, keep_alive: bool) -> None:
        """Start the next waiting request, or wait for one, or close."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if not keep_alive:
            self._waiting.clear()
            self._end()
        elif self._waiting:
            # All waiting requests run before the next read, because each read may contain a thousand requests.
            self._admission.requests.begin(self._waiting.take(), self.address, self._start)
        elif self._refusal is not None:
            self.transport.write(self._refusal)
            self._linger()
        else:
            self.flow.resume_reading()
            if self.body_since is None and self.head_since is None:
                self.idle_since = self.loop.time()

    def drain(self) -> None:
        """Make the request in flight the last of this connection; called before the server stops."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close after the request in flight, or one that just arrives, is answered; called when the server stops."""
        self.drain()
        self.loop.call_later(LAST_READ_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def refuse(self, problem: ProblemError, reason: str) -> None:
        """Count the reason, accept no more requests, and close after the due answers and this refusal."""
        if not self.transport.is_closing() and not self._is_deaf:
            self._admission.metrics.refused_connection(reason)
            self._refuse(problem)

    def spare(self) -> IdleConnection | None:
        """Return the time since which the connection is idle, or None while a request is in flight."""
        exchange = self.cycle
        if exchange is None:
            return IdleConnection(had_request=False, since=self._opened_at)
        return IdleConnection(had_request=True, since=self._now) if exchange.response_complete else None

    def make_room(self) -> None:
        """Close, to make room for another connection."""
        self.transport.close()

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse, and continue after the head of an upgrade; views avoid copies if one read has many upgrades."""
        rest: bytes | memoryview | None = data
        while rest is not None:
            chunk, head_end = rest, None
            try:
                self.parser.feed_data(chunk)
            except httptools.HttpParserUpgrade as upgrade:
                head_end = upgrade.args[0]
            except httptools.HttpParserError as error:
                self.refuse(*requesthead.why_unreadable(error))
            rest = None if head_end is None else self._upgrade(memoryview(chunk)[head_end:])

    def _upgrade(self, rest: memoryview) -> memoryview | None:
        """Handle the head of an upgrade; return the bytes to parse next, or None if no HTTP follows."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self.refuse(requesthead.no_proxy(), "connect")
            return None
        if [value.strip().lower() for name, value in self.headers if name == b"upgrade"] == [b"websocket"]:
            head = requesthead.write_head(method, self.url, version, self.headers)
            start = functools.partial(self._open_stream, head, bytes(rest))
            self._admission.requests.begin_handshake(self.headers, self.address, self.flow, start)
            return None
        head = requesthead.write_head(
            method, self.url, version, [header for header in self.headers if header[0] != b"upgrade"]
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(head)
        except httptools.HttpParserError as error:
            self.refuse(*requesthead.why_unreadable(error))
            return None
        return rest

    def _open_stream(self, head: bytes, rest: bytes) -> bool:
        """Hand the connection over to a stream, or reject it; return False if the connection is closing already."""
        if self._is_deaf or self.transport.is_closing():
            return False
        self.flow.hand_over()
        problem = check_handshake(head, self.headers)
        if problem is None and self.cycle is not None and not self.cycle.response_complete:
            problem = ProblemError(CONFLICT, "Upgrade: the previous request is not answered yet", field="Upgrade")
        if problem is not None:
            self.refuse(problem, "handshake")
            return True
        self.head_since = None
        self.connections.discard(self)
        protocol: StreamProtocol = self.ws_protocol_class(  # type: ignore[call-arg,misc,assignment]
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        protocol.connection_made(self.transport)
        self._admission.replace(self, protocol)
        self.transport.set_protocol(protocol)
        self._break_cycles()
        protocol.data_received(head + rest)
        return True

    def _check_open_head(self) -> None:
        """Reject an incomplete head that is too large."""
        if self._head_slack_bytes is None:
            # The read may include other requests, so only the complete lines of this head are counted from it.
            self._head_slack_bytes = self._head_bytes - requesthead.measure_head(self.url, self.headers)
        if self._head_bytes - self._head_slack_bytes > requesthead.HEAD_BYTES_MAX:
            self.refuse(requesthead.head_too_large(), "large_head")

    def _count_body(self, count: int) -> None:
        self._body_bytes += count
        if self._body_bytes > BODY_WIRE_BYTES_MAX:
            if not self.transport.is_closing():
                self._admission.metrics.refused_connection("endless_body")
            self.transport.abort()

    def _start(self, exchange: Exchange) -> None:
        task = self.loop.create_task(exchange.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _refuse(self, problem: ProblemError) -> None:
        self._is_deaf = True
        if problem.outcome is None and self.parser.get_method() == b"POST":
            problem.outcome = NOT_STORED
        exchange = self.cycle
        if exchange is not None and self.body_since is not None:
            # The body is not valid. If its request is already answered, it gets no second answer.
            self.body_since = None
            if exchange.response_complete:
                self._end()
            else:
                exchange.fail(problem)
            return
        is_due = exchange is None or exchange.response_complete
        if not is_due:
            # A caller may take this for the answer to the request in flight, whose message may be stored.
            problem.outcome = UNKNOWN
        self._refusal = self._admission.refusal(problem, self.headers or (), self.default_headers)
        if is_due:
            self.transport.write(self._refusal)
            self._linger()

    def _end(self) -> None:
        """Close, or linger while the caller may still be sending, so that it can read the answer."""
        if self.body_since is None and not self._is_deaf and not self._is_pipelining:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """End the gateway's side, and drop all further bytes of the caller; the sweeper closes the connection."""
        self._is_deaf = True
        self.head_since = self.body_since = self.idle_since = None
        self.linger_since = self.heard_at = self.loop.time()
        self.flow.resume_reading()
        self.transport.write_eof()
