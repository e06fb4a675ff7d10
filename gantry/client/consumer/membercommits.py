"""The commits of one member of a group: the offsets of the queues that it holds."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gantry.client.consumer.heldqueues import HeldQueues
from gantry.client.consumer.memberoffsets import Commit, CommittedOffsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, InvalidArgumentError
from gantry.model.message import MessageQueue
from gantry.remoting.codes import ResponseCode
from gantry.runtime.telemetry import logger

log = logger("client.group")

_LOG_INTERVAL_MS: Final = 60_000

CommitPoint = Callable[[MessageQueue], int]
"""Returns the offset of a held queue below which all messages are acknowledged or filtered out."""


class MemberCommits:
    """Commits offsets of held queues.

    Args:
        engine: The engine.
        offsets: The committed offsets of the member.
        group: The group.
        held: The held queues.
        commit_point: Returns the offset to commit; None if the owner commits.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self,
        engine: ClientEngine,
        offsets: CommittedOffsets,
        group: str,
        held: HeldQueues,
        commit_point: CommitPoint | None,
    ) -> None:
        self._engine = engine
        self._offsets = offsets
        self._group = group
        self._held = held
        self._commit_point = commit_point
        self._logged_ms: dict[str, int] = {}

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of a queue. Raises InvalidArgumentError if it is not held, ClientError as `Offsets`."""
        if queue not in self._held:
            raise InvalidArgumentError("queue", queue, "is not held by this member")
        commit = Commit(offset, self._held.epoch(queue))
        error = (await self._offsets.commit({queue: commit})).get(queue)
        if error is not None:
            raise error
        self._held.committed(queue, *commit)

    async def run(self) -> None:
        """Commit all held queues at the engine's interval, unless the owner commits."""
        while self._commit_point is not None:
            await asyncio.sleep(self._engine.settings.offset_commit_interval_ms / 1000)
            await self.commit_all(list(self._held))

    async def commit_all(self, queues: Sequence[MessageQueue]) -> None:
        """Commit the offsets of some queues that have changed, unless the owner commits."""
        if self._commit_point is not None:
            points = {queue: self._commit_point(queue) for queue in queues}
            await self.try_commit(
                {queue: offset for queue, offset in points.items() if offset != self._held.committed_offset(queue)}
            )

    async def try_commit(self, points: Mapping[MessageQueue, int]) -> None:
        """Commit the offsets of queues. Failures are logged, each reason once a minute."""
        if not points:
            return
        commits = {queue: Commit(offset, self._held.epoch(queue)) for queue, offset in points.items()}
        errors = await self._offsets.commit(commits)
        for queue, commit in commits.items():
            if queue not in errors:
                self._held.committed(queue, *commit)
        now_ms = self._engine.clock.monotonic_ms()
        self._logged_ms = {
            reason: at_ms for reason, at_ms in self._logged_ms.items() if now_ms - at_ms < _LOG_INTERVAL_MS
        }
        failed: dict[str, list[MessageQueue]] = {}
        for queue, error in errors.items():
            # The member's owner learns from the brokers' other answers that the group was deleted.
            if not isinstance(error, BrokerError) or error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                failed.setdefault(str(error), []).append(queue)
        for reason, left in failed.items():
            # The next interval tries again. Uncommitted messages are delivered again, not lost.
            if reason not in self._logged_ms:
                log.warning(
                    "offsets not committed", group=self._group, count=len(left), first=str(left[0]), error=reason
                )
                self._logged_ms[reason] = now_ms
