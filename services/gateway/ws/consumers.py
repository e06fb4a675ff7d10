"""Streams as consumers of groups: each subscription is a member of its group over the gateway's one client engine."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import Assignment, GroupMember, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue
from services.gateway.ws.ports import OnChange, Pulled

# RocketMQ's brokerSuspendMaxTimeMillis: how long a push consumer lets its pulls be held.
SUSPEND_MS: Final = 15_000

TimeoutOf = Callable[[str], Awaitable[int]]
"""Returns a group's consume time-out in ms. Raises ClientError."""


class GroupConsumers:
    """Makes streams members of groups.

    Concurrency: the event loop's thread.
    """

    def __init__(self, engine: ClientEngine, timeout_of: TimeoutOf) -> None:
        self._engine = engine
        self._timeout_of = timeout_of

    async def join(
        self,
        client_id: str,
        group: str,
        data: SubscriptionData,
        *,
        start: ConsumeFromWhere,
        start_at_ms: int | None,
        on_change: OnChange,
    ) -> "GroupMembership":
        """Become a consumer instance; returns after `on_change` was told the first share.

        Raises:
            ClientError: The topic is not known, or no broker can say who the members are.
        """

        async def changed(assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
            await on_change([(each.queue, each.next_offset) for each in assigned], revoked)

        consumer = PullConsumer(self._engine, group)
        member = GroupMember(
            self._engine,
            group,
            [data],
            client_id=client_id,
            on_change=changed,
            start=StartPosition(start, start_at_ms),
        )
        timeout_ms = await self._timeout_of(group)
        await member.start()
        return GroupMembership(member, consumer, data, timeout_ms)


class GroupMembership:
    """A stream's place in a group, for one topic."""

    def __init__(
        self, member: GroupMember, consumer: PullConsumer, data: SubscriptionData, consume_timeout_ms: int
    ) -> None:
        self.consume_timeout_ms = consume_timeout_ms
        self._member = member
        self._consumer = consumer
        self._data = data

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int) -> Pulled:
        """Pull, held by the broker for a while where there is nothing yet. Raises ClientError."""
        found = await self._consumer.pull(
            queue,
            offset,
            max_messages=messages_max,
            expression=self._data,
            suspend_ms=SUSPEND_MS,
            wide_messages=messages_max,
        )
        if found.status is PullStatus.FOUND:
            whole = found.body.obj
            data = whole if type(whole) is bytes and len(whole) == found.body.nbytes else bytes(found.body)
            return Pulled(data, found.next_offset)
        return Pulled(b"", found.next_offset, is_moved=found.status is PullStatus.OFFSET_ILLEGAL)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Write the group's offset. Raises ClientError."""
        await self._member.commit(queue, offset)

    async def leave(self) -> None:
        """Give all queues back; what a broker does not hear it finds out by itself."""
        try:
            await self._member.close()
        except ClientError:
            return
