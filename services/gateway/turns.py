"""Turns: pieces of work get the event loop a few at a time, and keys take turns.

Each piece blocks the loop for a few ms at most, but a loop runs all that is ready before it looks at sockets again.
Fifty streams with messages to write, publishes to read, or two thousand requests at once would make one turn of the
loop half a second long, and another caller's send takes several turns. So such a piece waits for its turn here, and one
turn of the loop runs about `TURN_BYTES` of them. A piece without competitors does not wait.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

# Bytes of frames and records in a turn: about 5 ms of work.
TURN_BYTES: Final = 64 * 1024
# Limit of pieces in a turn, because small frames cost more than their bytes.
PIECES_MAX: Final = 32
MESSAGE_BYTES: Final = 64
"""Bytes counted for each message in a piece of work on many, beside its own bytes."""

Turn = Callable[[int], Awaitable[None]]
"""Waits until a piece of work of about this many bytes may be done."""


class Turns:
    """Shares out each turn of the event loop.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        # Key → its waiting pieces, each with its start function and size; keys are in the order of their turns.
        self._lines: dict[str, deque[tuple[Callable[[], bool], int]]] = {}
        self._left = TURN_BYTES
        self._is_counting = False

    @property
    def waiting(self) -> int:
        """Return the number of waiting pieces."""
        return sum(len(line) for line in self._lines.values())

    def take_at_once(self, size: int) -> bool:
        """Return whether a piece of work of about `size` bytes may be done at once; if so, it is counted."""
        if self._left <= 0 or self._lines:
            return False
        self._spend(size)
        return True

    async def take(self, key: str, size: int) -> None:
        """Wait until a piece of work of about `size` bytes may be done; it must then be done without waiting again."""
        if self.take_at_once(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if turn.done():
                return False  # It was cancelled while it waited.
            turn.set_result(None)
            return True

        self.enqueue(key, size, begin)
        await turn

    def enqueue(self, key: str, size: int, begin: Callable[[], bool]) -> None:
        """Start a piece of work in its turn, after `take_at_once` has returned False.

        Args:
            key: Key that takes turns with others.
            size: Approximate number of bytes.
            begin: Does the work, or returns False if it is no longer wanted.
        """
        self._lines.setdefault(key, deque()).append((begin, size))

    def _spend(self, size: int) -> None:
        self._left -= max(size, TURN_BYTES // PIECES_MAX)
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next turn of the loop: start the next pieces; one that is too large for a turn is started alone."""
        self._is_counting = False
        self._left = TURN_BYTES
        while self._lines and self._left > 0:
            key, line = next(iter(self._lines.items()))
            begin, size = line.popleft()
            del self._lines[key]
            if line:
                self._lines[key] = line  # The key goes behind the other keys.
            if begin():
                self._spend(size)
