"""The memberships of a stream in groups: joining, leaving, and the queues that come and go.

A subscription has one membership for its topic. One subscription of each group has another one, for the group's retry
topic. It is joined after the first one and without an answer to the client, because a broker may need a moment to
create the topic, and is tried again until it succeeds.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.model.names import retry_topic
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.errors import UNKNOWN_GROUP, ProblemError, problem_of
from services.gateway.ws.committing import Commit, CommitTasks, drain
from services.gateway.ws.effects import Effect, Join, JoinRetries, Leave
from services.gateway.ws.feed import Feed
from services.gateway.ws.ports import Consumers, Membership, OnChange
from services.gateway.ws.session import Session
from services.gateway.ws.subscription import Subscription

log = logger("gateway.ws")

CONSUME_TIMEOUT_MS: Final = 15 * 60_000
RETRY_FIRST_MS: Final = 200
RETRY_MAX_MS: Final = 30_000
"""Limits for the pause before the next attempt to join a retry topic; it doubles each time."""

_FAILURES = (ClientError, ProblemError, InvalidValueError)

Members = dict[tuple[str, str], Membership]
"""The memberships, by names of the subscription and the topic."""


class Pulling(Protocol):
    """The pulls of the stream (pulling.py)."""

    def start(self, subscription: Subscription, feed: Feed) -> None:
        """Start pulling a queue."""
        ...

    def stop(self, subscription: Subscription, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues."""
        ...


class MembershipTasks:
    """The tasks that change the memberships of one stream, one after the other.

    Concurrency: one event loop; the tasks end with the stream's other tasks.

    Attributes:
        members: The memberships.
        committing: Their commits.
    """

    def __init__(
        self,
        session: Session,
        tasks: TaskSet,
        consumers: Consumers,
        *,
        apply: Callable[[Iterable[Effect]], None],
        rng: Rng,
    ) -> None:
        self.members: Members = {}
        self.committing = CommitTasks(session, tasks, self.members)
        self._session = session
        self._tasks = tasks
        self._consumers = consumers
        self._apply = apply
        self._rng = rng
        self._changes = asyncio.Lock()  # The lock keeps the frames of joins and leaves in order.
        self._retry_changes = asyncio.Lock()
        self._ending = asyncio.Lock()  # The pulls of all queues fail together; one of them asks the brokers.
        self._joined: dict[tuple[str, str], asyncio.Event] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._pulling: Pulling | None = None

    def use(self, pulling: Pulling) -> None:
        """Set the pulls that start and stop with the queues."""
        self._pulling = pulling

    def begin(self, effect: Join | JoinRetries | Leave) -> None:
        """Start a task for an effect."""
        if isinstance(effect, Join):
            self._tasks.spawn(self._join(effect))
        elif isinstance(effect, JoinRetries):
            self._tasks.spawn(self._join_retries(effect.subscription))
        else:
            leaving = self._tasks.spawn(self._leave(effect))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def of(self, subscription: Subscription, topic: str) -> Membership:
        """Return the membership that has a queue of the topic."""
        key = (subscription.name, topic)
        if key not in self.members:
            await self._joined[key].wait()  # Queues are assigned before `join` has returned.
        return self.members[key]

    def timeout_ms(self, subscription: Subscription) -> int:
        """Return the consume time-out of the subscription's group."""
        membership = self.members.get((subscription.name, subscription.topic))
        return CONSUME_TIMEOUT_MS if membership is None else membership.consume_timeout_ms

    async def wait_until_left(self, timeout_s: float) -> None:
        """Wait until the groups are left that are being left now."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=timeout_s)

    async def leave_all(self) -> None:
        """Leave all groups."""
        await asyncio.gather(*(membership.leave() for membership in self.members.values()))

    def end(self) -> None:
        """Ignore later changes of the queues, and drop all references."""
        self.members.clear()
        self._pulling = None

    async def _join(self, join: Join) -> None:
        subscription, session = join.subscription, self._session
        opened = False

        async def changed(
            added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue], *, skipped: int = 0
        ) -> None:
            nonlocal opened
            if not opened:
                opened = True
                self._apply(session.joined(subscription, join.frame_id, skipped=skipped))
            await self._assign(subscription, list(added), list(removed))

        async with self._changes:
            if not self._is_wanted(subscription):
                return
            subscription.trace = self._consumers.trace(subscription.group)
            key = (subscription.name, subscription.topic)
            joined = self._joined[key] = asyncio.Event()
            try:
                self.members[key] = await self._consumers.join(
                    session.client_id,
                    subscription.group,
                    subscription.data,
                    start=join.start,
                    start_at_ms=join.start_at_ms,
                    may_make=join.may_make,
                    is_orderly=subscription.is_orderly,
                    failures_max=subscription.failures_max,
                    on_change=changed,
                    on_reset=functools.partial(self._reset, subscription),
                    on_deleted=functools.partial(self._deleted, subscription),
                )
            except _FAILURES as error:
                self._apply(session.join_failed(subscription, join.frame_id, problem_of(error)))
                if self._pulling is not None:
                    self._pulling.stop(subscription, list(subscription.feeds))
                await self._leave_topics(subscription)
                return
            joined.set()

    async def _join_retries(self, subscription: Subscription) -> None:
        topic = retry_topic(subscription.group)

        async def changed(
            added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue], *, skipped: int = 0
        ) -> None:
            added, removed = list(added), list(removed)
            if added or removed:
                await self._assign(subscription, added, removed)

        key = (subscription.name, topic)
        joined = self._joined[key] = asyncio.Event()
        delay_ms = RETRY_FIRST_MS
        while True:
            async with self._retry_changes:
                if not self._is_wanted(subscription):
                    return
                try:
                    self.members[key] = await self._join_topic(subscription, topic, changed)
                except _FAILURES as error:
                    if delay_ms == RETRY_FIRST_MS:
                        log.info("retry topic not joined yet", group=subscription.group, reason=str(error))
                else:
                    joined.set()
                    return
            await asyncio.sleep(self._rng.jitter_ms(delay_ms) / 1_000)
            delay_ms = min(delay_ms * 2, RETRY_MAX_MS)

    async def _join_topic(self, subscription: Subscription, topic: str, changed: OnChange) -> Membership:
        # Messages that wait in the retry topic belong to the group, whenever it came.
        return await self._consumers.join(
            self._session.client_id,
            subscription.group,
            parse_tag_expression(topic, "*", subscription.data.sub_version),
            start=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            start_at_ms=None,
            may_make=True,
            is_orderly=subscription.is_orderly,
            failures_max=subscription.failures_max,
            on_change=changed,
            on_reset=functools.partial(self._reset, subscription),
            on_deleted=functools.partial(self._deleted, subscription),
        )

    def _reset(self, subscription: Subscription, queue: MessageQueue, offset: int) -> None:
        """Continue a queue elsewhere, because the group's offset was reset."""
        feed = subscription.feeds.get(queue)
        if feed is not None and self._pulling is not None:
            self._apply(self._session.moved(subscription, feed, offset))

    def _deleted(self, subscription: Subscription) -> None:
        self._tasks.spawn(self.end_if_deleted(subscription))

    async def end_if_deleted(self, subscription: Subscription) -> bool:
        """End a subscription if no broker has its group any more; return whether the subscription has ended.

        A broker refuses requests of a group also if it is the only one without the group, for example a new one.
        """
        async with self._ending:
            if not self._is_wanted(subscription):
                return True
            try:
                if await self._consumers.exists(subscription.group):
                    return False
            except _FAILURES:
                return False  # The pulls go on, and ask again.
            if not self._is_wanted(subscription):
                return True
            detail = f"group: {subscription.group!r} was deleted; this subscription has ended"
            self._apply(self._session.expelled(subscription, ProblemError(UNKNOWN_GROUP, detail, field="/group")))
            return True

    async def _leave(self, leave: Leave) -> None:
        async with self._changes:
            await self._leave_topics(leave.subscription, leave.commits)

    async def _leave_topics(self, subscription: Subscription, commits: Sequence[tuple[MessageQueue, int]] = ()) -> None:
        """Commit, and leave the topics of a subscription that has ended."""
        async with self._retry_changes:
            for key in [key for key in self._joined if key[0] == subscription.name]:
                del self._joined[key]
                membership = self.members.get(key)
                if membership is not None:
                    mine = [Commit(membership, queue, offset) for queue, offset in commits if queue.topic == key[1]]
                    await self.committing.commit(mine)
                    await membership.leave()
                    del self.members[key]

    async def _assign(
        self, subscription: Subscription, added: list[tuple[MessageQueue, int]], removed: list[MessageQueue]
    ) -> None:
        going = [feed for feed in map(subscription.feeds.get, removed) if feed is not None]
        if subscription.is_orderly:
            await drain(going)
        if self._pulling is None:
            return  # The stream has ended.
        self._pulling.stop(subscription, removed)
        await self.committing.commit(
            Commit(membership, feed.queue, 0, feed)
            for feed in going
            if (membership := self.members.get((subscription.name, feed.queue.topic))) is not None
        )
        self._apply(self._session.assigned(subscription, added, removed))
        for queue, _ in added:
            feed = subscription.feeds.get(queue)
            if feed is not None and self._pulling is not None:
                self._pulling.start(subscription, feed)

    def _is_wanted(self, subscription: Subscription) -> bool:
        return subscription.name in self._session.subscriptions and not self._session.is_closed
