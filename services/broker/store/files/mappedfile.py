"""One file of the store: a mapped file of a MappedFileQueue or of the index, or a file that is read by position.

Concurrency: the store's thread reads and writes; a worker may `sync`. The worker that syncs files of this kind also
calls `close` and `remove`, after the store's thread has dropped the file. They therefore never run during a `sync`.
"""

from collections.abc import Sequence
from errno import EIO
from typing import Protocol

from gantry.runtime.files import File, FileSystem, Memory
from gantry.runtime.openfiles import PooledFile
from gantry.storeformat.resync import find_used_end


class ClosableFile(Protocol):
    """A file whose name a worker removes."""

    @property
    def path(self) -> str:
        """Return the file's path."""
        ...

    def close(self) -> bool:
        """Close the file; return False while the map is still in use."""
        ...


DroppedFiles = Sequence[ClosableFile]


class MappedFile:
    """A file, the offset of its first byte, and its map.

    Attributes:
        start: The offset of the file's first byte in the whole sequence of files.
        end: The offset of the byte after the file's last one.
        memory: The map; written by slice assignment only.
        is_dirty: Whether bytes were written since the last `sync` began.
    """

    __slots__ = ("end", "file", "is_dirty", "memory", "path", "start")

    def __init__(self, start: int, file: File) -> None:
        self.start = start
        self.end = start + file.size_bytes
        self.file = file
        self.path = file.path
        self.memory: Memory = file.map()
        self.is_dirty = False

    def sync(self) -> None:
        """Make everything written so far durable. Raises OSError; then the state of the disk is unknown."""
        self.is_dirty = False  # Before the sync: bytes that are written during it count for the next one.
        self.file.sync()

    def write(self, at: int, data: bytes) -> None:
        """Write at a position in this file."""
        self.memory[at : at + len(data)] = data
        self.is_dirty = True

    def try_read(self, at: int, size: int) -> bytes | None:
        """Read bytes by position; return None if the disk can't read them. Reading the map would end the process.

        Raises:
            OSError: The operating system reported another error.
        """
        try:
            return self.file.read(at, size)
        except OSError as error:
            if error.errno != EIO:
                raise
            return None

    def close(self) -> bool:
        """Unmap and close the file; return False while a memoryview of the map is still in use (a "hanged" file)."""
        try:
            self.file.close()
        except BufferError:
            return False
        return True

    def written_range(self, start: int) -> tuple[int, int] | None:
        """Return the start and the end of the bytes from `start` on that are not zero, gaps included, or None."""
        end = self.file.data_end(start)
        for chunk in range(start, end, _ZERO_BYTES):
            stop = min(chunk + _ZERO_BYTES, end)
            data = self.memory[chunk:stop]
            if data != _ZEROS[: stop - chunk]:
                first = stop - len(data.lstrip(b"\0"))
                return first, find_used_end(self.memory, first, end=end)
        return None

    def zero_from(self, at: int) -> int:
        """Set everything from a position on to zero.

        Returns:
            The number of bytes from the first to the last one that was not zero.
        """
        dirty = self.written_range(at)
        if dirty is None:
            return 0
        start, end = dirty
        for chunk in range(start, end, _ZERO_BYTES):
            stop = min(chunk + _ZERO_BYTES, end)
            if self.memory[chunk:stop] != _ZEROS[: stop - chunk]:
                # The map is not used: part of it may be a hole, and the disk may be full.
                self.is_dirty = True
                self.file.write(chunk, (_ZEROS[: stop - chunk],))
        return end - start


class UnmappedFile:
    """A file that is read by position, through a pool of descriptors.

    Attributes:
        start: The offset of the file's first byte in the whole sequence of files.
        end: The offset of the byte after the file's last one.
        file: The file in the pool.
    """

    __slots__ = ("end", "file", "start")

    def __init__(self, start: int, file: PooledFile) -> None:
        self.start = start
        self.end = start + file.size_bytes
        self.file = file

    @property
    def path(self) -> str:
        """Return the file's path."""
        return self.file.path

    def read(self, at: int, size: int) -> bytes:
        """Return bytes from a position on. Waits for the disk."""
        return self.file.read(at, size)


_ZERO_BYTES = 1 << 16
_ZEROS = bytes(_ZERO_BYTES)


def is_gone(files: FileSystem, path: str) -> bool:
    """Return whether an open file has lost its name; False if the system can't tell (no memory)."""
    try:
        return not files.exists(path)
    except OSError:
        return False


def remove_file(files: FileSystem, path: str) -> None:
    """Remove a file, which may already be gone."""
    try:
        files.remove(path)
    except FileNotFoundError:
        return
