"""Waits until the timer has read a message of its queue.

Concurrency: the loop's thread.
"""

import asyncio
from collections.abc import Callable


class ReadWaits:
    """The waits of one broker."""

    def __init__(self, next_offset: Callable[[], int]) -> None:
        """Make it; `next_offset` returns the offset of the next message that the timer reads."""
        self._next_offset = next_offset
        self._waits: list[tuple[int, asyncio.Future[None]]] = []

    async def wait(self, queue_offset: int, timeout_s: float) -> None:
        """Wait until the message at an offset is read, at most for this time."""
        if queue_offset < self._next_offset():
            return
        read = asyncio.get_running_loop().create_future()
        self._waits.append((queue_offset, read))
        await asyncio.wait((read,), timeout=timeout_s)
        read.cancel()

    def wake(self) -> None:
        """End the waits for messages that are read."""
        if not self._waits:
            return
        next_offset = self._next_offset()
        for queue_offset, read in self._waits:
            if queue_offset < next_offset and not read.done():
                read.set_result(None)
        self._waits = [each for each in self._waits if not each[1].done()]
