"""The committed offsets of a member: those of its group on the brokers, or its own (localoffsets.py)."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from gantry.client.consumer.offsets import Offsets
from gantry.client.errors import ClientError
from gantry.model.message import MessageQueue


class Commit(NamedTuple):
    """An offset to commit, and the epoch of the latest reset that the member knows."""

    offset: int
    epoch: int


class CommittedOffsets(Protocol):
    """The committed offsets of one member."""

    async def committed(self, queue: MessageQueue) -> tuple[int | None, int]:
        """Return the committed offset, and the epoch of its latest reset; None and 0 if there is none.

        Raises:
            ClientError: It can't be read now.
        """
        ...

    async def commit(self, commits: Mapping[MessageQueue, Commit]) -> Mapping[MessageQueue, ClientError]:
        """Commit offsets. Return the error of each queue whose offset was not committed."""
        ...


class GroupOffsets:
    """The offsets of a group, which the masters of the queues keep for all members together."""

    def __init__(self, offsets: Offsets, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def committed(self, queue: MessageQueue) -> tuple[int | None, int]:
        """Ask the master of the queue."""
        return await self._offsets.committed(self._group, queue)

    async def commit(self, commits: Mapping[MessageQueue, Commit]) -> Mapping[MessageQueue, ClientError]:
        """Commit all offsets at once: a master that hangs must not delay the commits on the others."""
        results = await asyncio.gather(*(self._commit(queue, commit) for queue, commit in commits.items()))
        return {queue: error for queue, error in zip(commits, results, strict=True) if error is not None}

    async def _commit(self, queue: MessageQueue, commit: Commit) -> ClientError | None:
        try:
            await self._offsets.commit_offset(self._group, queue, commit.offset, epoch=commit.epoch)
        except ClientError as error:
            return error
        return None
