"""Subscription: the consumer's side of a stream, with batches to iterate over and calls to acknowledge them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gantry.http.errors import GantryError, GantryProblem, Problem
from gantry.http.results import Message
from gantry.http.streamframes import Assigned, AssignedQueue, Credit, ErrorFrame, Messages, State

# Largest number of kept problems that no call raised; a new problem replaces the oldest.
PROBLEMS_MAX: Final = 100


class Connection(Protocol):
    """The part of a stream that a subscription uses."""

    def queue_acks(self, subscription: "Subscription", receipts: Sequence[str]) -> None:
        """Send receipts soon, together with others."""
        ...

    async def flush(self) -> None:
        """Send the waiting receipts."""
        ...

    async def ask(self, frame: dict[str, Any]) -> Any:
        """Send a frame and return its answer."""
        ...

    def send_soon(self, frame: Mapping[str, Any]) -> None:
        """Send a frame without waiting for it."""
        ...

    def forget(self, subscription: "Subscription") -> None:
        """Remove the subscription from the stream."""
        ...


def subscribe_request(
    group: str,
    topic: str,
    wanted: str | Mapping[str, str],
    *,
    credit: Mapping[str, int | None],
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Return a subscribe frame without its id. Values that are None are left to the gateway's defaults."""
    request: dict[str, Any] = {"type": "subscribe", "group": group, "topic": topic, "filter": wanted}
    request["credit"] = {name: value for name, value in credit.items() if value is not None}
    request |= {name: value for name, value in settings.items() if value is not None}
    return request


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one queue, in its order.

    Attributes:
        receipt: Receipt for all messages of the batch.
        session: The stream's session in which they came; their receipts are invalid in any other session.
    """

    messages: Sequence[Message]
    receipt: str
    session: str

    def __len__(self) -> int:
        return len(self.messages)


class Subscription:
    """A subscription of a stream to a topic for a group.

    Iteration yields batches until the subscription ends. A batch counts as consumed when it is acknowledged.
    Unacknowledged batches come again, also after a reconnect, so a message may come twice. If the group is deleted, the
    iteration ends with GantryProblem (404).

    Attributes:
        request: The subscribe request, sent again after a reconnect.
        assigned: The queues that this instance holds now.
        skipped: Number of messages before the offsets at which the group began. The group never gets them.
        problems: Problems that no call raises: refused receipts, damaged records.
    """

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        self.request = request
        self.name: str | None = None
        self.session = ""
        self.skipped = 0
        self.assigned: Sequence[AssignedQueue] = ()
        self.problems: deque[Problem] = deque(maxlen=PROBLEMS_MAX)
        self.state: State | None = None
        self._connection = connection
        self._batches: deque[Batch] = deque()
        self._news = asyncio.Event()
        self._was_assigned = asyncio.Event()
        self._ended = False
        self._error: GantryError | None = None

    @property
    def group(self) -> str:
        """The consumer group."""
        return str(self.request["group"])

    @property
    def topic(self) -> str:
        """The topic."""
        return str(self.request["topic"])

    @property
    def is_open(self) -> bool:
        """Whether the subscription is active on the stream's current connection."""
        return self.name is not None

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while not self._batches:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._batches.popleft()

    async def next(self, *, timeout_ms: int) -> Batch | None:
        """Return the next batch, or None if none came in time or the subscription has ended."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await anext(self)
        except (TimeoutError, StopAsyncIteration):
            return None

    async def wait_assigned(self) -> Sequence[AssignedQueue]:
        """Wait until the group has assigned its queues, and return the queues of this instance."""
        await self._was_assigned.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self.assigned

    async def ack(self, consumed: Batch | Iterable[Message], *, wait: bool = False) -> None:
        """Acknowledge messages.

        This returns at once: the stream sends acks together with others that come soon. With `wait`, it returns when
        the gateway has accepted the acks. A batch of an earlier connection is ignored, because its messages come again.
        For single messages of an earlier connection, the gateway refuses each receipt (`problems`).
        """
        receipts = self._receipts(consumed)
        if not receipts or self.name is None:
            return
        if wait:
            await self._connection.flush()
            await self._connection.ask({"type": "ack", "subscription": self.name, "receipts": receipts})
        else:
            self._connection.queue_acks(self, receipts)

    async def nack(self, returned: Batch | Iterable[Message], *, delay: str | None = None) -> None:
        """Return messages that could not be processed. They come again, and after the last attempt are dead letters.

        Their broker delivers them again after the delay, perhaps to another member of the group. They come with their
        first topic, a higher `reconsume_times`, and a new receipt. If several subscriptions of the stream have the
        group, the first one gets them; look at `topic`. An orderly subscription gets them again itself: their queues
        wait for the delay.

        Args:
            returned: At most 1,000 messages, or a batch; one of an earlier connection is ignored, as by `ack`.
            delay: Time until then, such as `500ms` or `30s`. None: by the group's retry policy; orderly: 1 s.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: There is no connection, it broke, or no answer came in time.
            GantryError: The error that ended the stream.
        """
        receipts = self._receipts(returned)
        if receipts and self.name is not None:
            await self._connection.flush()
            frame = {"type": "nack", "subscription": self.name, "receipts": receipts}
            await self._connection.ask(frame if delay is None else {**frame, "delay": delay})

    async def add_credit(self, *, messages: int = 0, size_bytes: int = 0) -> Credit:
        """Let the gateway send more, and return its credit now."""
        state: State = await self._send_frame("credit", messages=messages, bytes=size_bytes)
        return state.credit

    async def pause(self) -> None:
        """Stop the gateway from sending until `resume`."""
        await self._send_frame("pause")

    async def resume(self) -> None:
        """End a pause."""
        await self._send_frame("resume")

    async def unsubscribe(self) -> None:
        """End the subscription. Unacknowledged messages go to other members of the group."""
        if self.name is not None:
            await self._connection.flush()
            await self._send_frame("unsubscribe")
        self._connection.forget(self)
        self.end(None)

    def _receipts(self, messages: Batch | Iterable[Message]) -> list[str]:
        if isinstance(messages, Batch):
            return [messages.receipt] if messages.session == self.session else []
        return [message.receipt for message in messages]

    def opened(self, name: str, session: str, *, skipped: int) -> None:
        """Note that the subscription is active on a new connection."""
        self.name, self.session = name, session
        self.skipped += skipped

    def lost(self) -> None:
        """Note that the connection broke. Drop the batches that the consumer has not taken, because they come again."""
        self.name, self.session = None, ""
        self.assigned = ()
        self._was_assigned.clear()
        self._batches.clear()

    def take(self, frame: Messages | Assigned | State | ErrorFrame) -> None:
        """Handle a frame for this subscription."""
        if isinstance(frame, Messages):
            self._batches.append(Batch(frame.messages, frame.receipt, self.session))
            self._news.set()
        elif isinstance(frame, Assigned):
            self.assigned = frame.queues
            self._was_assigned.set()
        elif isinstance(frame, State):
            self.state = frame
            if frame.reason == "unsubscribed" and frame.id is None:  # Its topic or group was deleted.
                self._connection.forget(self)
                self.end(GantryProblem(self.problems[-1]) if self.problems else None)
        else:
            self.problems.append(frame.problem)

    def end(self, error: GantryError | None) -> None:
        """End the iteration, with the error if there is one."""
        self.name = None
        self._ended = True
        self._error = error
        self._news.set()
        self._was_assigned.set()

    async def _send_frame(self, kind: str, **fields: Any) -> Any:
        return await self._connection.ask({"type": kind, "subscription": self.name or "", **fields})
