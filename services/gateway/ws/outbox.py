"""The outbox of a stream: frames that wait for the one task that writes them.

An outbox is full when it holds more than HIGH_BYTES, until it holds LOW_BYTES or less. While it is full, the session
sends no messages, and the stream reads no frames of its client. A frame counts until the socket has taken it, because
the transport buffers bytes that it cannot write. `stalled_ms` detects a peer that does not take a frame for too long: a
time-out around each send would cost more than the send.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

# These may be small, because most of the data that waits for the client is in the feeds (feed.py). An empty outbox is
# filled from them at once, without a pull.
HIGH_BYTES: Final = 48 * 1024
LOW_BYTES: Final = 16 * 1024
# If the socket never makes the writer wait, other tasks still get their turn after this many bytes.
TURN_BYTES: Final = 256 * 1024


class Outbox:
    """Frames to be written, in order; their sizes are in bytes.

    Concurrency: one event loop; one task runs `run`.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        *,
        taken: Callable[[], Awaitable[None]],
        count: Callable[[int], None],
        monotonic_ms: Callable[[], int],
        on_room: Callable[[], None],
    ) -> None:
        """Create an empty outbox.

        Args:
            write: Writes one frame to the transport; waits while the transport's buffer is full.
            taken: Waits until the socket has taken the written bytes.
            count: Callback that gets each change of the number of bytes held here, negative for a decrease.
            monotonic_ms: The clock.
            on_room: Callback for when the outbox was full, and is no longer.
        """
        self._write = write
        self._taken = taken
        self._count = count
        self._monotonic_ms = monotonic_ms
        self._on_room = on_room
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._written_bytes = 0
        self._is_full = False
        self._is_dropped = False
        self._writing_since_ms: int | None = None
        self._added = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_full(self) -> bool:
        """Return whether the outbox is full: HIGH_BYTES were exceeded, and LOW_BYTES are not reached again yet."""
        return self._is_full

    def put(self, frame: bytes) -> None:
        """Append a frame, even if the outbox is full. Do nothing after `drop`."""
        if self._is_dropped:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._count(len(frame))
        self._added.set()
        self._empty.clear()
        if self._bytes > HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._room.clear()

    def take_written(self) -> int:
        """Return the number of bytes written since the last call."""
        written, self._written_bytes = self._written_bytes, 0
        return written

    def stalled_ms(self) -> int:
        """Return for how many ms the current frame has been in writing; 0 if none is."""
        since = self._writing_since_ms
        return 0 if since is None else self._monotonic_ms() - since

    async def wait_for_room(self) -> None:
        """Wait until the outbox is not full."""
        await self._room.wait()

    async def wait_until_written(self) -> None:
        """Wait until all frames are written."""
        await self._empty.wait()

    def drop(self) -> None:
        """Discard all frames; nothing is appended or written any more.

        Call it when the tasks of the stream have ended: it does not wake a task that waits for room.
        """
        self._is_dropped = True
        self._frames.clear()
        self._count(-self._bytes)
        self._bytes = 0

    async def run(self) -> None:
        """Write frames until cancelled. Raises the error of the write, an OSError if the peer has disconnected."""
        frames, write, taken = self._frames, self._write, self._taken
        turn_bytes = 0
        while True:
            while frames:
                frame = frames.popleft()
                self._writing_since_ms = self._monotonic_ms()
                await write(frame)
                await taken()
                if self._is_dropped:
                    return
                self._bytes -= len(frame)
                self._count(-len(frame))
                self._written_bytes += len(frame)
                turn_bytes += len(frame)
                if self._is_full and self._bytes <= LOW_BYTES:
                    self._is_full = False
                    self._room.set()
                    self._on_room()
                if turn_bytes > TURN_BYTES:
                    turn_bytes = 0
                    await asyncio.sleep(0)
            self._writing_since_ms = None
            self._empty.set()
            self._added.clear()
            await self._added.wait()
