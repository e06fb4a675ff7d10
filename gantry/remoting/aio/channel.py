"""One connection, accepted or dialled: it reads frames, calls handlers and writes replies.

Theory of operation. The channel decodes all frames of one read and dispatches them one after another. If the handler
is a plain function, the channel calls it directly, without a task, and adds the reply to a list. After the last frame
the channel sends the list with one write. Later replies (`reply`, from a flush or a timer) and our own requests use
the same list. The channel writes these in the next turn of the event loop, or at once if they are large. So a request
needs no task, and only a large request needs a system call of its own.

Fairness. Large requests, or requests with large replies, may take tens of milliseconds per read. After `DISPATCH_SLICE_MS` a
server's channel yields to the other channels. It reads nothing until it has dispatched the remaining requests.

Back-pressure. Bytes that the peer does not read stay in the transport's buffer. Above `write_buffer_high_bytes` a
server's channel stops dispatching and reading until the buffer has drained. A client's channel continues to read: two
peers that both stop reading would wait for each other forever. Callers of the client get BackpressureError instead.

Concurrency: only the thread of the event loop uses a channel. Handlers must not block.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gantry.remoting.aio.endpoint import NO_ADDRESS, Endpoint, socket_address
from gantry.remoting.aio.limits import MIB
from gantry.remoting.aio.pending import PendingRequests
from gantry.remoting.aio.tls import TLS_HANDSHAKE_BYTE, TlsMode, TlsPipe
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand, encode_head
from gantry.remoting.connection import Connection
from gantry.remoting.errors import (
    BackpressureError,
    BodyError,
    ConnectionLostError,
    FrameTooLargeError,
    HeaderError,
    LocalProtocolError,
    RemoteProtocolError,
)
from gantry.remoting.typedrequest import RequestDecoder
from gantry.runtime.telemetry import logger

log = logger("remoting")

# None: the handler replies later with `channel.reply`, or never (a one-way request). Bytes: a complete frame.
Reply = RemotingCommand | bytes | None
Handler = Callable[["Channel", RemotingCommand], Reply | Awaitable[Reply]]

REMARK_CHARS_MAX = 512
LARGE_BYTES = 64 * 1024
"""Queued requests of this size are written at once. After a read of this size the channel lets other channels read."""
DISPATCH_SLICE_MS = 3
"""The time after which a channel with more requests yields to the others. A request is never interrupted."""
_CLOCK_CHECK_BYTES = 8 * 1024
"""The size of requests and replies between two checks of the clock. A check for each small request costs too much."""
_REQUEST_BYTES = 1024
"""The size that a request counts in addition to its body."""
_RESPONSE = 1
_ONE_WAY = 2


class ChannelSettings:
    """The settings and callbacks that a server or a client shares with each of its channels."""

    __slots__ = (
        "connections_max",
        "endpoint",
        "fallback",
        "handlers",
        "is_server",
        "on_bug",
        "on_close",
        "on_connect",
        "tls",
        "tls_mode",
        "typed",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        handlers: Mapping[int, Handler],
        *,
        fallback: Handler | None = None,
        on_connect: Callable[["Channel"], None] | None = None,
        on_close: Callable[["Channel"], None] | None = None,
        on_bug: Callable[[AssertionError], None] | None = None,
        is_server: bool = False,
        connections_max: int | None = None,
        tls: ssl.SSLContext | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        typed: Mapping[bytes, RequestDecoder] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.handlers = handlers
        self.fallback = fallback
        self.on_connect = on_connect
        self.on_close = on_close
        self.on_bug = on_bug
        self.is_server = is_server
        self.connections_max = connections_max
        self.tls = tls
        self.tls_mode = tls_mode
        self.typed = typed

    def admit(self) -> bool:
        """Return whether one more connection is allowed."""
        if self.endpoint.is_draining:
            return False
        count = len(self.endpoint.channels) + len(self.endpoint.arriving)
        return self.connections_max is None or count < self.connections_max


class Channel(asyncio.Protocol):
    """One connection. The owner may store data about the peer in `attributes`."""

    __slots__ = (
        "_active_ms",
        "_buffered_bytes",
        "_closing_since_ms",
        "_connection",
        "_deferred",
        "_endpoint",
        "_flush_scheduled",
        "_is_counted",
        "_loop",
        "_opened_ms",
        "_out",
        "_out_bytes",
        "_owner",
        "_pending",
        "_pipe",
        "_sniffs_tls",
        "_transport",
        "_write_paused",
        "address",
        "attributes",
        "close_reason",
        "closed",
        "in_flight_count",
        "local",
        "peer",
    )

    def __init__(self, owner: ChannelSettings, *, address: str = "") -> None:
        self._owner = owner
        self._endpoint = owner.endpoint
        self._connection = Connection(frame_bytes_max=self._endpoint.limits.frame_bytes_max, typed=owner.typed)
        self._pending = PendingRequests()
        self._out: list[bytes | bytearray | memoryview] = []
        self._out_bytes = 0
        self._buffered_bytes = 0
        self._flush_scheduled = False
        self._write_paused = False
        self._deferred: list[RemotingCommand] = []
        self._pipe: TlsPipe | None = None
        self._sniffs_tls = owner.tls is not None and owner.tls_mode is not TlsMode.DISABLED
        self._is_counted = False
        self._closing_since_ms = -1
        self._active_ms = self._opened_ms = self._endpoint.now_ms
        self.address = address  # The dialled address, or the address of the peer. Errors name it.
        self.attributes: dict[str, Any] = {}
        self.closed = False
        self.close_reason = ""
        self.in_flight_count = 0
        self.peer = self.local = NO_ADDRESS

    def __repr__(self) -> str:
        return f"<Channel {self.local} to {self.peer}{' closed' if self.closed else ''}>"

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer a request whose handler returned None. The response gets the opaque and the coding of the request.

        Do nothing if the request is one-way or the connection is closed.
        """
        if request.flag & _ONE_WAY:
            return
        if self.closed:
            self._endpoint.counters.dropped_replies += 1
            return
        self._finish_request()
        response.opaque = request.opaque
        response.flag |= _RESPONSE
        response.serialize_type = request.serialize_type
        self._add(response)
        self._schedule_flush()

    def reply_frame(self, request: RemotingCommand, frame: bytes) -> None:
        """Answer as `reply` does, but with a complete frame."""
        if request.flag & _ONE_WAY:
            return
        if self.closed:
            self._endpoint.counters.dropped_replies += 1
            return
        self._finish_request()
        self._out.append(frame)
        self._out_bytes += len(frame)
        self._schedule_flush()

    def leave_unanswered(self, request: RemotingCommand) -> None:
        """Stop counting a request as in flight. The handler calls this if the request will get no response."""
        if not request.flag & _ONE_WAY and not self.closed:
            self._finish_request()

    def send_one_way(self, command: RemotingCommand) -> None:
        """Send a command that gets no response. The command is lost if the connection is closed.

        Raises:
            BackpressureError: Too many bytes wait to be sent; the command was not sent.
            LocalProtocolError: The command does not fit a frame.
        """
        if self.closed:
            return
        self._refuse_if_overfull()
        command.flag |= _ONE_WAY
        command.opaque = self._connection.next_opaque()
        self._append(command)
        self._schedule_flush()

    def start_request(self, command: RemotingCommand, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Send a request and return the future of its response. The future fails with the errors of `request`.

        Raises:
            ConnectionLostError: The connection is closed; the request was not sent.
            BackpressureError: Too many requests or bytes are waiting; the request was not sent.
            LocalProtocolError: The command does not fit a frame.
        """
        if self.closed:
            raise ConnectionLostError(self.address, self.close_reason or "connection is closed", sent=False)
        limits = self._endpoint.limits
        if len(self._pending) >= limits.pending_max:
            raise BackpressureError(
                self.address, f"{limits.pending_max} requests wait for a response, which is the limit"
            )
        self._refuse_if_overfull()
        command.opaque = self._connection.next_opaque()
        self._append(command)
        self._endpoint.awaiting.add(self)
        answer = self._loop.create_future()
        self._pending.add(command.opaque, answer, self._endpoint.monotonic_ms() + timeout_ms)
        if self._out_bytes >= LARGE_BYTES:
            was_scheduled = self._flush_scheduled
            self.flush()
            self._flush_scheduled = was_scheduled
        else:
            self._schedule_flush()
        return answer

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its response, with any response code.

        Raises:
            RequestFailedError: A subclass of it; `sent` says whether the peer may have received the request.
            LocalProtocolError: The command does not fit a frame.

        Concurrency: the caller may be cancelled. The response is dropped then.
        """
        return await self.start_request(command, timeout_ms)

    def close(self, reason: str) -> None:
        """Send the queued frames, then close. Our pending requests fail as soon as the connection is closed."""
        if self.closed:
            return
        self.flush()
        if self._transport.is_closing():  # The flush aborted the connection.
            return
        self.closed = True
        self.close_reason = reason
        self._deferred.clear()
        self._closing_since_ms = self._endpoint.monotonic_ms()
        if self._pipe is not None:
            self._transport.write(self._pipe.close())
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once. Queued frames are lost."""
        self.closed = True
        self.close_reason = self.close_reason or reason
        self._deferred.clear()
        self._transport.abort()

    def flush(self) -> None:
        """Pass all queued frames to the transport in one write. The channel does this once per turn of the loop."""
        self._flush_scheduled = False
        out = self._out
        if not out or self.closed:
            return
        if self._sniffs_tls or (self._pipe is not None and not self._pipe.handshake_done):
            return  # The peer's first bytes decide between TLS and plain, and they have not arrived yet.
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self._out_bytes = 0
        self._pending.written()
        self._active_ms = self._endpoint.now_ms
        self._endpoint.counters.bytes_sent += len(data)
        self._transport.write(data if self._pipe is None else self._pipe.send(data))
        if self._owner.is_server and self._write_paused and self._is_overfull():
            self._endpoint.counters.closed_slow += 1
            log.warning("peer does not read its answers", peer=self.address, bytes=self._unwritten_bytes())
            self.abort("peer does not read")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or abort it if there are too many. Called once."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self.peer = socket_address(transport.get_extra_info("peername"))
        self.local = socket_address(transport.get_extra_info("sockname"))
        self.address = self.address or str(self.peer)
        self._active_ms = self._opened_ms = self._endpoint.monotonic_ms()
        self._endpoint.arriving.discard(self)
        if not self._owner.admit():
            self._endpoint.counters.connections_refused += 1
            self.abort("too many connections")
            return
        self._is_counted = True
        self._endpoint.counters.connections_opened += 1
        self._endpoint.add(self)
        self._transport.set_write_buffer_limits(high=self._endpoint.limits.write_buffer_high_bytes)
        if self._owner.on_connect is not None:
            self._owner.on_connect(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes from the peer. This is the hot path."""
        if self.closed:
            return
        endpoint = self._endpoint
        self._active_ms = endpoint.now_ms
        counters = endpoint.counters
        counters.bytes_received += (received_bytes := len(data))
        try:
            if (self._sniffs_tls or self._pipe is not None) and not (data := self._decrypt(data)):
                return
            commands = self._connection.receive_data(data)
        except RemoteProtocolError as error:
            self._peer_failed(error)
            return
        counters.frames_received += len(commands)
        if self._connection.buffered_bytes != self._buffered_bytes and not self._may_buffer():
            return
        if self._deferred:
            self._deferred += commands
        elif commands:
            self._dispatch_and_flush(commands)
        if self._connection.error is not None and not self.closed:
            self._peer_failed(self._connection.error)
        if received_bytes >= LARGE_BYTES and not self._deferred:
            self._yield_to_others()

    def eof_received(self) -> bool:
        """Record that the peer will send no more bytes. The transport then closes itself."""
        try:
            self._connection.receive_eof()
        except RemoteProtocolError as error:
            if not self.closed:
                self._peer_failed(error)
        return False

    def pause_writing(self) -> None:
        """Stop reading requests, on a server, until the peer has read its responses."""
        self._write_paused = True
        if self._owner.is_server and not self.closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Dispatch the deferred requests, then read again."""
        self._write_paused = False
        self._dispatch_deferred()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the pending requests and unregister the connection. Called once."""
        self.closed = True
        if not self.close_reason:
            self.close_reason = f"connection lost: {error}" if error else "closed by the peer"
        self._deferred.clear()
        self._out.clear()
        self._pending.fail_all(self.address, self.close_reason)
        self._endpoint.buffered_bytes -= self._buffered_bytes
        self._buffered_bytes = 0
        if self._is_counted:
            self._endpoint.counters.connections_closed += 1
            self._endpoint.remove(self)
            if self._owner.on_close is not None:
                self._owner.on_close(self)

    def expire(self, now_ms: int) -> bool:
        """Fail the requests that have timed out. Return whether other requests still wait."""
        self._endpoint.counters.timed_out_requests += self._pending.expire(now_ms, self.address)
        return len(self._pending) > 0

    def sweep(self, now_ms: int) -> None:
        """Close the connection if it is idle, if its TLS handshake is too slow, or if its close takes too long."""
        counters, limits = self._endpoint.counters, self._endpoint.limits
        if self.closed:
            if 0 <= self._closing_since_ms <= now_ms - limits.linger_ms:
                self.abort("the peer did not close the connection in time")
        elif now_ms - self._active_ms >= limits.idle_timeout_ms:
            counters.closed_idle += 1
            self.close(f"idle for {limits.idle_timeout_ms} ms")
        elif (
            self._pipe is not None
            and not self._pipe.handshake_done
            and now_ms - self._opened_ms >= limits.handshake_timeout_ms
        ):
            counters.closed_handshake += 1
            self.abort("TLS handshake took too long")

    def _dispatch_and_flush(self, commands: list[RemotingCommand]) -> None:
        self._flush_scheduled = True  # The flush below replaces a callback of the event loop.
        try:
            self._dispatch(commands)
        finally:
            self.flush()

    def _dispatch_deferred(self) -> None:
        """Dispatch the deferred requests, then read again."""
        if not self._may_read():
            return
        deferred, self._deferred = self._deferred, []
        self._dispatch_and_flush(deferred)
        if not self._deferred and self._may_read():
            self._transport.resume_reading()

    def _yield_to_others(self) -> None:
        """Continue in the next turn of the event loop. Without this, libuv reads up to 8 MiB more in this turn."""
        # Clients use the TLS of the event loop. It drops buffered data if reading is paused after the peer's EOF.
        if not self.closed and self._transport.get_extra_info("sslcontext") is None:
            self._transport.pause_reading()
            self._loop.call_soon(self._dispatch_deferred)

    def _may_read(self) -> bool:
        # A client reads even while it can't write: its peer may neither read nor write until we read its responses.
        return not self.closed and not (self._write_paused and self._owner.is_server)

    def _dispatch(self, commands: list[RemotingCommand]) -> None:
        owner, endpoint = self._owner, self._endpoint
        find, fallback = owner.handlers.get, owner.fallback or _unsupported
        in_flight_max = endpoint.limits.in_flight_max
        high_bytes = endpoint.limits.write_buffer_high_bytes
        began_ms = endpoint.monotonic_ms()
        bytes_since_check = 0
        for index, command in enumerate(commands):
            if bytes_since_check > _CLOCK_CHECK_BYTES and owner.is_server:
                bytes_since_check = 0
                if endpoint.monotonic_ms() - began_ms >= DISPATCH_SLICE_MS:
                    self._deferred = commands[index:]
                    self._yield_to_others()
                    return
            bytes_since_check += _REQUEST_BYTES if command.body is None else _REQUEST_BYTES + len(command.body)
            if command.flag & _RESPONSE:
                if not self._pending.resolve(command):
                    endpoint.counters.unknown_responses += 1
                continue
            if not command.flag & _ONE_WAY:
                if self.in_flight_count >= in_flight_max or endpoint.is_draining:
                    self._add(endpoint.refuse(command))
                    continue
                self.in_flight_count += 1
            try:
                reply = find(command.code, fallback)(self, command)
            except Exception as error:  # noqa: BLE001 # boundary: a failed request must not stop the others.
                reply = self._answer_error(command, error)
            if isinstance(reply, bytes):
                bytes_since_check += len(reply)
                if not command.flag & _ONE_WAY:
                    self.in_flight_count -= 1
                    self._out.append(reply)
                    self._out_bytes += len(reply)
            elif isinstance(reply, RemotingCommand):
                bytes_since_check += len(reply.body or b"")
                if not command.flag & _ONE_WAY:
                    self.in_flight_count -= 1
                    self._add(reply)
            elif reply is not None:
                endpoint.tasks.spawn(self._answer_later(command, reply))
            if self._out_bytes > high_bytes:
                self.flush()
                self._flush_scheduled = True
                if self._write_paused and owner.is_server:
                    self._deferred = commands[index + 1 :]
                    return
            if self.closed:
                return

    async def _answer_later(self, command: RemotingCommand, work: Awaitable[Reply]) -> None:
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 # boundary: as in _dispatch.
            reply = self._answer_error(command, error)
        if isinstance(reply, bytes):
            self.reply_frame(command, reply)
        elif isinstance(reply, RemotingCommand):
            self.reply(command, reply)

    def _answer_error(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        counters = self._endpoint.counters
        if isinstance(error, (HeaderError, BodyError)):
            counters.bad_requests += 1
            remark = str(error)
        else:
            counters.handler_errors += 1
            log.error("handler failed", code=command.code, peer=self.address, exc_info=error)
            remark = f"{type(error).__name__}: {error}"
            if isinstance(error, AssertionError) and self._owner.on_bug is not None:
                self._owner.on_bug(error)
        return RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, remark=remark[:REMARK_CHARS_MAX])

    def _finish_request(self) -> None:
        assert self.in_flight_count > 0, f"{self}: a request was answered twice"
        self.in_flight_count -= 1

    def _append(self, command: RemotingCommand) -> None:
        head = encode_head(command)
        self._out.append(head)
        self._out_bytes += len(head)
        if command.body is not None:
            self._out.append(command.body)
            self._out_bytes += len(command.body)

    def _add(self, reply: RemotingCommand) -> None:
        try:
            self._append(reply)
        except LocalProtocolError as error:  # Send an error response instead, so that the peer does not wait.
            log.exception("reply can't be sent", code=reply.code, peer=self.address)
            self._endpoint.counters.handler_errors += 1
            reply.code, reply.ext_fields, reply.body, reply.remark = ResponseCode.SYSTEM_ERROR, {}, None, str(error)
            self._append(reply)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _unwritten_bytes(self) -> int:
        return self._out_bytes + self._transport.get_write_buffer_size()

    def _may_buffer(self) -> bool:
        """Count the received bytes of an incomplete frame. Abort the connection if there are too many."""
        endpoint, buffered = self._endpoint, self._connection.buffered_bytes
        endpoint.buffered_bytes += buffered - self._buffered_bytes
        self._buffered_bytes = buffered
        if buffered <= MIB or endpoint.buffered_bytes <= endpoint.limits.buffered_bytes_max:
            return True
        endpoint.counters.closed_overfull += 1
        endpoint.buffered_bytes -= buffered  # Subtract now: otherwise the next peer could be closed as well.
        self._buffered_bytes = 0
        log.warning("too many bytes of incomplete frames", peer=self.address, bytes=buffered)
        self.abort("too many bytes of incomplete frames are buffered")
        return False

    def _is_overfull(self) -> bool:
        return self._unwritten_bytes() > self._endpoint.limits.write_buffer_bytes_max

    def _refuse_if_overfull(self) -> None:
        # Calls to the transport are slow. If writing is not paused, only the frames of this turn can be too large.
        if (self._write_paused or self._out_bytes > MIB) and self._is_overfull():
            raise BackpressureError(self.address, f"{self._unwritten_bytes()} bytes already wait to be sent")

    def _decrypt(self, data: bytes) -> bytes:
        if self._sniffs_tls:
            self._sniffs_tls = False
            if data[0] == TLS_HANDSHAKE_BYTE:
                assert self._owner.tls is not None
                self._pipe = TlsPipe(self._owner.tls)
            elif self._owner.tls_mode is TlsMode.ENFORCING:
                raise RemoteProtocolError("TLS is required here, and the first byte was not a TLS handshake")
            if self._pipe is None:
                self.flush()  # The queued frames waited for this decision.
        if self._pipe is None:
            return data
        was_done = self._pipe.handshake_done
        try:
            plain = self._pipe.receive(data)
        except RemoteProtocolError:
            self._endpoint.counters.tls_errors += 1
            raise
        finally:
            # Handshake records, or after an error the TLS alert with the reason.
            if outgoing := self._pipe.take_outgoing():
                self._transport.write(outgoing)
        if self._pipe.handshake_done and not was_done:
            self.flush()
        if self._pipe.ended:
            self.close("closed by the peer")
        return plain

    def _peer_failed(self, error: RemoteProtocolError) -> None:
        counters = self._endpoint.counters
        counters.protocol_errors += 1
        if isinstance(error, FrameTooLargeError):
            counters.frames_too_large += 1
        log.warning("peer broke the protocol", peer=self.address, error=str(error))
        self.close(str(error))


def _unsupported(channel: Channel, command: RemotingCommand) -> RemotingCommand:
    channel._endpoint.counters.unsupported_requests += 1  # noqa: SLF001 - this function acts as a method.
    remark = f" request type {command.code} not supported"
    return RemotingCommand.response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
