"""The deletion of a group under its members: told once, and the end of it, too.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gantry.client.errors import ClientError, GroupDeletedError
from gantry.runtime.tasks import wait_for_event
from gantry.runtime.telemetry import logger

log = logger("client.group")

PAUSE_MS_MIN: Final = 1_000
PAUSE_MS_MAX: Final = 20_000


class DeletionNotices:
    """Tells a member's owner that brokers say that the group was deleted, and that it exists again.

    Args:
        group: The group.
        client_id: Id of the member.
        on_deleted: Called whenever a broker says so; None: nobody is told.
        on_restored: Called when the group exists again after that. None: the log tells both, each once.
    """

    def __init__(
        self,
        group: str,
        client_id: str,
        on_deleted: Callable[[], None] | None,
        on_restored: Callable[[], None] | None,
    ) -> None:
        self._group = group
        self._client_id = client_id
        self._on_deleted = on_deleted
        self._on_restored = on_restored
        self._is_deleted = False

    def seen(self, error: GroupDeletedError) -> None:
        """Note that a broker said so."""
        if not self._is_deleted and self._on_restored is None:
            log.warning("group deleted", group=self._group, client_id=self._client_id, error=str(error))
        self._is_deleted = True
        if self._on_deleted is not None:
            self._on_deleted()

    def ended(self) -> None:
        """Note that the group exists."""
        if not self._is_deleted:
            return
        self._is_deleted = False
        if self._on_restored is None:
            log.info("the group exists again", group=self._group, client_id=self._client_id)
        else:
            self._on_restored()


class DeletionWatch:
    """The deletion as one consumer sees it: by its members, and by the pulls of each broker.

    The pulls of a deleted group wait longer and longer, and go on at once when a member sees that the group exists again.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        # The sources that say that the group is deleted: brokers, and "" for the members.
        self._sources: set[str] = set()
        self._restored = asyncio.Event()

    def seen(self, error: ClientError | None = None, *, source: str = "") -> None:
        """Note that the group is deleted. The first source is told in the log."""
        if not self._sources:
            self._restored.clear()
            log.error(
                "the group was deleted or never made: its consumers get no messages until somebody makes it",
                group=self._group,
                error=None if error is None else str(error),
            )
        self._sources.add(source)

    def ended(self, source: str | None = None) -> None:
        """Note that the group exists at a broker again; without `source`, at all of them."""
        was_deleted = bool(self._sources)
        if source is None:
            self._sources.clear()
        else:
            self._sources.discard(source)
        if was_deleted and not self._sources:
            log.info("the group exists again", group=self._group)
            self._restored.set()

    async def wait(self, pause_ms: int) -> int:
        """Wait before the next pull, at most for the pause. Return the pause after that one."""
        await wait_for_event(self._restored, pause_ms / 1000)
        return min(2 * pause_ms, PAUSE_MS_MAX)
