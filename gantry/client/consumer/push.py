"""PushConsumer: consumes topics for a group, and calls a listener with the messages.

Theory of operation. A push consumer is a member of its group (rebalance.py) that pulls its queues forward (prefetch.py),
holds the messages within limits (heldmessages.py), and calls the listener (working.py):

    broker ──pull──▶ held ──batch──▶ listener ──▶ consumed: the commit point moves
                                         └──────▶ failed: sent back to the broker, or retried in place

The offset that is committed is that of the first message that is neither consumed nor taken back by a broker. After a
crash, all messages from there on are delivered again. So a message is delivered at least once, and a listener must be
able to process a message twice.

The consumer has a second membership, for the retry topic of the group, through which messages that failed come back. A
new group gets its retry topic with the first heart-beat. So this membership follows as soon as the topic exists.

In broadcasting mode, the consumer holds all queues, and keeps its offsets in a file of its own (localoffsets.py). It has no
second membership: messages that failed are skipped.

A queue that moves to another member is worked on until its running calls have ended, but for `revoke_timeout_ms` at most.
Then the offset is committed, and later results do not count. A queue whose lock is lost is given up at once.

Source: RocketMQ 5.3 DefaultMQPushConsumerImpl.

Concurrency: the event loop's thread.
"""

import asyncio
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from gantry.client.consumer.failures import Failures, ListenerCounts
from gantry.client.consumer.groupdeletion import DeletionWatch
from gantry.client.consumer.heldmessages import HeldMessages, HeldQueue
from gantry.client.consumer.listening import BatchListener, ListenerSettings, MessageListener
from gantry.client.consumer.localoffsets import LocalOffsets
from gantry.client.consumer.prefetch import Prefetch
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.consumer.working import CANCEL_GRACE_MS, Workers
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, InvalidArgumentError, NotStartedError
from gantry.model.errors import InvalidExpressionError, InvalidNameError
from gantry.model.group import ConsumeFromWhere, MessageModel, SubscriptionData, parse_tag_expression
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import check_group, retry_topic
from gantry.runtime.telemetry import logger

log = logger("client.listener")

JOIN_RETRY_MS: Final = 1_000
JOIN_RETRY_MS_MAX: Final = 20_000


class PushConsumer:
    """A consumer of a group with a listener.

    Use it with `async with`, or call `start` and `close`.

    Attributes:
        group: The consumer group.
        client_id: The id of this consumer in the group.
    """

    def __init__(
        self,
        engine: ClientEngine,
        group: str,
        topics: Mapping[str, str | SubscriptionData] | Iterable[str],
        listener: MessageListener | None = None,
        *,
        batch_listener: BatchListener | None = None,
        is_orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
        local_offsets: LocalOffsets | None = None,
        start: StartPosition | None = None,
        settings: ListenerSettings | None = None,
        client_id: str | None = None,
    ) -> None:
        """Make a consumer; nothing is sent yet.

        Args:
            engine: The engine, which must run before the consumer starts.
            group: The consumer group.
            topics: The topics, or a mapping of topics to tag expressions (`A || B`) or subscriptions
                (`sql_subscription`). All consumers of a group must have the same.
            listener: Processes one message; an async function.
            batch_listener: Processes up to `batch_messages_max` messages of one queue, instead of `listener`.
            is_orderly: Whether the messages of a queue are processed one after the other.
            message_model: CLUSTERING: each message goes to one consumer of the group. BROADCASTING: each message goes to
                every consumer of the group.
            local_offsets: The offsets of a consumer in BROADCASTING mode, which needs a `client_id` that stays the same.
            start: Position for queues without a committed offset; the default is the end.
            settings: The settings; None for the defaults.
            client_id: Id of this consumer; the default is that of the engine. Each consumer of a group needs its own.

        Raises:
            InvalidArgumentError: An argument is not valid.
        """
        settings = settings or ListenerSettings()
        settings.check()
        try:
            check_group(group)
            subscriptions = _subscriptions(topics, engine.clock.now_ms())
        except (InvalidNameError, InvalidExpressionError) as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        self.group = group
        self.client_id = client_id or engine.client_id
        has_fixed_id = client_id is not None or bool(engine.settings.instance_name)
        self._local_offsets = _checked(local_offsets, message_model, has_fixed_id=has_fixed_id)
        self._engine = engine
        self._settings = settings
        self._is_orderly = is_orderly
        self._subscriptions = subscriptions
        self._retry = parse_tag_expression(retry_topic(group), None, engine.clock.now_ms())
        self._held = HeldMessages(settings.limits, batch_max=settings.batch_messages_max, is_orderly=is_orderly)
        self._wake = asyncio.Event()
        self._deletion = DeletionWatch(group)
        self._prefetch = Prefetch(engine, group, self._held, deletion=self._deletion, on_messages=self._wake.set)
        self._workers = self._make_workers(_as_batch_listener(listener, batch_listener, settings), message_model)
        self._member = self._make_member(list(subscriptions.values()), start or StartPosition())
        # Messages that wait in the retry topic belong to the group, whenever it came.
        first = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        is_retried = message_model is MessageModel.CLUSTERING
        self._retry_member = self._make_member([self._retry], first) if is_retried else None
        self._joining: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._is_started = False
        self._is_closing = False

    @property
    def held(self) -> frozenset[MessageQueue]:
        """Queues that the consumer holds, those of the retry topic among them."""
        return self._member.held | (frozenset() if self._retry_member is None else self._retry_member.held)

    @property
    def counts(self) -> ListenerCounts:
        """The results since the start."""
        return self._workers.counts

    @property
    def held_messages(self) -> int:
        """Number of messages in memory."""
        return self._held.messages

    @property
    def held_bytes(self) -> int:
        """Size of the messages in memory."""
        return self._held.bytes

    async def __aenter__(self) -> Self:
        """Start the consumer. Raises the errors of `start`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the consumer."""
        await self.close()

    async def start(self) -> None:
        """Join the group, and begin to consume.

        Raises:
            InvalidArgumentError: Another consumer of this engine has the same client id, group and topic; or in broadcasting
                mode, another consumer of this machine has the same client id and group.
            NotStartedError: The engine does not run.
            NoRouteError: A topic does not exist.
            OffsetsFileError: The file of the local offsets can't be read.
            ClientError: No broker answered who the members of the group are, or where to start.
        """
        assert not self._is_started, "started twice"
        self._engine.check_running()
        self._is_started = True
        has_joined = False
        self._workers.start()
        try:
            if self._local_offsets is not None:
                await self._local_offsets.open(self.client_id, self.group)
            await self._member.start()
            has_joined = True
        finally:
            if not has_joined:
                await self._end()
        if self._retry_member is not None:
            self._joining = self._engine.tasks.spawn(self._join_retries(self._retry_member))

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Stop, and leave the group: wait for the calls that run, commit, and give the queues to the other members.

        If this is cancelled, the calls are cancelled at once, and no call goes on after the end. The consumer leaves its
        group all the same, without a commit: the other members get the messages again that were consumed since the last
        one. Queues that are consumed in order are theirs when the locks expire, after a minute.

        Args:
            timeout_ms: Time for the running calls, `close_timeout_ms` of the settings by default. Calls that take longer
                are cancelled, and their messages are delivered again.
        """
        if not self._is_started or self._is_closing:
            return
        self._is_closing = True
        timeout_ms = self._settings.close_timeout_ms if timeout_ms is None else timeout_ms
        queues = list(self._held.queues.values())
        self._held.drain(queues)
        self._prefetch.stop_all()
        if self._joining is not None:
            self._joining.cancel()
        try:
            self._engine.check_running()
            if not await self._workers.wait_idle(queues, timeout_ms):
                log.warning("calls of the listener are cancelled", group=self.group, client_id=self.client_id)
                self._workers.stop(queues)
                await self._workers.wait_idle(queues, CANCEL_GRACE_MS)
            self._workers.end()
            async with self._changing:
                pass  # A queue that leaves is committed.
            await asyncio.gather(self._member.close(), self._leave_retries())
        except NotStartedError:
            log.warning("closed after its engine", group=self.group, client_id=self.client_id)
        finally:
            await self._end()

    async def _end(self) -> None:
        """End all work of this consumer, and release its file."""
        self._prefetch.stop_all()
        self._workers.end()
        self._member.leave()
        if self._retry_member is not None:
            self._retry_member.leave()
        for held in list(self._held.queues.values()):
            self._held.drop(held)
        if self._local_offsets is not None:
            await self._local_offsets.close()

    async def _join_retries(self, member: GroupMember) -> None:
        delay_ms = JOIN_RETRY_MS
        while True:
            try:
                await member.start()
            except ClientError as error:
                if delay_ms == JOIN_RETRY_MS:
                    log.info("retry topic not joined yet", group=self.group, reason=str(error))
            else:
                return
            await asyncio.sleep(self._engine.rng.jitter_ms(delay_ms) / 1000)
            delay_ms = min(delay_ms * 2, JOIN_RETRY_MS_MAX)

    async def _leave_retries(self) -> None:
        if self._joining is not None and self._retry_member is not None:
            await asyncio.gather(self._joining, return_exceptions=True)
            await self._retry_member.close()

    def _make_workers(self, listener: BatchListener, model: MessageModel) -> Workers:
        settings, is_orderly = self._settings, self._is_orderly
        return Workers(
            self._engine,
            self._held,
            listener,
            Failures(
                self._engine,
                self.group,
                model=model,
                max_reconsume_times=settings.max_reconsume_times,
                is_orderly=is_orderly,
            ),
            settings,
            is_orderly=is_orderly,
            wake=self._wake,
            may_work=lambda queue: self._member_of(queue).may_work(queue),
            on_room=self._prefetch.room_made,
        )

    def _make_member(self, subscriptions: Sequence[SubscriptionData], start: StartPosition) -> GroupMember:
        return GroupMember(
            self._engine,
            self.group,
            subscriptions,
            client_id=self.client_id,
            on_change=self._changed,
            commit_point=lambda queue: self._held.queues[queue].window.commit_point,
            start=start,
            is_orderly=self._is_orderly,
            on_reset=self._reset,
            on_deleted=self._deletion.seen,
            on_restored=self._deletion.ended,
            local_offsets=self._local_offsets,
        )

    def _member_of(self, queue: MessageQueue) -> GroupMember:
        is_retry = queue.topic == self._retry.topic
        return self._retry_member if is_retry and self._retry_member is not None else self._member

    async def _changed(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        for one in assigned:
            held = self._held.add_queue(one.queue, one.next_offset)
            if self._is_closing:
                self._held.drain([held])
            else:
                subscription = self._subscriptions.get(one.queue.topic, self._retry)
                self._prefetch.start(held, subscription, self._member_of(one.queue))
        going = [held for held in map(self._held.queues.get, revoked) if held is not None]
        self._held.drain(going)
        for held in going:
            self._prefetch.stop(held)
        # Another member may have the queues already whose locks were lost.
        lost = [held for held in going if held.queue not in self._member_of(held.queue).held]
        if self._is_orderly:
            self._workers.stop(lost)
        try:
            async with self._changing:
                await self._give_up([held for held in going if held not in lost])
        except asyncio.CancelledError:
            # The member gives up the assigned queues, too, because this change was not accepted.
            going += [self._held.queues[one.queue] for one in assigned if one.queue in self._held.queues]
            raise
        finally:
            for held in going:
                self._prefetch.stop(held)
                self._held.drop(held)
                self._prefetch.room_made(held)
        self._wake.set()

    async def _give_up(self, going: Collection[HeldQueue]) -> None:
        """End the work on queues that another member gets, and commit their offsets."""
        if not await self._workers.wait_idle(going, self._settings.revoke_timeout_ms) and self._is_orderly:
            self._workers.stop(going)
            if not await self._workers.wait_idle(going, CANCEL_GRACE_MS):
                log.error("the listener works on a queue of another member", group=self.group)
        await asyncio.gather(*(self._commit(held) for held in going))

    async def _commit(self, held: HeldQueue) -> None:
        try:
            await self._member_of(held.queue).commit(held.queue, held.window.commit_point)
        except ClientError as error:
            # The messages since the last commit are delivered again.
            log.warning("offset not committed", group=self.group, queue=str(held.queue), error=str(error))

    def _reset(self, queue: MessageQueue, offset: int) -> None:
        held = self._held.queues.get(queue)
        if held is not None:
            self._held.restart(held, offset)
            self._prefetch.restart(held)
            self._prefetch.room_made(held)


def _subscriptions(
    topics: Mapping[str, str | SubscriptionData] | Iterable[str], version_ms: int
) -> dict[str, SubscriptionData]:
    if isinstance(topics, str):
        raise InvalidArgumentError("topics", topics, "is a text; pass a list of topics, or a mapping")
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
    return {
        topic: one if isinstance(one, SubscriptionData) else parse_tag_expression(topic, one, version_ms)
        for topic, one in wanted.items()
    }


def _checked(local_offsets: LocalOffsets | None, model: MessageModel, *, has_fixed_id: bool) -> LocalOffsets | None:
    """Return the offsets of a consumer, if it may have them. Raises InvalidArgumentError."""
    if (local_offsets is None) == (model is MessageModel.BROADCASTING):
        reason = "are needed in BROADCASTING mode, and not allowed in CLUSTERING mode"
        raise InvalidArgumentError("local_offsets", local_offsets, reason)
    if local_offsets is not None and not has_fixed_id:
        reason = "is made anew at each start, and the offsets would not be found again; in BROADCASTING mode, pass one"
        raise InvalidArgumentError("client_id", None, reason)
    return local_offsets


def _as_batch_listener(
    listener: MessageListener | None, batch_listener: BatchListener | None, settings: ListenerSettings
) -> BatchListener:
    """Return the one listener as a batch listener. Raises InvalidArgumentError."""
    if (listener is None) == (batch_listener is None):
        raise InvalidArgumentError("listener", listener, "and batch_listener: pass one of them")
    given = listener or batch_listener
    if not (inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(type(given).__call__)):
        raise InvalidArgumentError("listener", given, "is not an async function; call blocking code in a thread")
    if batch_listener is not None:
        return batch_listener
    assert listener is not None, "one of the two is there"
    if settings.batch_messages_max != 1:
        raise InvalidArgumentError("batch_messages_max", settings.batch_messages_max, "needs a batch listener")

    async def listen(messages: Sequence[StoredMessage]) -> None:
        await listener(messages[0])

    return listen
