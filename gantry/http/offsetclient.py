"""The methods of both clients that reset offsets of groups."""

from collections.abc import Sequence

from gantry.http import offsetcalls
from gantry.http.baseclient import AsyncBaseClient, BaseClient
from gantry.http.offsetresults import OffsetReset
from gantry.http.results import OffsetCommit


class OffsetClient(BaseClient):
    """Resets of offsets."""

    def reset_offsets(
        self, group: str, topic: str, to: str | Sequence[OffsetCommit], *, dry_run: bool = False
    ) -> OffsetReset:
        """Move a group, whose consumers may run, to `earliest`, `latest`, a time, or an offset for each queue.

        With `dry_run`, nothing changes, and the result shows what would happen.
        """
        return self.run(offsetcalls.reset_offsets(group, topic, to, dry_run=dry_run))

    def undo_offset_reset(self, group: str, undo: str) -> OffsetReset:
        """Bring back the offsets from before a reset. Refused if the group has consumed since."""
        return self.run(offsetcalls.undo_offset_reset(group, undo))

    def clone_offsets(
        self, group: str, from_group: str, *, topic: str | None = None, dry_run: bool = False
    ) -> OffsetReset:
        """Set the committed offsets of a group to those of another; `topic` None means all topics of the other one."""
        return self.run(offsetcalls.clone_offsets(group, from_group, topic=topic, dry_run=dry_run))


class AsyncOffsetClient(AsyncBaseClient):
    """Resets of offsets."""

    async def reset_offsets(
        self, group: str, topic: str, to: str | Sequence[OffsetCommit], *, dry_run: bool = False
    ) -> OffsetReset:
        """Move a group, whose consumers may run, to `earliest`, `latest`, a time, or an offset for each queue.

        With `dry_run`, nothing changes, and the result shows what would happen.
        """
        return await self.run(offsetcalls.reset_offsets(group, topic, to, dry_run=dry_run))

    async def undo_offset_reset(self, group: str, undo: str) -> OffsetReset:
        """Bring back the offsets from before a reset. Refused if the group has consumed since."""
        return await self.run(offsetcalls.undo_offset_reset(group, undo))

    async def clone_offsets(
        self, group: str, from_group: str, *, topic: str | None = None, dry_run: bool = False
    ) -> OffsetReset:
        """Set the committed offsets of a group to those of another; `topic` None means all topics of the other one."""
        return await self.run(offsetcalls.clone_offsets(group, from_group, topic=topic, dry_run=dry_run))
