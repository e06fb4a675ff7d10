"""The WebSocket client: consume by push and publish over one connection, which is made again when it breaks.

Theory of operation. One task owns the connection: it reads frames until there are no more, then connects again after
a while (longer each time, never the same) and subscribes to everything again. What was under way is told at once: a
publish without an answer has the outcome `unknown`. What was pushed and not acked comes again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed

from gantry.http.errors import (
    NOT_STORED,
    UNKNOWN,
    GantryConnectionError,
    GantryError,
    GantryProblem,
    GantryProtocolError,
    StreamClosedError,
)
from gantry.http.handshake import ABNORMAL_CLOSURE, Opener, Socket, open_stream
from gantry.http.pendinganswers import OnAnswer, PendingAnswers
from gantry.http.results import BatchResult, OutgoingMessage
from gantry.http.stack import read_stack
from gantry.http.streamframes import (
    CODINGS,
    Assigned,
    ErrorFrame,
    Goodbye,
    Messages,
    Published,
    ServerFrame,
    State,
    Subscribed,
    Welcome,
)
from gantry.http.subscription import Subscription
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskBag

TIMEOUT_MS: Final = 10_000
RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 10_000
# A connection that lasted this long has worked: the waits start anew.
STEADY_S: Final = 10.0
# After these the same would happen again.
_FINAL_CODES: Final = frozenset({1000, 4400, 4401, 4403, 4409, 4429})


class StreamClient:
    """A stream to one gateway.

    Use it as `async with StreamClient(url, key) as stream:`; the first connection is made there, and its failure raised.

    Concurrency: one event loop. Subscriptions may be consumed by one task each; everything else by any.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        ticket: str | None = None,
        coding: str = "msgpack",
        client_name: str | None = None,
        reconnect: bool = True,
        timeout_ms: int = TIMEOUT_MS,
        rng: Rng | None = None,
        opener: Opener = open_stream,
    ) -> None:
        """Make a client.

        Args:
            base_url: Of the gateway, `http://…` or `https://…`.
            api_key: The key; or a one-use `ticket`, with which no reconnecting is possible.
            ticket: From `POST /v1/tickets`.
            coding: `msgpack`, or `json` to read along.
            client_name: For people.
            reconnect: Connect again when the connection breaks.
            timeout_ms: For an answer, and for connecting.
            rng: For the waits between attempts.
            opener: Opens the WebSocket; for tests.
        """
        self._url = base_url.rstrip("/").replace("http", "ws", 1) + "/v1/stream"
        if ticket is not None:
            self._url += f"?ticket={quote(ticket, safe='')}"
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._coding = CODINGS[coding]()
        self._client_name = client_name
        self._reconnect = reconnect and ticket is None
        self._timeout_s = timeout_ms / 1_000
        self._rng = rng or Rng()
        self._opener = opener
        self._socket: Socket | None = None
        self._goodbye: Goodbye | None = None
        self._subscriptions: list[Subscription] = []
        self._by_name: dict[str, Subscription] = {}
        self._pending = PendingAnswers()
        # As many publishes at once as the gateway takes; the welcome says how many.
        self._publishes = asyncio.Semaphore(1)
        self._acks: dict[str, list[str]] = {}
        self._closing = False
        self._ended: GantryError | None = None
        self._tasks = TaskBag("stream", self._task_failed)
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
            GantryConnectionError: It can't be reached.
            StreamClosedError: It said goodbye at once, as it does to a wrong ticket.
        """
        assert self._socket is None, "opened twice"
        self._tasks.spawn(self._run(await self._connect()))

    async def close(self) -> None:
        """Say what is acked, close the connection and end all subscriptions."""
        self._closing = True
        await self.flush()
        if self._socket is not None:
            await self._socket.close()
        await self._tasks.cancel()
        self._end(None)

    async def subscribe(
        self,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        start: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int | None = None,
        batch: int | None = None,
    ) -> Subscription:
        """Become a consumer of the group.

        Args:
            group: The group; `start` must be given where it does not exist yet.
            topic: The topic; it must exist.
            expression: Tags separated by `||`.
            start: `first`, `last` or a time, for queues that the group has no offset for; `last` unless given. The
                subscription's `skipped` says how many messages lie before it.
            credit_messages: How many messages may be in flight.
            credit_bytes: How many bytes of them.
            batch: The most messages at a time.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: The connection broke, or no answer came in time.
        """
        request: dict[str, Any] = {"type": "subscribe", "group": group, "topic": topic, "filter": expression}
        if start is not None:
            request["from"] = start
        credit = {"messages": credit_messages, "bytes": credit_bytes}
        request["credit"] = {name: value for name, value in credit.items() if value is not None}
        if batch is not None:
            request["batch"] = batch
        subscription = Subscription(self, request)
        await self._subscribe(subscription)
        self._subscriptions.append(subscription)
        return subscription

    async def publish(self, topic: str, messages: Sequence[OutgoingMessage]) -> BatchResult:
        """Send messages; each has its own result. Waits while as many are under way as the gateway takes.

        Raises:
            GantryProblem: All of them were refused; its outcome is `not_stored`.
            GantryConnectionError: No answer came; `outcome` says what is known.
        """
        frame = {"type": "publish", "topic": topic, "messages": self._coding.messages(messages)}
        async with self._publishes:
            answer = await self.ask(frame)
        assert isinstance(answer, Published), "a publish is answered by published or an error"
        return BatchResult(answer.results, answer.stored, answer.not_stored, answer.unknown)

    async def ask(self, frame: dict[str, Any], *, on_answer: OnAnswer | None = None) -> Any:
        """Send a frame and return its answer; `on_answer` gets it before any later frame is looked at.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: The connection is away or broke, or no answer came in time.
        """
        if self._ended is not None:
            # Without the places where it was raised before.
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

    def settle(self, subscription: Subscription, receipts: Sequence[str]) -> None:
        """Send receipts, together with others that come before the next turn of the loop."""
        if subscription.name is None:
            return
        if not self._acks:
            self._tasks.spawn(self._send_acks_soon())
        self._acks.setdefault(subscription.name, []).extend(receipts)

    def forget(self, subscription: Subscription) -> None:
        """Do not subscribe again for it."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
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
                is_final = error.code in _FINAL_CODES if self._goodbye is None else not self._goodbye.retry
                if is_final or not self._reconnect:
                    self._end(error)
                    return
                attempts = min(attempts + 1, 16)
                await asyncio.sleep(self._delay_s(attempts))
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
            self._url, self._coding, headers=self._headers, client_name=self._client_name, timeout_s=self._timeout_s
        )
        self._goodbye = None
        if self.connections_count == 0:
            self._publishes = asyncio.Semaphore(self.welcome.limits.get("publishes_pending_max", 1))
        self._socket = socket
        self.connections_count += 1
        return socket

    def _delay_s(self, attempts: int) -> float:
        """Return how long to wait before this attempt, the first being 1: longer each time, never the same."""
        after_ms = self._goodbye.after_ms if self._goodbye is not None and attempts == 1 else 0
        delay_ms = max(after_ms, min(RETRY_FIRST_MS * 2 ** (attempts - 1), RETRY_MAX_MS))
        return self._rng.jitter_ms(delay_ms, 0.3) / 1_000

    async def _read(self, socket: Socket) -> StreamClosedError:
        """Read frames until the connection ends; return how it did."""
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
            self._tell(frame.subscription, frame)
        elif isinstance(frame, ErrorFrame):
            # A refused receipt is no answer to its ack: the state that follows is.
            is_answer = frame.receipt is None and self._pending.fail(frame.id, GantryProblem(frame.problem))
            if not is_answer and frame.subscription is not None:
                self._tell(frame.subscription, frame)
        elif not isinstance(frame, Welcome):
            self._pending.answer(frame.id, frame)
            if isinstance(frame, State):
                self._tell(frame.subscription, frame)

    def _tell(self, name: str, frame: Messages | Assigned | State | ErrorFrame) -> None:
        subscription = self._by_name.get(name)
        if subscription is not None:
            subscription.take(frame)

    async def _subscribe(self, subscription: Subscription) -> None:
        def opened(frame: ServerFrame) -> None:
            # At once, not when the task runs again: frames about it may stand behind the answer in the same read.
            assert isinstance(frame, Subscribed), "a subscribe is answered by subscribed or an error"
            assert self.welcome is not None, "nothing is answered before the welcome"
            self._by_name[frame.subscription] = subscription
            subscription.opened(frame.subscription, self.welcome.session, skipped=frame.skipped)

        await self.ask(subscription.request, on_answer=opened)

    async def _subscribe_again(self) -> None:
        for subscription in list(self._subscriptions):
            while True:
                try:
                    await self._subscribe(subscription)
                except GantryConnectionError:
                    return  # The next connection will try.
                except GantryProblem as problem:
                    if problem.retryable:
                        await asyncio.sleep(self._rng.jitter_ms(RETRY_FIRST_MS * 10) / 1_000)
                        continue
                    self.forget(subscription)
                    subscription.end(problem)
                except GantryError:
                    return
                break

    def _lost(self, error: StreamClosedError) -> None:
        """Tell everybody that waits that the connection is gone."""
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

    async def _send_acks_soon(self) -> None:
        await asyncio.sleep(0)
        await self.flush()

    async def flush(self) -> None:
        """Send the acks that wait for company."""
        acks, self._acks = self._acks, {}
        for name, receipts in acks.items():
            try:
                await self._send({"type": "ack", "subscription": name, "receipts": receipts})
            except GantryConnectionError:
                return  # What was not acked comes again.

    def _task_failed(self, error: BaseException) -> None:
        self._end(error if isinstance(error, GantryError) else GantryProtocolError(f"the stream failed: {error!r}"))
