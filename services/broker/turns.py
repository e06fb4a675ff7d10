"""Turns: long work is done in slices of about half a millisecond, and all of it together leaves the loop its share.

The pause after a slice is time asleep and not a turn of the loop: a thread that waits for the interpreter, as the one
that flushes does, gets it from a loop that is always busy only every 5 ms, and every send would wait for that.

Concurrency: the loop's thread only.
"""

import asyncio
from types import TracebackType

# The shortest sleep of the event loop.
PAUSE_S = 0.001


class Turns:
    """Taken with `async with` for each slice, which says by `spend` how much of a whole one it was."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._rests_until_s = 0.0
        # Since the last pause, in whole slices.
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
        """Let the next one have its turn."""
        if self._spent >= 1:
            self._spent = 0.0
            self._rests_until_s = asyncio.get_running_loop().time() + PAUSE_S
        self._lock.release()

    def spend(self, share: float) -> None:
        """Say how much of a whole slice was done."""
        self._spent += share
