"""Streams as consumers of groups: each subscription is a member of its group, over the gateway's one client engine."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullResult, PullStatus
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.sendback import DEAD, SendBack
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.tracer import Tracer
from gantry.model.errors import RecordError
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue, StoredMessage
from services.gateway.errors import CORRUPT_RECORD, UNKNOWN_GROUP, ProblemError
from services.gateway.ws.ports import OnChange, OnReset, Pulled
from services.gateway.ws.tracing import DeliveryTrace

# The time that brokers may hold a pull of a push consumer: RocketMQ's brokerSuspendMaxTimeMillis.
SUSPEND_MS: Final = 15_000
# Messages that a subscription sends back at the same time.
SENT_BACK_AT_ONCE: Final = 16

TimeoutOf = Callable[[str], Awaitable[int | None]]
"""Returns a group's consume time-out in ms; None if no broker has the group. Raises ClientError, ProblemError."""
CONSUME_TIMEOUT_MS: Final = 15 * 60_000

Explained = Callable[[str], AbstractAsyncContextManager[None]]
"""Turns the error of a topic that disappears within the block into a ProblemError."""


class GroupConsumers:
    """Makes streams members of groups.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self,
        engine: ClientEngine,
        timeout_of: TimeoutOf,
        *,
        explained: Explained,
        on_consume: Callable[[str, str], None],
        tracer: Tracer | None = None,
    ) -> None:
        """Make it; `on_consume` is called with group and topic at each commit."""
        self._engine = engine
        self._on_consume = on_consume
        self._tracer = tracer
        self._explained = explained
        self._timeout_of = timeout_of

    def trace(self, group: str) -> DeliveryTrace | None:
        """Return what notes the deliveries of a new subscription; None if tracing is off."""
        return None if self._tracer is None else DeliveryTrace(self._tracer, group)

    async def exists(self, group: str) -> bool:
        """Return whether a broker that answers has the group. Raises ClientError, ProblemError: none answers."""
        return await self._timeout_of(group) is not None

    async def join(
        self,
        client_id: str,
        group: str,
        data: SubscriptionData,
        *,
        start: ConsumeFromWhere,
        start_at_ms: int | None,
        may_make: bool,
        is_orderly: bool,
        failures_max: int | None,
        on_change: OnChange,
        on_reset: OnReset,
        on_deleted: Callable[[], None],
    ) -> "GroupMembership":
        """Join a group as a consumer instance; return after `on_change` got the first assignment.

        Raises:
            ProblemError: 404: the topic does not exist, or no broker has the group and `may_make` is False; 503: its
                brokers are down.
            ClientError: No broker answers with the members of the group.
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
            is_orderly=is_orderly,
            on_reset=on_reset,
            on_deleted=on_deleted,
        )
        async with self._explained(data.topic):
            await member.start()
        back = SendBack(self._engine, group, failures_max=failures_max)
        return GroupMembership(
            member,
            consumer,
            data,
            back,
            consume_timeout_ms=timeout_ms,
            on_commit=lambda: self._on_consume(group, data.topic),
        )


def _group_hint(group: str) -> str:
    path = f"/v1/groups/{group.replace('%', '%25')}"
    return f"group: {group!r} does not exist; subscribe with `from` (first, last or a time) to create it, or PUT {path}"


async def _count_skipped(consumer: PullConsumer, assigned: Sequence[Assignment]) -> int:
    """Return the number of messages before the starts of queues without a committed offset. Raises ClientError."""
    new = [each for each in assigned if each.committed_offset is None and each.next_offset > 0]
    firsts = await asyncio.gather(*(consumer.min_offset(each.queue) for each in new))
    return sum(max(0, each.next_offset - max(0, first)) for each, first in zip(new, firsts, strict=True))


class GroupMembership:
    """A stream's membership in a group, for one topic."""

    def __init__(
        self,
        member: GroupMember,
        consumer: PullConsumer,
        data: SubscriptionData,
        back: SendBack,
        *,
        consume_timeout_ms: int,
        on_commit: Callable[[], None],
    ) -> None:
        self.consume_timeout_ms = consume_timeout_ms
        self._on_commit = on_commit
        self._back = back
        self._member = member
        self._consumer = consumer
        self._data = data

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        """Pull messages; with `waits`, the broker may hold the pull while there are none. Raises ClientError.

        If the group's offset was reset, `on_reset` of the stream has been called when this returns.
        """
        found = await self._consumer.pull(
            queue,
            offset,
            max_messages=messages_max,
            max_bytes=bytes_max,
            expression=self._data,
            suspend_ms=SUSPEND_MS if waits else 0,
            wide_messages=messages_max,
            epoch=self._member.epoch(queue),
        )
        if found.reset_epoch is not None:
            self._member.reset(queue, found.next_offset, found.reset_epoch)
            return Pulled(b"", found.next_offset, is_reset=True)
        return pulled_of(found)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset. Raises ClientError."""
        self._on_commit()
        await self._member.commit(queue, offset)

    async def send_back(
        self,
        queue: MessageQueue,
        offsets: Sequence[int],
        *,
        delay_ms: int | None,
        is_dead: bool,
        failures: Mapping[int, int],
    ) -> Mapping[int, ClientError | ProblemError]:
        """Send messages back; return those that no broker took. A message that is no longer stored counts as taken."""
        failed: dict[int, ClientError | ProblemError] = {}
        left = deque(sorted(offsets))
        while left:
            try:
                found = await self._consumer.pull(queue, left[0], max_messages=left[-1] - left[0] + 1)
            except ClientError as error:
                failed.update(dict.fromkeys(left, error))
                break
            messages, damage = _read_some(found, left)
            for first in range(0, len(messages), SENT_BACK_AT_ONCE):
                part = messages[first : first + SENT_BACK_AT_ONCE]
                sent = await asyncio.gather(*(self._give_back(queue, one, delay_ms, is_dead, failures) for one in part))
                failed.update({one.queue_offset: error for one, error in zip(part, sent, strict=True) if error})
            while left and left[0] < found.next_offset and (damage is None or left[0] < damage):
                left.popleft()
            if left and left[0] == damage:
                failed[left.popleft()] = ProblemError(
                    CORRUPT_RECORD, f"{queue}, offset {damage}: the record is damaged"
                )
            elif left and left[0] >= found.next_offset and not messages:
                left.popleft()  # The queue ends before it.
        return failed

    async def _give_back(
        self,
        queue: MessageQueue,
        message: StoredMessage,
        delay_ms: int | None,
        is_dead: bool,
        failures: Mapping[int, int],
    ) -> ClientError | None:
        count = failures.get(message.queue_offset, 1)
        try:
            if is_dead:
                await self._back.send_back(message, queue.broker_name, delay_level=DEAD, failures=count)
            else:
                await self._back.send_back(message, queue.broker_name, delay_ms=delay_ms)
        except ClientError as error:
            return error
        return None

    async def leave(self) -> None:
        """Give all queues back. A broker that cannot be told notices the end of the member by itself."""
        try:
            await self._member.close()
        except ClientError:
            return


def pulled_of(found: PullResult) -> Pulled:
    """Return the result of a pull as streams take it."""
    if found.status is PullStatus.FOUND:
        whole = found.body.obj
        data = whole if type(whole) is bytes and len(whole) == found.body.nbytes else bytes(found.body)
        return Pulled(data, found.next_offset, is_behind=found.next_offset < found.max_offset)
    is_moved = found.status is PullStatus.OFFSET_ILLEGAL
    # A broker that found no match may not have searched all messages.
    is_behind = found.status is PullStatus.NO_MATCHED_MSG and found.next_offset < found.max_offset
    return Pulled(b"", found.next_offset, is_moved=is_moved, is_behind=is_behind)


def _read_some(found: PullResult, wanted: Collection[int]) -> tuple[list[StoredMessage], int | None]:
    """Return the wanted messages of a pull, and the first wanted offset at or behind a damaged record, or None."""
    messages: list[StoredMessage] = []
    next_offset = 0
    try:
        for message in found.messages():
            next_offset = message.queue_offset + 1
            if message.queue_offset in wanted:
                messages.append(message)
    except RecordError:
        return messages, next((offset for offset in wanted if offset >= next_offset), None)
    return messages, None
