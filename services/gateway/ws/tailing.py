"""The live tails of a stream: which queues each of them follows, and their pulls.

A tail begins when at least one broker has told where its queues start. Queues of other brokers, and queues that are added
later, follow when the route of the topic is read again, every FOLLOW_MS.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet
from services.gateway.errors import UNKNOWN_TOPIC, ProblemError, problem_of
from services.gateway.ws.effects import Effect, OpenTail
from services.gateway.ws.memberships import Pulling
from services.gateway.ws.ports import Pulled, TailSource
from services.gateway.ws.session import Session
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription

FOLLOW_MS: Final = 5_000
"""Interval at which a tail looks for new queues."""


class TailTasks:
    """The tails of one stream.

    Concurrency: one event loop; the tasks end with the stream's other tasks.
    """

    def __init__(
        self,
        session: Session,
        tasks: TaskSet,
        source: TailSource,
        *,
        apply: Callable[[Iterable[Effect]], None],
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._source = source
        self._apply = apply
        self._clock = clock
        self._rng = rng
        self._running: dict[str, asyncio.Task[None]] = {}
        self._pulling: Pulling | None = None

    def use(self, pulling: Pulling) -> None:
        """Set the pulls that start and stop with the queues."""
        self._pulling = pulling

    def begin(self, effect: OpenTail) -> None:
        """Start to follow a topic."""
        self._running[effect.subscription.name] = self._tasks.spawn(self._run(effect))

    def stop(self, subscription: Subscription) -> None:
        """Stop to follow a topic. Nothing happens if the subscription is no tail."""
        running = self._running.pop(subscription.name, None)
        if running is not None and running is not asyncio.current_task():
            running.cancel()

    def end(self) -> None:
        """Drop all references."""
        self._running.clear()
        self._pulling = None

    def puller_of(self, tail: TailSubscription) -> "TailPuller":
        """Return what pulls for a tail."""
        return TailPuller(self._source, tail)

    async def _run(self, effect: OpenTail) -> None:
        tail, began_ms = effect.subscription, self._clock.now_ms()
        try:
            queues = await self._source.queues(tail.topic, refresh=False)
            starts, error = await self._starts(queues, effect.start, effect.start_at_ms)
            if error is not None and not starts:
                raise error
        except (ClientError, ProblemError, InvalidValueError) as failure:
            self._apply(self._session.join_failed(tail, effect.frame_id, problem_of(failure)))
            return
        if tail.name not in self._session.subscriptions:
            return
        if effect.start is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            self._follow_live(tail, starts)
        self._apply(self._session.joined(tail, effect.frame_id))
        self._assign(tail, starts, ())
        await self._follow(tail, began_ms)

    async def _follow(self, tail: TailSubscription, began_ms: int) -> None:
        left: dict[MessageQueue, int] = {}
        while tail.name in self._session.subscriptions:
            await asyncio.sleep(self._rng.jitter_ms(FOLLOW_MS) / 1_000)
            try:
                queues = await self._source.queues(tail.topic, refresh=True)
            except ProblemError as problem:
                if problem.kind is not UNKNOWN_TOPIC:
                    continue  # The pulls report brokers that are away.
                self._apply(self._session.expelled(tail, problem))
                return
            gone = [queue for queue in tail.feeds if queue not in queues]
            left |= {queue: tail.feeds[queue].next_offset for queue in gone}
            new = [queue for queue in queues if queue not in tail.feeds]
            # The messages of a new queue are newer than the tail. A queue whose broker comes back goes on.
            starts, _ = await self._starts(
                [queue for queue in new if queue not in left], ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, began_ms
            )
            starts |= {queue: left.pop(queue) for queue in new if queue in left}
            if starts or gone:
                self._follow_live(tail, starts)
                self._assign(tail, starts, gone)

    async def _starts(
        self, queues: Sequence[MessageQueue], start: ConsumeFromWhere, start_at_ms: int | None
    ) -> tuple[dict[MessageQueue, int], ClientError | None]:
        """Return the offsets at which queues start, and an error if some are missing because their broker failed."""
        found = await asyncio.gather(
            *(self._source.start_of(queue, start, start_at_ms) for queue in queues), return_exceptions=True
        )
        starts: dict[MessageQueue, int] = {}
        failed: ClientError | None = None
        for queue, offset in zip(queues, found, strict=True):
            if isinstance(offset, ClientError):
                failed = offset
            elif isinstance(offset, BaseException):
                raise offset
            else:
                starts[queue] = offset
        return starts, failed

    def _follow_live(self, tail: TailSubscription, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            tail.follow_live(queue)

    def _assign(
        self, tail: TailSubscription, added: Mapping[MessageQueue, int], removed: Sequence[MessageQueue]
    ) -> None:
        if self._pulling is None:
            return  # The stream has ended.
        self._pulling.stop(tail, removed)
        self._apply(self._session.assigned(tail, added.items(), removed))
        for queue in added:
            feed = tail.feeds.get(queue)
            if feed is not None and self._pulling is not None:
                self._pulling.start(tail, feed)


class TailPuller:
    """The pulls of a tail."""

    def __init__(self, source: TailSource, tail: TailSubscription) -> None:
        self._source = source
        self._tail = tail

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        """Pull messages. If the tail is too far behind, they are dropped, and it goes on at newer ones."""
        tail = self._tail
        pulled = await self._source.pull(
            queue, offset, tail.data, messages_max=messages_max, bytes_max=bytes_max, waits=waits
        )
        found = pulled.found
        target = None if found.is_moved else tail.skip_target(queue, offset, found.next_offset, pulled.end)
        if target is not None:
            found = Pulled(b"", target, is_moved=True)
        if found.is_moved:
            tail.note_skipped(found.next_offset - offset)
        return found
