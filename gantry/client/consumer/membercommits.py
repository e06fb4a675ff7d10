"""The commits of one member of a group: the offsets of the queues that it holds."""

import asyncio
from collections.abc import Callable, Sequence

from gantry.client.consumer.heldqueues import HeldQueues
from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, InvalidArgumentError
from gantry.model.message import MessageQueue
from gantry.runtime.telemetry import logger

log = logger("client.group")

CommitPoint = Callable[[MessageQueue], int]
"""Returns the offset of a held queue below which all messages are acknowledged or filtered out."""


class MemberCommits:
    """Commits offsets of held queues.

    Args:
        engine: The engine.
        offsets: The group's offsets.
        group: The group.
        held: The held queues.
        commit_point: Returns the offset to commit; None if the owner commits.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self, engine: ClientEngine, offsets: Offsets, group: str, held: HeldQueues, commit_point: CommitPoint | None
    ) -> None:
        self._engine = engine
        self._offsets = offsets
        self._group = group
        self._held = held
        self._commit_point = commit_point

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of a queue. Raises InvalidArgumentError if it is not held, ClientError as `Offsets`."""
        if queue not in self._held:
            raise InvalidArgumentError("queue", queue, "is not held by this member")
        epoch = self._held.epoch(queue)
        await self._offsets.commit_offset(self._group, queue, offset, epoch=epoch)
        self._held.committed(queue, offset, epoch)

    async def run(self) -> None:
        """Commit all held queues at the engine's interval, unless the owner commits."""
        while self._commit_point is not None:
            await asyncio.sleep(self._engine.settings.offset_commit_interval_ms / 1000)
            await self.commit_all(list(self._held))

    async def commit_all(self, queues: Sequence[MessageQueue]) -> None:
        """Commit the offsets of some queues that have changed, unless the owner commits."""
        if self._commit_point is not None:
            points = [(queue, self._commit_point(queue)) for queue in queues]
            # All commits run at once: a broker that hangs must not delay the commits on the others.
            changed = [(queue, offset) for queue, offset in points if offset != self._held.committed_offset(queue)]
            await asyncio.gather(*(self.try_commit(queue, offset) for queue, offset in changed))

    async def try_commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of a queue. A failure is logged."""
        epoch = self._held.epoch(queue)
        try:
            await self._offsets.commit_offset(self._group, queue, offset, epoch=epoch)
        except ClientError as error:
            # The next interval tries again. Uncommitted messages are delivered again, not lost.
            log.warning("offset not committed", group=self._group, queue=str(queue), offset=offset, error=str(error))
        else:
            self._held.committed(queue, offset, epoch)
