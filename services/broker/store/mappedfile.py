"""One file of the store: a mapped one of a MappedFileQueue or of the index, or one that is read by position.

Concurrency: the store's thread reads and writes; a worker may `sync`. `close` and `remove` happen in the worker that
syncs files of this kind, after the store's thread has forgotten the file, so that they never meet a `sync`.
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
        """Return where it lies."""
        ...

    def close(self) -> bool:
        """Close it; False while somebody still looks into its map."""
        ...


DroppedFiles = Sequence[ClosableFile]


class MappedFile:
    """A file, the offset of its first byte, and its map.

    Attributes:
        start: Offset of the first byte in the whole sequence of files.
        end: Offset of the byte after the last one.
        memory: The map; written by slice assignment only.
        is_dirty: Something was written since the last `sync` began.
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
        """Make what was written so far durable. Raises OSError: then nobody knows what is on the disk."""
        self.is_dirty = False  # Before the sync: what is written during it counts for the next one.
        self.file.sync()

    def write(self, at: int, data: bytes) -> None:
        """Write at a position in this file."""
        self.memory[at : at + len(data)] = data
        self.is_dirty = True

    def try_read(self, at: int, size: int) -> bytes | None:
        """Read bytes by position; None where the disk can't read them, which would end the process through the map.

        Raises:
            OSError: The operating system refused for another reason.
        """
        try:
            return self.file.read(at, size)
        except OSError as error:
            if error.errno != EIO:
                raise
            return None

    def close(self) -> bool:
        """Unmap and close; False while somebody still holds a memoryview of the map ("hanged")."""
        try:
            self.file.close()
        except BufferError:
            return False
        return True

    def written_range(self, start: int) -> tuple[int, int] | None:
        """Return where, from `start` on, the first byte that is not zero lies and the last one ends, or None."""
        end = self.file.data_end(start)
        for chunk in range(start, end, _ZERO_BYTES):
            stop = min(chunk + _ZERO_BYTES, end)
            data = self.memory[chunk:stop]
            if data != _ZEROS[: stop - chunk]:
                first = stop - len(data.lstrip(b"\0"))
                return first, find_used_end(self.memory, first, end=end)
        return None

    def zero_from(self, at: int) -> int:
        """Make everything from a position on zero.

        Returns:
            How many bytes were not zero, from the first to the last of them.
        """
        dirty = self.written_range(at)
        if dirty is None:
            return 0
        start, end = dirty
        for chunk in range(start, end, _ZERO_BYTES):
            stop = min(chunk + _ZERO_BYTES, end)
            if self.memory[chunk:stop] != _ZEROS[: stop - chunk]:
                # Not through the map: part of it may be a hole, and the disk full.
                self.is_dirty = True
                self.file.write(chunk, (_ZEROS[: stop - chunk],))
        return end - start


class UnmappedFile:
    """A file that is read by position, through a pool of descriptors.

    Attributes:
        start: Offset of the first byte in the whole sequence of files.
        end: Offset of the byte after the last one.
        file: Its bytes.
    """

    __slots__ = ("end", "file", "start")

    def __init__(self, start: int, file: PooledFile) -> None:
        self.start = start
        self.end = start + file.size_bytes
        self.file = file

    @property
    def path(self) -> str:
        """Return where it lies."""
        return self.file.path

    def read(self, at: int, size: int) -> bytes:
        """Return bytes from a position on. Waits for the disk."""
        return self.file.read(at, size)


_ZERO_BYTES = 1 << 16
_ZEROS = bytes(_ZERO_BYTES)


def is_gone(files: FileSystem, path: str) -> bool:
    """Say whether a file that is open has lost its name; False where the system can't look (no memory)."""
    try:
        return not files.exists(path)
    except OSError:
        return False


def remove_file(files: FileSystem, path: str) -> None:
    """Remove a file that may already be gone."""
    try:
        files.remove(path)
    except FileNotFoundError:
        return
