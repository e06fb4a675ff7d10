"""FairGate: lets a few in at a time, and each holder in its turn, however many of one holder stand in line."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairGate:
    """A gate with room for so many; those of one holder enter in order, and holders take turns.

    Who needs more room than is free waits for it, and nobody passes meanwhile.

    Concurrency: the event loop's thread.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._free = room
        # By holder, in the order of their turns: who stands in line, and how much room each needs.
        self._lines: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @property
    def waiting(self) -> int:
        """Return how many stand in line."""
        return sum(len(line) for line in self._lines.values())

    @asynccontextmanager
    async def enter(self, holder: str, room: int = 1) -> AsyncIterator[None]:
        """Wait for room, and have it until the block ends; who needs more than there is gets all of it."""
        room = min(room, self._room)
        if self._free >= room and not self._lines:
            self._free -= room
        else:
            await self._stand_in_line(holder, room)
        try:
            yield
        finally:
            self._leave(room)

    async def _stand_in_line(self, holder: str, room: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(holder, deque()).append((turn, room))
        try:
            await turn
        except asyncio.CancelledError:
            # It may have been let in just now, and goes without having entered; or those behind it need less room.
            self._leave(0 if turn.cancelled() else room)
            raise

    def _leave(self, room: int = 1) -> None:
        """Let in whoever there is room for now: the first of each holder whose turn it is."""
        self._free += room
        while self._lines:
            holder = next(iter(self._lines))
            line = self._lines[holder]
            turn, needed = line[0]
            if not turn.done() and needed > self._free:
                return
            del self._lines[holder]
            line.popleft()
            if line:
                self._lines[holder] = line  # Behind the other holders.
            if not turn.done():
                self._free -= needed
                turn.set_result(None)
            # Otherwise it was cancelled while it stood in line.
