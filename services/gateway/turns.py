"""Turns: pieces of work have the event loop a few at a time, and keys take turns.

Each piece holds the loop for a few ms at most, but a loop runs all that is ready before it looks at sockets again: fifty
streams with messages to be written, publishes to be read, or two thousand requests that come at once make one turn of the
loop half a second long, and a neighbour's send takes several turns. So such a piece waits for its turn here, and in one
turn of the loop there is about `TURN_BYTES` of it. A piece that has no competitor does not wait.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

# Of frames and records: about 5 ms of work.
TURN_BYTES: Final = 64 * 1024
# Small frames cost more than their bytes say: there are at most so many pieces in a turn.
PIECES_MAX: Final = 32
MESSAGE_BYTES: Final = 64
"""What each message counts for in a piece that does something with many, beside its own bytes."""

Turn = Callable[[int], Awaitable[None]]
"""Waits until a piece of work of about so many bytes may be done."""


class Turns:
    """Shares out each turn of the event loop.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        # By key, in the order of their turns: how each piece begins, and its size.
        self._lines: dict[str, deque[tuple[Callable[[], bool], int]]] = {}
        self._left = TURN_BYTES
        self._is_counting = False

    @property
    def waiting(self) -> int:
        """Return how many pieces wait."""
        return sum(len(line) for line in self._lines.values())

    def take_at_once(self, size: int) -> bool:
        """Say whether a piece of work of about so many bytes may be done at once; then it counts."""
        if self._left <= 0 or self._lines:
            return False
        self._spend(size)
        return True

    async def take(self, key: str, size: int) -> None:
        """Wait until a piece of work of about so many bytes may be done; it must be done at once, without waiting again."""
        if self.take_at_once(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if turn.done():
                return False  # It was cancelled while it stood in line.
            turn.set_result(None)
            return True

        self.stand_in_line(key, size, begin)
        await turn

    def stand_in_line(self, key: str, size: int, begin: Callable[[], bool]) -> None:
        """Begin a piece of work once it is its turn, after `take_at_once` has said no.

        Args:
            key: Who takes turns with others.
            size: About how many bytes.
            begin: Does it, or says False where nobody wants it any more.
        """
        self._lines.setdefault(key, deque()).append((begin, size))

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
            begin, size = line.popleft()
            del self._lines[key]
            if line:
                self._lines[key] = line  # Behind the other keys.
            if begin():
                self._spend(size)
