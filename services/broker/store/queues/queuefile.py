"""One file of a ConsumeQueue: it has its full length from the beginning, and blocks for its data and a little more.

The file is not mapped. A map takes a descriptor for as long as it exists, and a write through it into a hole on a full
disk ends the process. `pwrite` returns an error instead, and a descriptor can be closed and opened again.

Concurrency: the store's thread only; a worker syncs through the pool.
"""

from errno import EIO
from typing import Final

from gantry.runtime.openfiles import PooledFile
from gantry.runtime.telemetry import logger
from services.broker.store.files.allocation import allocate_ahead
from services.broker.store.files.mappedfile import UnmappedFile

ALLOCATED_MAX: Final = 256 << 10
_CHUNK_BYTES: Final = 64 << 10

log = logger("broker.store")


class QueueFile(UnmappedFile):
    """A file and its position in the queue."""

    __slots__ = ("_allocated", "_is_closed")

    def __init__(self, start: int, file: PooledFile) -> None:
        super().__init__(start, file)
        # The blocks of a file that was just opened are not known; the first write finds out.
        self._allocated = 0
        self._is_closed = False

    def write(self, at: int, data: bytes) -> None:
        """Write at a position.

        If somebody removed the file, it is created again, because one queue must not stop all others. Its earlier
        content is blank until a start rebuilds it from the CommitLog.

        Raises:
            StoreFullError: There are no free blocks. Nothing was written.
            OSError: The file can't be opened or written.
        """
        if self.file.file is None and self.file.open_or_make():
            self._allocated = 0
            log.error("somebody removed a file of a queue; the next start builds it again", path=self.path)
        end = at + len(data)
        if end > self._allocated:
            self._allocated = allocate_ahead(self.file, max(at, self._allocated), end, step_max=ALLOCATED_MAX)
        self.file.write(at, data)

    def prepare(self) -> None:
        """Allocate the first block. Raises StoreFullError."""
        self._allocated = allocate_ahead(self.file, 0, 1, step_max=ALLOCATED_MAX)

    def is_readable(self) -> bool:
        """Read all data in the file; return False if the disk can't read a part."""
        end = self.file.data_end(0)
        try:
            for at in range(0, end, _CHUNK_BYTES):
                self.read(at, min(_CHUNK_BYTES, end - at))
        except OSError as error:
            if error.errno != EIO:
                raise
            return False
        return True

    def used_end(self) -> int:
        """Return the position after the last byte that is not zero."""
        end = min(self.file.data_end(0), self.file.size_bytes)
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            used = self.read(start, end - start).rstrip(b"\0")
            if used:
                return start + len(used)
            end = start
        return 0

    def zero_from(self, at: int) -> None:
        """Set everything from a position on to zero."""
        end = self.used_end()
        for start in range(at, end, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, end - start)
            if self.read(start, size).strip(b"\0"):
                self.file.write(start, bytes(size))

    def close(self) -> bool:
        """Close the file before its removal; return True, like a MappedFile whose map is not in use."""
        if not self._is_closed:
            self._is_closed = True
            self.file.close()
        return True
