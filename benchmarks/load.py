"""Load generators that use less CPU than the programs that they measure.

Requests are encoded before the run. Answers are parsed only as far as necessary to see their success.

A closed loop keeps a number of requests in flight. An open loop sends at fixed moments, whether answers have come or
not, and measures each latency from the moment at which the request was due, so that a stall is not hidden.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

_LENGTH = struct.Struct(">I")


@dataclass(slots=True)
class Result:
    """The result of a run."""

    requests: int
    seconds: float
    failures: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a latency percentile in ms."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000


class FrameConnection(asyncio.Protocol):
    """One remoting connection. It counts the replies, and those with code 0.

    It calls back once for each batch of replies. If the connection is lost before `done` has a result, `done` fails.
    If `kept` is given, it gets the bytes of each reply, without the length word.
    """

    def __init__(
        self, on_replies: Callable[[int, int], None], done: asyncio.Future[None], kept: list[bytes] | None = None
    ) -> None:
        self._on_replies = on_replies
        self._done = done
        self._kept = kept
        self._buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass.

    def data_received(self, data: bytes) -> None:
        """Count the complete frames."""
        buffer = self._buffer + data if self._buffer else data
        at, count, good, end = 0, 0, 0, len(buffer)
        while end - at >= 8:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if end - at < 4 + length:
                break
            header_length = _LENGTH.unpack_from(buffer, at + 4)[0] & 0xFFFFFF
            good += b'"code":0,' in buffer[at + 8 : at + 8 + header_length] or buffer[at + 8 : at + 10] == b"\0\0"
            if self._kept is not None:
                self._kept.append(buffer[at + 4 : at + 4 + length])
            at += 4 + length
            count += 1
        self._buffer = buffer[at:]
        if count:
            self._on_replies(count, good)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the run at once, because no more answers can come."""
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection: {error or 'end of stream'}"))


async def frames_closed_loop(
    address: tuple[str, int],
    make_frame: Callable[[int], bytes],
    *,
    in_flight: int,
    requests: int,
    kept: list[bytes] | None = None,
) -> Result:
    """Keep `in_flight` requests in flight on one connection until `requests` are answered.

    If `kept` is given, it gets the bytes of each reply, without the length word.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    state = {"sent": 0, "answered": 0, "good": 0}

    def send(count: int) -> None:
        count = min(count, requests - state["sent"])
        if count > 0:
            first = state["sent"]
            state["sent"] += count
            connection.transport.write(b"".join([make_frame(first + i) for i in range(count)]))

    def on_replies(count: int, good: int) -> None:
        state["answered"] += count
        state["good"] += good
        if state["answered"] >= requests:
            done.set_result(None)
        else:
            send(count)

    _, connection = await loop.create_connection(lambda: FrameConnection(on_replies, done, kept), *address)
    began = time.perf_counter()
    send(in_flight)
    await asyncio.wait_for(done, 120)
    seconds = time.perf_counter() - began
    connection.transport.close()
    return Result(requests, seconds, failures=requests - state["good"])


async def frames_open_loop(
    address: tuple[str, int], make_frame: Callable[[int], bytes], *, connections: int, rate: float, requests: int
) -> Result:
    """Send at fixed moments, on each connection in turn; measure latencies from the moment when each request was due.

    Answers are matched to requests by their order. The orders are equal only if no request fails, so the latencies of a
    run with failures mean nothing.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    state = {"answered": 0, "good": 0}
    latencies: list[float] = []
    dues: list[deque[float]] = [deque() for _ in range(connections)]

    def on_replies(due: deque[float], count: int, good: int) -> None:
        now = time.perf_counter()
        latencies.extend(now - due.popleft() for _ in range(count))
        state["answered"] += count
        state["good"] += good
        if state["answered"] == requests:
            done.set_result(None)

    opened = [
        (await loop.create_connection(lambda due=due: FrameConnection(partial(on_replies, due), done), *address))[1]  # type: ignore[misc]
        for due in dues
    ]
    began = time.perf_counter()
    for number in range(requests):
        due_at = began + number / rate
        delay = due_at - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        if done.done():  # The connection was lost.
            break
        dues[number % connections].append(due_at)
        opened[number % connections].transport.write(make_frame(number))
    await asyncio.wait_for(done, 120)
    seconds = time.perf_counter() - began
    for connection in opened:
        connection.transport.close()
    return Result(requests, seconds, failures=requests - state["good"], latencies_s=latencies)


class HttpConnection(asyncio.Protocol):
    """One keep-alive HTTP connection; Content-Length separates the answers."""

    def __init__(self, on_answer: Callable[["HttpConnection", bool], None], success: bytes) -> None:
        self._on_answer = on_answer
        self._success = success
        self._buffer = b""
        self.transport: asyncio.Transport
        self.due: deque[float] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass.

    def data_received(self, data: bytes) -> None:
        """Report each complete answer."""
        buffer = self._buffer + data if self._buffer else data
        while True:
            head = buffer.find(b"\r\n\r\n")
            if head < 0:
                break
            length_at = buffer.lower().find(b"content-length:", 0, head)
            assert length_at >= 0, buffer[:200]
            length = int(buffer[length_at + 15 : buffer.find(b"\r", length_at)])
            end = head + 4 + length
            if len(buffer) < end:
                break
            good = buffer.startswith(self._success)
            buffer = buffer[end:]
            self._on_answer(self, good)
        self._buffer = buffer


async def http_closed_loop(
    address: tuple[str, int], make_request: Callable[[int], bytes], *, connections: int, requests: int, success: bytes
) -> Result:
    """Send one request at a time on each connection until `requests` are answered."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    state = {"sent": 0, "answered": 0, "good": 0}

    def send(connection: HttpConnection) -> None:
        if state["sent"] < requests:
            connection.transport.write(make_request(state["sent"]))
            state["sent"] += 1

    def on_answer(connection: HttpConnection, good: bool) -> None:
        state["answered"] += 1
        state["good"] += good
        if state["answered"] == requests:
            done.set_result(None)
        else:
            send(connection)

    opened = [
        (await loop.create_connection(lambda: HttpConnection(on_answer, success), *address))[1]
        for _ in range(connections)
    ]
    began = time.perf_counter()
    for connection in opened:
        send(connection)
    await asyncio.wait_for(done, 120)
    seconds = time.perf_counter() - began
    for connection in opened:
        connection.transport.close()
    return Result(requests, seconds, failures=requests - state["good"])


async def http_open_loop(
    address: tuple[str, int],
    make_request: Callable[[int], bytes],
    *,
    connections: int,
    rate: float,
    requests: int,
    success: bytes,
) -> Result:
    """Send at fixed moments, each on a free connection; measure latencies from the moment when each request was due.

    Clients with a pool do the same. The connections are used in turn, so that none is idle long enough for the server
    to close it. If no connection is free, the request is sent on a busy one.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    state = {"answered": 0, "good": 0}
    latencies: list[float] = []
    free: deque[HttpConnection] = deque()

    def on_answer(connection: HttpConnection, good: bool) -> None:
        latencies.append(time.perf_counter() - connection.due.popleft())
        if not connection.due:
            free.append(connection)
        state["answered"] += 1
        state["good"] += good
        if state["answered"] == requests:
            done.set_result(None)

    opened = [
        (await loop.create_connection(lambda: HttpConnection(on_answer, success), *address))[1]
        for _ in range(connections)
    ]
    free += opened
    began = time.perf_counter()
    for number in range(requests):
        due = began + number / rate
        delay = due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        connection = free.popleft() if free else opened[number % connections]
        connection.due.append(due)
        connection.transport.write(make_request(number))
    await asyncio.wait_for(done, 120)
    seconds = time.perf_counter() - began
    for connection in opened:
        connection.transport.close()
    return Result(requests, seconds, failures=requests - state["good"], latencies_s=latencies)
