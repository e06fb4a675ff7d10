"""The core of the WebSocket client: one connection, which is made again when it breaks, and its subscriptions.

Theory of operation. One task owns the connection. It reads frames until the connection ends, waits, connects again and
subscribes again for all subscriptions. The wait becomes longer with each attempt and is random. Calls in progress fail
at once: a publish without an answer has the outcome `unknown`. The gateway redelivers pushed messages without
an ack. reconnecting.py decides when to connect again. openapi/websocket.md describes all frames.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed

from gantry.http.checks import OnCheck, answer_to, hello_of
from gantry.http.errors import (
    NOT_STORED,
    UNKNOWN,
    GantryConnectionError,
    GantryError,
    GantryProblem,
    GantryProtocolError,
    StreamClosedError,
)
from gantry.http.handshake import ABNORMAL_CLOSURE, Socket, StreamOpener, open_stream
from gantry.http.pendinganswers import OnAnswer, PendingAnswers
from gantry.http.reconnecting import RETRY_FIRST_MS, STEADY_S, delay_s, is_final
from gantry.http.stack import read_stack
from gantry.http.streamframes import (
    CODINGS,
    Assigned,
    Check,
    ErrorFrame,
    Goodbye,
    Messages,
    ServerFrame,
    State,
    Subscribed,
    Welcome,
)
from gantry.http.subscription import Subscription
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet

TIMEOUT_MS: Final = 10_000


class StreamCore:
    """The connection of a stream, and its subscriptions across reconnects.

    `ask`, `queue_acks`, `send_soon`, `flush` and `forget` are for `Subscription`.

    Concurrency: one event loop. One task may consume each subscription; any task may call everything else.

    Attributes:
        welcome: The gateway's first frame on the latest connection: session and limits; None before the first one.
        connections_count: The number of connections so far; more than 1 after a reconnect.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        ticket: str | None = None,
        coding: str = "msgpack",
        client_name: str | None = None,
        producer_groups: Sequence[str] = (),
        on_check: OnCheck | None = None,
        reconnect: bool = True,
        timeout_ms: int = TIMEOUT_MS,
        rng: Rng | None = None,
        opener: StreamOpener = open_stream,
    ) -> None:
        """Make a client.

        Args:
            base_url: URL of the gateway, `http://…` or `https://…`.
            api_key: API key. Pass either a key or a one-use `ticket`; a client with a ticket can't reconnect.
            ticket: Ticket from `POST /v1/tickets`.
            coding: `msgpack`, or `json` for frames that people can read.
            client_name: Name of the client, for people.
            producer_groups: Producer groups whose open transactions this client decides; they need `on_check`.
            on_check: Decides an open transaction: `commit`, `rollback` or `unknown`. The broker waits 10 s for it, and
                asks again later. An exception counts as `unknown`, and is logged.
            reconnect: Whether to connect again when the connection breaks.
            timeout_ms: Time-out for each answer, for connecting, and for the welcome.
            rng: Random numbers for the waits between attempts.
            opener: Opens the WebSocket; for tests.
        """
        self._url = base_url.rstrip("/").replace("http", "ws", 1) + "/v1/stream"
        if ticket is not None:
            self._url += f"?ticket={quote(ticket, safe='')}"
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._coding = CODINGS[coding]()
        self._hello = hello_of(client_name, producer_groups, on_check)
        self._on_check = on_check
        self._reconnect = reconnect and ticket is None
        self._timeout_s = timeout_ms / 1_000
        self._rng = rng or Rng()
        self._opener = opener
        self._socket: Socket | None = None
        self._goodbye: Goodbye | None = None
        self._subscriptions: list[Subscription] = []
        self._by_name: dict[str, Subscription] = {}
        self._pending = PendingAnswers()
        # The gateway limits the number of publishes at once; its welcome gives the limit.
        self._publishes = asyncio.Semaphore(1)
        self._acks: dict[str, list[str]] = {}
        self._closing = False
        self._ended: GantryError | None = None
        self._tasks = TaskSet("stream", self._task_failed)
        self.welcome: Welcome | None = None
        self.connections_count = 0

    @classmethod
    def from_stack(cls, data_dir: str | Path, **options: Any) -> Self:
        """Return a client of the stack that `gantry up --data DIR` runs. Raises NoStackError."""
        stack = read_stack(data_dir)
        return cls(stack.http, stack.api_key, **options)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect.

        Raises:
            GantryProblem: The gateway refused the handshake.
            GantryConnectionError: The gateway can't be reached.
            StreamClosedError: The gateway said goodbye at once, for example because the ticket is wrong.
        """
        assert self._socket is None, "opened twice"
        self._tasks.spawn(self._run(await self._connect()))

    async def close(self) -> None:
        """Send the waiting acks, close the connection and end all subscriptions."""
        self._closing = True
        await self.flush()
        if self._socket is not None:
            await self._socket.close()
        await self._tasks.cancel()
        self._end(None)

    async def ask(self, frame: dict[str, Any], *, on_answer: OnAnswer | None = None) -> Any:
        """Send a frame and return its answer; `on_answer` gets the answer before any later frame is handled.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: There is no connection, it broke, or no answer came in time.
            GantryError: The error that ended the stream.
        """
        if self._ended is not None:
            # The same error may be raised several times, so drop the traceback of earlier ones.
            raise self._ended.with_traceback(None)
        frame_id, answer = self._pending.add(on_answer)
        try:
            await self._send({**frame, "id": frame_id})
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            detail = f"{frame['type']}: no answer within {self._timeout_s:g} s"
            raise GantryConnectionError(detail, outcome=UNKNOWN) from None
        finally:
            self._pending.drop(frame_id)

    def queue_acks(self, subscription: Subscription, receipts: Sequence[str]) -> None:
        """Acknowledge by receipts. They are sent in the next turn of the loop, together with others queued by then."""
        if subscription.name is None:
            return
        if not self._acks:
            self._tasks.spawn(self.flush(soon=True))
        self._acks.setdefault(subscription.name, []).extend(receipts)

    async def flush(self, *, soon: bool = False) -> None:
        """Send the waiting acks; with `soon`, in the next turn of the loop. For `Subscription`."""
        if soon:
            await asyncio.sleep(0)
        acks, self._acks = self._acks, {}
        for name, receipts in acks.items():
            await self._send_if_connected({"type": "ack", "subscription": name, "receipts": receipts})

    def send_soon(self, frame: Mapping[str, Any]) -> None:
        """Send a frame without waiting for it. For `Subscription`."""
        self._tasks.spawn(self._send_if_connected(frame))

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription, so that the stream does not subscribe again for it."""
        self._subscriptions = [each for each in self._subscriptions if each is not subscription]
        self._by_name = {name: each for name, each in self._by_name.items() if each is not subscription}

    async def _run(self, socket: Socket) -> None:
        clock = asyncio.get_running_loop().time
        attempts = 0
        while True:
            opened_at = clock()
            error = await self._read(socket)
            self._lost(error)
            if self._closing:
                return
            if clock() - opened_at > STEADY_S:
                attempts = 0
            while True:
                if not self._reconnect or is_final(error.code, self._goodbye):
                    self._end(error)
                    return
                attempts = min(attempts + 1, 16)
                await asyncio.sleep(delay_s(attempts, self._goodbye, self._rng))
                try:
                    socket = await self._connect()
                    break
                except StreamClosedError as closed:
                    error, self._goodbye = closed, None
                except (GantryConnectionError, GantryProtocolError):
                    continue
                except GantryProblem as problem:
                    if not problem.retryable and problem.status < 500:
                        self._end(problem)
                        return
            self._tasks.spawn(self._subscribe_again())

    async def _connect(self) -> Socket:
        socket, self.welcome = await self._opener(
            self._url, self._coding, headers=self._headers, hello=self._hello, timeout_s=self._timeout_s
        )
        self._goodbye = None
        if self.connections_count == 0:  # Later, running publishes hold permits of the first semaphore.
            self._publishes = asyncio.Semaphore(self.welcome.limits.get("publishes_pending_max", 1))
        self._socket = socket
        self.connections_count += 1
        return socket

    async def _read(self, socket: Socket) -> StreamClosedError:
        """Read frames until the connection ends; return the reason for its end."""
        decode, dispatch = self._coding.decode, self._dispatch
        try:
            while True:
                frame = decode(await socket.recv())
                if frame is not None:
                    dispatch(frame)
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else ABNORMAL_CLOSURE
            reason = self._goodbye.reason if self._goodbye is not None else str(closed)
            return StreamClosedError(code, reason)
        except GantryProtocolError as error:
            await socket.close(1002)
            return StreamClosedError(1002, str(error))

    def _dispatch(self, frame: ServerFrame) -> None:
        if isinstance(frame, Goodbye):
            self._goodbye = frame
        elif isinstance(frame, (Messages, Assigned)):
            self._route_frame(frame.subscription, frame)
        elif isinstance(frame, ErrorFrame):
            # An ack with an id gets one error frame for each refused receipt, and then a state frame as its answer.
            is_answer = frame.receipt is None and self._pending.fail(frame.id, GantryProblem(frame.problem))
            if not is_answer and frame.subscription is not None:
                self._route_frame(frame.subscription, frame)
        elif isinstance(frame, Check):
            self._tasks.spawn(self._decide(frame))
        elif not isinstance(frame, Welcome):
            is_awaited = self._pending.answer(frame.id, frame)
            if isinstance(frame, State):
                self._route_frame(frame.subscription, frame)
            elif isinstance(frame, Subscribed) and not is_awaited:
                # Its caller no longer waits. Its messages would stay in flight until the connection ends.
                self._unsubscribe(frame.subscription)

    def _route_frame(self, name: str, frame: Messages | Assigned | State | ErrorFrame) -> None:
        subscription = self._by_name.get(name)
        if subscription is not None:
            subscription.take(frame)

    async def _subscribe(self, subscription: Subscription, *, is_new: bool = False) -> None:
        def opened(frame: ServerFrame) -> None:
            # Now, not when the task runs again: the same read may contain frames for it, or the connection's end.
            assert isinstance(frame, Subscribed), "a subscribe is answered by subscribed or an error"
            assert self.welcome is not None, "nothing is answered before the welcome"
            if is_new:
                self._subscriptions.append(subscription)
            elif subscription not in self._subscriptions:  # The consumer has unsubscribed while it was renewed.
                self._unsubscribe(frame.subscription)
                return
            self._by_name[frame.subscription] = subscription
            subscription.opened(frame.subscription, self.welcome.session, skipped=frame.skipped)

        await self.ask(subscription.request, on_answer=opened)

    def _unsubscribe(self, name: str) -> None:
        self.send_soon({"type": "unsubscribe", "subscription": name})

    async def _decide(self, check: Check) -> None:
        if self._on_check is not None:
            await self._send_if_connected(await answer_to(check, self._on_check))

    async def _subscribe_again(self) -> None:
        connection = self.connections_count
        for subscription in list(self._subscriptions):
            while subscription in self._subscriptions:
                if self.connections_count != connection:
                    return  # The connection broke during a wait below. The next one has its own task.
                try:
                    await self._subscribe(subscription)
                except GantryConnectionError:
                    return  # The next connection subscribes again.
                except GantryProblem as problem:
                    if problem.retryable:
                        await asyncio.sleep(self._rng.jitter_ms(RETRY_FIRST_MS * 10) / 1_000)
                        continue
                    self.forget(subscription)
                    subscription.end(problem)
                except GantryError:
                    return  # The stream has ended.
                break

    def _lost(self, error: StreamClosedError) -> None:
        """Report the lost connection to all waiting calls and all subscriptions."""
        self._socket = None
        self._by_name.clear()
        self._acks.clear()
        self._pending.fail_all(GantryConnectionError(str(error), outcome=UNKNOWN))
        for subscription in self._subscriptions:
            subscription.lost()

    def _end(self, error: GantryError | None) -> None:
        if self._ended is None:
            self._ended = error or StreamClosedError(1000, "closed by this client")
            for subscription in self._subscriptions:
                subscription.end(error)

    async def _send(self, frame: Mapping[str, Any]) -> None:
        socket = self._socket
        if socket is None:
            raise GantryConnectionError("the stream is not connected now", outcome=NOT_STORED)
        try:
            await socket.send(self._coding.encode(frame))
        except ConnectionClosed as error:
            raise GantryConnectionError(f"the stream broke: {error}", outcome=UNKNOWN) from error

    async def _send_if_connected(self, frame: Mapping[str, Any]) -> None:
        """Send a frame. Without a connection this does nothing, because the gateway has dropped its subscriptions."""
        with contextlib.suppress(GantryConnectionError):
            await self._send(frame)

    def _task_failed(self, error: BaseException) -> None:
        self._end(error if isinstance(error, GantryError) else GantryProtocolError(f"the stream failed: {error!r}"))
