"""FairGate: lets a few in at a time, and each holder in its turn, however many of one holder stand in line."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairGate:
    """A gate with room for so many; those of one holder enter in order, and holders take turns.

    Concurrency: the event loop's thread.
    """

    def __init__(self, room: int) -> None:
        self._free = room
        # By holder, in the order of their turns.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """Return how many stand in line."""
        return sum(len(line) for line in self._lines.values())

    @asynccontextmanager
    async def enter(self, holder: str) -> AsyncIterator[None]:
        """Wait for room, and have it until the block ends."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._stand_in_line(holder)
        try:
            yield
        finally:
            self._leave()

    async def _stand_in_line(self, holder: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(holder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # It was let in just now, and goes without having entered.
            raise

    def _leave(self) -> None:
        """Let the next one in: the first of the holder whose turn it is."""
        while self._lines:
            holder = next(iter(self._lines))
            line = self._lines.pop(holder)
            turn = line.popleft()
            if line:
                self._lines[holder] = line  # Behind the other holders.
            if not turn.done():
                turn.set_result(None)
                return
            # It was cancelled while it stood in line.
        self._free += 1
