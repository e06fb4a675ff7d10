"""Flow control under which a caller's time stands still while the gateway itself does not read.

The gateway stops reading a connection while a request on it waits for its turn, and while nobody takes what has come of a
body. The rest of a head or body may lie in the socket meanwhile, so its caller is not late.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl


class Timed(Protocol):
    """A connection, as far as its times are concerned."""

    head_since: float | None
    body_since: float | None


class TimedFlow(FlowControl):
    """Pauses a connection's reading, and moves the begin of its head and body by as long as the pause took.

    Concurrency: the event loop's thread.
    """

    def __init__(self, transport: asyncio.Transport, timed: Timed, now: Callable[[], float]) -> None:
        super().__init__(transport)
        # The connection has the flow: a reference back would leave both to the garbage collector.
        self._timed = weakref.proxy(timed)
        self._now = now
        self._paused_at = 0.0

    def pause_reading(self) -> None:
        """Read nothing until it is resumed."""
        if not self.read_paused:
            self._paused_at = self._now()
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.read_paused:
            super().resume_reading()
            paused_s = self._now() - self._paused_at
            timed = self._timed
            if timed.head_since is not None:
                timed.head_since += paused_s
            if timed.body_since is not None:
                timed.body_since += paused_s
