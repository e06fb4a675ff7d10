"""Turns: large pieces of work have the event loop a few at a time, and keys take turns.

Each piece holds the loop for a few ms at most, but a loop runs all that is ready before it looks at sockets again: fifty
streams with messages to be written, or publishes to be read, make one turn of the loop half a second long, and a neighbour's
send takes several turns. So such a piece waits for its turn here, and in one turn of the loop there is about
`TURN_BYTES` of it. A piece that has no competitor does not wait.
"""

import asyncio
from collections import deque
from typing import Final

# Of frames and records: about 5 ms of work.
TURN_BYTES: Final = 64 * 1024
# Small frames cost more than their bytes say: there are at most so many pieces in a turn.
PIECES_MAX: Final = 32


class Turns:
    """Shares out each turn of the event loop.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        # By key, in the order of their turns.
        self._lines: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        self._left = TURN_BYTES
        self._is_counting = False

    @property
    def waiting(self) -> int:
        """Return how many pieces wait."""
        return sum(len(line) for line in self._lines.values())

    async def take(self, key: str, size: int) -> None:
        """Wait until a piece of work of about so many bytes may be done; it must be done at once, without waiting again."""
        if self._left > 0 and not self._lines:
            self._spend(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append((turn, size))
        await turn

    def _spend(self, size: int) -> None:
        self._left -= max(size, TURN_BYTES // PIECES_MAX)
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next turn of the loop: let in whoever comes next, and the one who is too large for it alone."""
        self._is_counting = False
        self._left = TURN_BYTES
        while self._lines and self._left > 0:
            key, line = next(iter(self._lines.items()))
            turn, size = line.popleft()
            del self._lines[key]
            if line:
                self._lines[key] = line  # Behind the other keys.
            if not turn.done():
                self._spend(size)
                turn.set_result(None)
            # Otherwise it was cancelled while it stood in line.
