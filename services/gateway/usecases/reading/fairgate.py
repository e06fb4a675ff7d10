"""FairGate: admits a few at a time and serves holders in turn, however long the line of one holder is."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairGate:
    """A gate with limited room. The entries of one holder are admitted in order, and holders take turns.

    An entry that needs more room than is free waits for it, and no other entry passes it.

    Concurrency: the event loop's thread.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._free = room
        # Holder → its waiting entries and the room that each needs; holders are in the order of their turns.
        self._lines: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of waiting entries."""
        return sum(len(line) for line in self._lines.values())

    @asynccontextmanager
    async def enter(self, holder: str, room: int = 1) -> AsyncIterator[None]:
        """Wait for room and hold it until the block ends; a need beyond the whole room gets all of it."""
        room = min(room, self._room)
        if self._free >= room and not self._lines:
            self._free -= room
        else:
            await self._wait_for_turn(holder, room)
        try:
            yield
        finally:
            self._leave(room)

    async def _wait_for_turn(self, holder: str, room: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(holder, deque()).append((turn, room))
        try:
            await turn
        except asyncio.CancelledError:
            # If it was admitted just now, its room is released; if not, entries behind it may need less room and fit
            # now.
            self._leave(0 if turn.cancelled() else room)
            raise

    def _leave(self, room: int = 1) -> None:
        """Release room, and admit the entries that fit now: the first of each holder, in turn."""
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
                self._lines[holder] = line  # The holder goes behind the other holders.
            if not turn.done():
                self._free -= needed
                turn.set_result(None)
            # Otherwise the entry was cancelled while it waited.
