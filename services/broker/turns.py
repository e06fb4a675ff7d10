"""Turns: long work runs in slices of about half a millisecond, so that the loop has time for other work.

After a slice, the work sleeps instead of waiting for one turn of the loop. Without the sleep, the loop would be busy
all the time. A thread that waits for the interpreter lock, such as the flush thread, gets it from a busy loop only
every 5 ms, and every send would wait for that.

Concurrency: the loop's thread only.
"""

import asyncio
from types import TracebackType

# The shortest sleep that the event loop can make.
PAUSE_S = 0.001


class Turns:
    """The turns of long work. Each slice takes a turn with `async with`, and reports with `spend` how long it was."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._rests_until_s = 0.0
        # The work since the last pause, in whole slices.
        self._spent = 0.0

    async def __aenter__(self) -> None:
        """Wait for the turn and for the end of the pause."""
        await self._lock.acquire()
        try:
            rest_s = self._rests_until_s - asyncio.get_running_loop().time()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
        except asyncio.CancelledError:
            self._lock.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the turn to the next waiting slice; start a pause if a whole slice was spent."""
        if self._spent >= 1:
            self._spent = 0.0
            self._rests_until_s = asyncio.get_running_loop().time() + PAUSE_S
        self._lock.release()

    def spend(self, share: float) -> None:
        """Add this share of a whole slice to the work of the turn."""
        self._spent += share
