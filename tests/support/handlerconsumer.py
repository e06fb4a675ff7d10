"""A consumer of a group that calls a handler for each message: the client engine's parts, put together for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.sendback import SendBack
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.engine import ClientEngine
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import MessageQueue, StoredMessage

SUSPEND_MS = 15_000

Handler = Callable[[StoredMessage], Awaitable[None]]


class HandlingError(Exception):
    """Raised by a handler that can't process its message."""


class HandlerConsumer:
    """A consumer; it sends a message back if the handler raises HandlingError.

    Args:
        engine: The client engine.
        group: The consumer group.
        topics: The topics.
        handler: Called with one message of a queue after the other.
        is_orderly: Whether the consumer locks its queues.
    """

    def __init__(
        self, engine: ClientEngine, group: str, topics: Sequence[str], handler: Handler, *, is_orderly: bool = False
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._pulls = PullConsumer(engine, group)
        self._back = SendBack(engine, group)
        self._next: dict[MessageQueue, int] = {}
        self._loops: dict[MessageQueue, asyncio.Task[None]] = {}
        self._busy: dict[MessageQueue, asyncio.Lock] = {}
        self._member = GroupMember(
            engine,
            group,
            [parse_tag_expression(topic, "*") for topic in topics],
            client_id=engine.client_id,
            on_change=self._on_change,
            commit_point=lambda queue: self._next[queue],
            start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
            is_orderly=is_orderly,
        )

    @property
    def held(self) -> frozenset[MessageQueue]:
        """Queues that the consumer holds."""
        return self._member.held

    async def start(self) -> None:
        """Join the group."""
        await self._member.start()

    async def close(self) -> None:
        """End the work on the messages, commit, and leave the group."""
        await self._end(list(self._loops))
        await self._member.close()

    async def _on_change(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        await self._end(revoked)
        for queue in revoked:
            await self._member.commit(queue, self._next[queue])
        for one in assigned:
            self._next[one.queue], self._busy[one.queue] = one.next_offset, asyncio.Lock()
            self._loops[one.queue] = self._engine.tasks.spawn(self._consume(one.queue))

    async def _end(self, queues: Sequence[MessageQueue]) -> None:
        """End the work on queues; a message that the handler has begun is handled to its end."""
        for queue in queues:
            loop = self._loops.pop(queue, None)
            if loop is not None:
                async with self._busy[queue]:
                    loop.cancel()

    async def _consume(self, queue: MessageQueue) -> None:
        while True:
            result = await self._pulls.pull(queue, self._next[queue], suspend_ms=SUSPEND_MS)
            for message in result.messages() if result.status is PullStatus.FOUND else ():
                async with self._busy[queue]:
                    await self._handle(message, queue)
                    self._next[queue] = message.queue_offset + 1
            self._next[queue] = result.next_offset

    async def _handle(self, message: StoredMessage, queue: MessageQueue) -> None:
        try:
            await self._handler(message)
        except HandlingError:
            await self._back.send_back(message, queue.broker_name)
