"""The WebSocket client: consumes by push, tails topics and publishes over one connection (openapi/websocket.md)."""

from collections.abc import Mapping, Sequence

from gantry.http.results import BatchResult, OutgoingMessage
from gantry.http.streamcore import StreamCore
from gantry.http.streamframes import Published
from gantry.http.subscription import Subscription, subscribe_request
from gantry.http.tail import Tail, tail_request


class StreamClient(StreamCore):
    """A stream to one gateway.

    Use it as `async with StreamClient(url, key) as stream:`. This opens the first connection and raises the errors of
    `open`.
    """

    async def subscribe(
        self,
        group: str,
        topic: str,
        *,
        expression: str | Mapping[str, str] = "*",
        start: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int | None = None,
        batch: int | None = None,
        order: str = "concurrent",
        max_reconsume_times: int | None = None,
    ) -> Subscription:
        """Become a consumer of the group, and return when the gateway has accepted the subscription.

        Args:
            group: The group. If it does not exist yet, `start` must be given.
            topic: The topic; it must exist.
            expression: Tags separated by `||`, `*` for all messages, or `{"sql": "…"}` (docs/filters.md).
            start: `first`, `last` (the default) or a time (RFC 3339), for queues without a committed offset.
            credit_messages: Largest number of delivered and unacknowledged messages. None: the gateway's default.
            credit_bytes: Largest size of these messages in bytes.
            batch: Largest number of messages in a batch. None: the gateway's default.
            order: `concurrent`, or `orderly`: the next batch of a queue comes after the ack of the one before.
            max_reconsume_times: Retries before a message is a dead letter. None: those of the group; orderly: no limit.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: There is no connection now, it broke, or no answer came in time.
            GantryError: The error that ended the stream.
        """
        credit = {"messages": credit_messages, "bytes": credit_bytes}
        more = {"from": start, "batch": batch, "order": order, "max_reconsume_times": max_reconsume_times}
        subscription = Subscription(self, subscribe_request(group, topic, expression, credit=credit, settings=more))
        await self._open(subscription)
        return subscription

    async def tail(
        self,
        topic: str,
        *,
        expression: str | Mapping[str, str] = "*",
        start: str | None = None,
        rate_per_s: int | None = None,
        batch: int | None = None,
    ) -> Tail:
        """Show the messages of a topic as they arrive, without a group.

        Args:
            topic: The topic; it must exist.
            expression: Tags separated by `||`, `*` for all messages, or `{"sql": "…"}` (docs/filters.md).
            start: `last` (now, the default), `first` or a time (RFC 3339).
            rate_per_s: Largest number of messages a second. None: the gateway's default.
            batch: Largest number of messages in a batch. None: the gateway's default.

        Raises:
            GantryProblem: The gateway refused.
            GantryConnectionError: There is no connection now, it broke, or no answer came in time.
            GantryError: The error that ended the stream.
        """
        tail = Tail(self, tail_request(topic, expression, start=start, rate_per_s=rate_per_s, batch=batch))
        await self._open(tail)
        return tail

    async def publish(self, topic: str, messages: Sequence[OutgoingMessage]) -> BatchResult:
        """Send messages and return a result for each.

        If as many publishes are in progress as the gateway allows, this waits until one of them ends.

        Raises:
            GantryProblem: The gateway refused all messages; the outcome is `not_stored`.
            GantryConnectionError: No answer came; `outcome` is `not_stored` if there was no connection, else `unknown`.
            GantryError: The error that ended the stream; nothing was sent.
        """
        frame = {"type": "publish", "topic": topic, "messages": self._coding.messages(messages)}
        async with self._publishes:
            answer = await self.ask(frame)
        assert isinstance(answer, Published), "a publish is answered by published or an error"
        return BatchResult(answer.results, answer.stored, answer.not_stored, answer.unknown)

    async def _open(self, subscription: Subscription) -> None:
        try:
            await self._subscribe(subscription, is_new=True)
        except BaseException:  # boundary: a caller that is cancelled never sees the subscription and can't end it.
            if subscription.name is not None:
                self._unsubscribe(subscription.name)
            self.forget(subscription)
            raise
