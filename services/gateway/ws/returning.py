"""The tasks of a stream that send messages back to their brokers."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.errors import ProblemError, problem_of
from services.gateway.metrics import GatewayMetrics
from services.gateway.ws.effects import Effect, Poisoned, Return, ReturnedPart
from services.gateway.ws.feed import Feed
from services.gateway.ws.memberships import MembershipTasks
from services.gateway.ws.nacking import POISON_FAILURES
from services.gateway.ws.session import Session

log = logger("gateway.ws")

PENDING_MAX: Final = 1_000
"""Number of messages on their way back from which no further frame is read."""


class ReturnTasks:
    """The send-backs of one stream.

    Concurrency: one event loop; the tasks end with the stream's other tasks.
    """

    def __init__(
        self,
        session: Session,
        tasks: TaskSet,
        memberships: MembershipTasks,
        *,
        apply: Callable[[Iterable[Effect]], None],
        metrics: GatewayMetrics,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._memberships = memberships
        self._apply = apply
        self._metrics = metrics
        self._pending = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Return whether further frames may be read."""
        return self._pending < PENDING_MAX

    async def wait_for_room(self) -> None:
        """Wait until further frames may be read."""
        await self._room.wait()

    def begin(self, order: Return) -> None:
        """Start sending messages back."""
        self._pending += order.count
        if not self.has_room:
            self._room.clear()
        self._tasks.spawn(self._return(order))

    def report(self, poisoned: Poisoned) -> None:
        """Count and log a message that holds up its queue, more and more seldom."""
        self._metrics.count("stream_poison_returns")
        is_power_of_two = poisoned.failures & (poisoned.failures - 1) == 0
        if poisoned.is_dead or poisoned.failures == POISON_FAILURES or is_power_of_two:
            log.warning(
                "a message becomes a dead letter" if poisoned.is_dead else "a message holds up its queue",
                session=self._session.name,
                group=poisoned.subscription.group,
                queue=str(poisoned.queue),
                offset=poisoned.offset,
                failures=poisoned.failures,
            )

    async def _return(self, order: Return) -> None:
        failures: dict[tuple[Feed, int], ProblemError] = {}
        try:
            for found in await asyncio.gather(*(self._return_part(order, part) for part in order.parts)):
                failures.update(found)
        finally:
            self._pending -= order.count
            if self.has_room:
                self._room.set()
        self._metrics.count("stream_returned", order.count - len(failures))
        if failures:
            self._metrics.count("stream_return_failures", len(failures))
            (feed, offset), problem = next(iter(failures.items()))
            log.warning(
                "messages were not sent back",
                session=self._session.name,
                count=len(failures),
                queue=str(feed.queue),
                offset=offset,
                reason=problem.detail,
            )
        self._apply(self._session.returned(order, failures))

    async def _return_part(self, order: Return, part: ReturnedPart) -> dict[tuple[Feed, int], ProblemError]:
        feed = part.feed
        membership = await self._memberships.of(order.subscription, feed.queue.topic)
        failed = await membership.send_back(
            feed.queue, part.offsets, delay_ms=order.delay_ms, is_dead=order.is_dead, failures=part.failures
        )
        return {(feed, offset): problem_of(error) for offset, error in failed.items()}
