"""Whether a topic that can't be written is meant to be written: then its brokers are drained, and a send may succeed later.

A name server's answer does not tell a read-only topic from a topic on drained brokers. The desired configuration does.

Concurrency: the event loop's thread. All sends to the same topic share one question, and its answer for CACHED_MS.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, NotWritableError, SendError
from gantry.model.topic import Perm, TopicConfig
from services.gateway.errors import BROKER_UNAVAILABLE, NOT_STORED, ProblemError

CACHED_MS: Final = 1_000
TOPICS_MAX: Final = 4_096


class DrainedTopics:
    """Finds out why no queue of a topic can be written."""

    def __init__(
        self, engine: ClientEngine, observed_homes: Callable[[str], Awaitable[Mapping[str, TopicConfig]]]
    ) -> None:
        """Make it; `observed_homes` returns the topic's configuration on each of its brokers, without Postgres none."""
        self._engine = engine
        self._observed_homes = observed_homes
        # Topic → the question, and when it was asked (monotonic ms).
        self._asked: dict[str, tuple[asyncio.Task[bool], int]] = {}

    async def problem(self, topic: str, error: ClientError) -> ProblemError | None:
        """Return the problem of a send that failed because the brokers are drained, or None for any other failure."""
        cause = error.cause if isinstance(error, SendError) else error
        if not isinstance(cause, NotWritableError) or cause.is_transient or not await self._is_meant_for_sends(topic):
            return None
        detail = f"topic: no broker of {topic} takes messages at the moment: they are drained"
        return ProblemError(BROKER_UNAVAILABLE, detail, field="topic", outcome=NOT_STORED)

    async def _is_meant_for_sends(self, topic: str) -> bool:
        now_ms = self._engine.clock.monotonic_ms()
        known = self._asked.get(topic)
        if known is None or now_ms - known[1] >= CACHED_MS:
            if len(self._asked) >= TOPICS_MAX:
                self._asked.clear()
            known = self._asked[topic] = (self._engine.tasks.spawn(self._look_up(topic)), now_ms)
        await asyncio.wait({known[0]})
        return not known[0].cancelled() and known[0].result()

    async def _look_up(self, topic: str) -> bool:
        try:
            homes = await self._observed_homes(topic)
        except ProblemError:
            return False
        return any(config.perm & Perm.WRITE for config in homes.values())
