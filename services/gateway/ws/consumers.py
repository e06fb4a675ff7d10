"""Streams as consumers of groups: each subscription is a member of its group over the gateway's one client engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import Assignment, GroupMember, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue
from services.gateway.errors import UNKNOWN_GROUP, ProblemError
from services.gateway.ws.ports import OnChange, Pulled

# RocketMQ's brokerSuspendMaxTimeMillis: how long a push consumer lets its pulls be held.
SUSPEND_MS: Final = 15_000

TimeoutOf = Callable[[str], Awaitable[int | None]]
"""Returns a group's consume time-out in ms; None for a group that no broker has. Raises ClientError, ProblemError."""
CONSUME_TIMEOUT_MS: Final = 15 * 60_000

Explained = Callable[[str], AbstractAsyncContextManager[None]]
"""Turns the disappearance of a topic within the block into a ProblemError that says what it means."""


class GroupConsumers:
    """Makes streams members of groups.

    Concurrency: the event loop's thread.
    """

    def __init__(self, engine: ClientEngine, timeout_of: TimeoutOf, *, explained: Explained) -> None:
        self._engine = engine
        self._explained = explained
        self._timeout_of = timeout_of

    async def join(
        self,
        client_id: str,
        group: str,
        data: SubscriptionData,
        *,
        start: ConsumeFromWhere,
        start_at_ms: int | None,
        may_make: bool,
        on_change: OnChange,
    ) -> "GroupMembership":
        """Become a consumer instance; returns after `on_change` was told the first share.

        Raises:
            ProblemError: 404: there is no such topic, or no broker has the group and `may_make` forbids to make it; 503:
                its brokers are away.
            ClientError: No broker can say who the members are.
        """
        is_first = True

        async def changed(assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
            nonlocal is_first
            counts = is_first and start is not ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            is_first = False
            skipped = await _count_skipped(consumer, assigned) if counts else 0
            await on_change([(each.queue, each.next_offset) for each in assigned], revoked, skipped=skipped)

        async with self._explained(data.topic):
            await self._engine.route(data.topic)
        timeout_ms = await self._timeout_of(group)
        if timeout_ms is None:
            if not may_make:
                raise ProblemError(UNKNOWN_GROUP, _group_hint(group), field="/group")
            timeout_ms = CONSUME_TIMEOUT_MS
        consumer = PullConsumer(self._engine, group)
        member = GroupMember(
            self._engine,
            group,
            [data],
            client_id=client_id,
            on_change=changed,
            start=StartPosition(start, start_at_ms),
        )
        async with self._explained(data.topic):
            await member.start()
        return GroupMembership(member, consumer, data, timeout_ms)


def _group_hint(group: str) -> str:
    path = f"/v1/groups/{group.replace('%', '%25')}"
    return f"group: {group!r} does not exist; subscribe with `from` (first, last or a time) to make it, or PUT {path}"


async def _count_skipped(consumer: PullConsumer, assigned: Sequence[Assignment]) -> int:
    """Return how many messages lie before the starts in queues that the group has no offset for. Raises ClientError."""
    new = [each for each in assigned if each.committed_offset is None and each.next_offset > 0]
    firsts = await asyncio.gather(*(consumer.min_offset(each.queue) for each in new))
    return sum(max(0, each.next_offset - max(0, first)) for each, first in zip(new, firsts, strict=True))


class GroupMembership:
    """A stream's place in a group, for one topic."""

    def __init__(
        self, member: GroupMember, consumer: PullConsumer, data: SubscriptionData, consume_timeout_ms: int
    ) -> None:
        self.consume_timeout_ms = consume_timeout_ms
        self._member = member
        self._consumer = consumer
        self._data = data

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        """Pull; `waits` lets the broker hold the pull for a while where there is nothing yet. Raises ClientError."""
        found = await self._consumer.pull(
            queue,
            offset,
            max_messages=messages_max,
            max_bytes=bytes_max,
            expression=self._data,
            suspend_ms=SUSPEND_MS if waits else 0,
            wide_messages=messages_max,
        )
        if found.status is PullStatus.FOUND:
            whole = found.body.obj
            data = whole if type(whole) is bytes and len(whole) == found.body.nbytes else bytes(found.body)
            return Pulled(data, found.next_offset, is_behind=found.next_offset < found.max_offset)
        is_moved = found.status is PullStatus.OFFSET_ILLEGAL
        # A broker that found none that match may not have looked at all of them.
        is_behind = found.status is PullStatus.NO_MATCHED_MSG and found.next_offset < found.max_offset
        return Pulled(b"", found.next_offset, is_moved=is_moved, is_behind=is_behind)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Write the group's offset. Raises ClientError."""
        await self._member.commit(queue, offset)

    async def leave(self) -> None:
        """Give all queues back; what a broker does not hear it finds out by itself."""
        try:
            await self._member.close()
        except ClientError:
            return
