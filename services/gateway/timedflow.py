"""Flow control that stops a caller's clock while the gateway itself does not read.

The gateway stops reading a connection while a request on it waits for its turn, and while the received part of a body
is not consumed. The rest of a head or body may be in the socket meanwhile, so its caller is not late. Connections with
much data are read in turn (readturns.py).
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from services.gateway.readturns import ReadTurns


class TimedConnection(Protocol):
    """A connection, as far as its times are concerned."""

    head_since: float | None
    body_since: float | None


class TimedFlow(FlowControl):
    """Pauses a connection's reading, and moves the start times of its head and body by the length of the pause.

    Concurrency: the event loop's thread.
    """

    def __init__(
        self, transport: asyncio.Transport, timed: TimedConnection, reads: ReadTurns, now: Callable[[], float]
    ) -> None:
        super().__init__(transport)
        # The connection has the flow: a reference back would leave both to the garbage collector.
        self._timed = weakref.proxy(timed)
        self._reads = reads
        self._now = now
        self._paused_at = 0.0
        self._is_queued = False

    def take_turn(self) -> None:
        """Read nothing until others were read, because much data was received."""
        if not self._is_queued:
            self._is_queued = True
            if not self.read_paused:
                self._transport.pause_reading()
            self._reads.enqueue(self._resume)

    def pause_reading(self) -> None:
        """Stop reading until resumed."""
        if not self.read_paused:
            self.read_paused = True
            self._paused_at = self._now()
            if not self._is_queued:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.read_paused:
            self.read_paused = False
            if not self._is_queued:
                self._transport.resume_reading()
            paused_s = self._now() - self._paused_at
            timed = self._timed
            if timed.head_since is not None:
                timed.head_since += paused_s
            if timed.body_since is not None:
                timed.body_since += paused_s

    def hand_over(self) -> None:
        """Read again at once, because another protocol controls the connection's reading from now on."""
        self.resume_reading()
        self._resume()

    def _resume(self) -> None:
        if self._is_queued:
            self._is_queued = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()
