"""Reads take turns: a connection with much data is not read again before others have had their turn.

A readable socket is read up to 32 times in one turn of the event loop, a quarter of a MiB each time. A few callers that
send at full speed would make each turn tens of ms long, however the gateway processes their bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_READ_BYTES: Final = 64 * 1024
"""Size of a read from which more data is probably waiting."""
# About 2 ms.
_READS_MAX: Final = 4


class ReadTurns:
    """Lets a few connections be read in each turn of the event loop, those that wait longest first.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()

    def enqueue(self, resume: Callable[[], None]) -> None:
        """Call `resume` when a paused connection may be read again, in the next turn or later."""
        self._line.append(resume)
        if len(self._line) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        for _ in range(min(_READS_MAX, len(self._line))):
            self._line.popleft()()
        if self._line:
            asyncio.get_running_loop().call_soon(self._next)
