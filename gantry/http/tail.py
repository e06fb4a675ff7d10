"""Tail: the client's side of a live tail, which shows the messages of a topic without a group."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gantry.http.results import Message
from gantry.http.streamframes import Assigned, ErrorFrame, Messages, State
from gantry.http.subscription import Batch, Connection, Subscription

CREDIT_MESSAGES: Final = 2_000
CREDIT_BYTES: Final = 16 * 1024 * 1024


def tail_request(
    topic: str,
    wanted: str | Mapping[str, str],
    *,
    start: str | None,
    rate_per_s: int | None,
    batch: int | None,
) -> dict[str, Any]:
    """Return a subscribe frame without its id. Values that are None are left to the gateway's defaults."""
    request: dict[str, Any] = {"type": "subscribe", "mode": "tail", "topic": topic, "filter": wanted}
    request["credit"] = {"messages": CREDIT_MESSAGES, "bytes": CREDIT_BYTES}
    more = {"from": start, "rate_per_s": rate_per_s, "batch": batch}
    return request | {name: value for name, value in more.items() if value is not None}


class Tail(Subscription):
    """A live tail of a topic.

    Iteration yields batches until the tail ends. If the consumer is slow, the gateway skips messages and counts them.
    After a reconnect the tail goes on with new messages. If the topic is deleted, iteration raises GantryProblem.

    Attributes:
        skipped: Number of stored messages that the gateway has not looked at, without those during a reconnect.
        reconnects_count: Number of reconnects; messages that were stored meanwhile are missing.
    """

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        super().__init__(connection, request)
        self.reconnects_count = 0
        self._skipped_before = 0
        self._used_messages = self._used_bytes = 0

    @property
    def group(self) -> str:
        """An empty text: a tail has no group."""
        return ""

    async def __anext__(self) -> Batch:
        batch = await super().__anext__()
        self._used_messages += len(batch.messages)
        self._used_bytes += sum(message.size for message in batch.messages)
        if 2 * self._used_messages >= CREDIT_MESSAGES or 2 * self._used_bytes >= CREDIT_BYTES:
            credit = {"messages": self._used_messages, "bytes": self._used_bytes}
            self._connection.send_soon({"type": "credit", "subscription": self.name or "", **credit})
            self._used_messages = self._used_bytes = 0
        return batch

    async def ack(self, consumed: Batch | Iterable[Message], *, wait: bool = False) -> None:
        """Do nothing: a tail has nothing to acknowledge."""

    async def nack(self, returned: Batch | Iterable[Message], *, delay: str | None = None) -> None:
        """Raise TypeError: a tail can't return messages."""
        raise TypeError("a tail has no group to which messages could be returned")

    def lost(self) -> None:
        """Note that the connection broke."""
        super().lost()
        self.request["from"] = "last"
        self.reconnects_count += 1
        self._skipped_before = self.skipped
        self._used_messages = self._used_bytes = 0

    def take(self, frame: Messages | Assigned | State | ErrorFrame) -> None:
        """Handle a frame for this tail."""
        super().take(frame)
        if not isinstance(frame, State):
            return
        if frame.skipped is not None:
            self.skipped = self._skipped_before + frame.skipped
