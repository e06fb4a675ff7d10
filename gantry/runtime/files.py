"""Files: the interface between the store and the operating system.

A `File` has a fixed size. Callers read and write it through its map or by position (`read`, `write`). They write to a
map only by slice assignment (`memory[start:end] = data`), so that a file system in memory can observe, drop or tear
every single write. They may read a map by slices (a copy) or by `memoryview(memory)` (no copy). The map shows the bytes
of `write` at once.

An OSError names the file (`filename`), even if the system call has only a descriptor. Operators read this reason when
a store stops accepting messages.

A file may have holes: ranges that read as zeros and have no blocks yet. If the disk is full, `write` into a hole raises
OSError, but a write through the map ends the process with SIGBUS. So a caller that writes through the map calls
`allocate` for the range first. `open` never allocates: a sparse file stays sparse.

`sync` makes the bytes of a file durable. `sync_dir` makes created, renamed and removed names durable: after a power cut
a new file may be missing if its folder was not synced. `Volume.sync` makes both durable for a whole file system.

Concurrency: one thread writes. Another thread may call `sync`, which releases the GIL.
"""

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

Memory = mmap.mmap | bytearray


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The used and usable bytes of a file system. `used` + `usable` is the capacity for an ordinary user."""

    used: int
    usable: int

    @property
    def percent(self) -> int:
        """The used share as a whole percentage, rounded up as in RocketMQ."""
        total = self.used + self.usable
        return -(-self.used * 100 // total) if total else 100


class File(Protocol):
    """An open file of a fixed size."""

    path: str
    size_bytes: int

    def map(self) -> Memory:
        """Return the map of the whole file, the same object on every call."""
        ...

    def drop_descriptor(self) -> None:
        """Close the descriptor of a mapped file and keep the map.

        A later call that needs a descriptor opens the file again by its path, and raises FileNotFoundError if the path
        no longer exists. `read_now`, `write` and `allocate` keep the new descriptor. All other calls close it.
        """
        ...

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        """Write pieces one after the other, in this order, from position `at` on. The map shows them.

        Raises:
            OSError: The write failed. The number of written bytes is unknown.
        """
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from position `at` on; the range must be within the file. It may wait for the disk.

        Raises:
            OSError: The disk can't read the bytes, or the file became shorter.
        """
        ...

    def read_now(self, at: int, size: int) -> bytes | None:
        """Return the bytes as `read` does, but never wait for the disk.

        Returns:
            The bytes, or None if at least one of them is not in the page cache. Some file systems can't tell
            (EOPNOTSUPP; for example tmpfs before Linux 6.7). The call then does the same as `read`.

        Raises:
            OSError: As for `read`.
        """
        ...

    def cached_end(self, at: int, end: int) -> int:
        """Return the end of the bytes from `at` on that are in the page cache; at most `end`.

        The call reads nothing. It also starts no read-ahead, which `read_now` does if a byte is missing. The caller may
        access the map up to the returned position without waiting for the disk, unless the kernel evicts the pages in
        the meantime. The call raises no error. If the kernel can't tell, it returns `at`.
        """
        ...

    def prefetch(self, at: int, size: int) -> None:
        """Start reading a range that is needed soon into the page cache. It may wait for a place in the disk's queue.

        The call raises no error: if it fails, the range is read later, when it is needed.
        """
        ...

    def allocate(self, at: int, size: int) -> None:
        """Allocate the blocks of a range, so that a write there can't fail for lack of space. Content does not change.

        Raises:
            OSError: ENOSPC, EDQUOT. Some of the blocks may be allocated.
        """
        ...

    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Read a range. From now on the map shows zeros for the parts that the disk can't read.

        Without this call, an access to such a part through the map ends the process.

        Returns:
            The ranges that could not be read. Bytes written there through the map are lost.
        """
        ...

    def sync(self) -> None:
        """Make all bytes written so far durable (fdatasync). Raises OSError: the data may be lost then."""
        ...

    def data_end(self, start: int) -> int:
        """Return an offset, at or after `start`, from which on nothing was ever written: there are only zeros.

        The offset may be later than the real end of the data. The call finds empty space without reading it.
        """
        ...

    def close(self) -> None:
        """Unmap and close the file. Raises BufferError while a memoryview of the map exists."""
        ...


class Volume(Protocol):
    """A whole file system, represented by an open descriptor."""

    def sync(self) -> None:
        """Make all files and names of the file system durable (syncfs). Any thread may call it, but one at a time.

        Raises:
            OSError: A write-back failed after the descriptor was opened, or after it last reported a failure. This
                includes files that are closed by now.
        """
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


class FileLock(Protocol):
    """A held lock."""

    def is_current(self) -> bool:
        """Return whether the path still names the locked file or folder. If not, another process can lock the path.

        Any thread may call it, even while another thread releases the lock.

        Raises:
            OSError: The path can't be resolved at the moment.
        """
        ...

    def release(self) -> None:
        """Release the lock. The file stays."""
        ...


class FileSystem(Protocol):
    """The operations of a file system that the store uses. Paths are absolute or relative strings with `/`."""

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> File:
        """Create a file of zeros and open it. It has all its blocks or, if it is `sparse`, no blocks.

        Raises:
            FileExistsError: The file exists.
            OSError: ENOSPC and others. The file does not exist then.
        """
        ...

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open an existing file. It allocates no blocks. Raises FileNotFoundError."""
        ...

    def open_volume(self, path: str) -> Volume | None:
        """Open the file system of a folder. Return None if its `sync` would not report failed write-backs."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
        """Write a small file in place (not atomic). With `durable`, also sync the file and its folder.

        The caller passes a file of several megabytes in pieces of about 64 KiB, because the real file system releases
        the GIL for each piece.
        """
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename atomically over `target`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder. Raises OSError if it is not empty."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, if they do not exist."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder does not exist."""
        ...

    def list_files(self, path: str) -> list[tuple[str, int]]:
        """Return the sorted names and sizes of the files in a folder, without its folders.

        Return an empty list if the folder does not exist.
        """
        ...

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder. Raises OSError if it can't find out (no memory, no permission)."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists. Raises OSError if it can't find out (no memory, no permission)."""
        ...

    def size_bytes(self, path: str) -> int:
        """Return the size of a file. Raises FileNotFoundError."""
        ...

    def allocated_bytes(self, path: str) -> int:
        """Return the number of bytes that a file uses on the disk. Raises FileNotFoundError."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write to a file, as wall time in ms."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def lock(self, path: str) -> FileLock:
        """Lock byte 0 of a file. A missing file is created. Raises AlreadyLockedError."""
        ...

    def lock_dir(self, path: str) -> FileLock:
        """Lock a folder. Such a lock survives the removal of files in the folder.

        Raises AlreadyLockedError, FileNotFoundError.
        """
        ...

    def drop_cache(self, path: str) -> int:
        """Sync a file and drop its pages from the page cache, so that the next read comes from the disk.

        The file must not be mapped in this process.

        Returns:
            The number of bytes that stay in the cache and can't be compared with the disk. It is 0, except in a memory
            file system.

        Raises:
            OSError: The disk reported an error, or pages that another process keeps in the cache differ from the disk.
        """
        ...

    def disk_usage(self, path: str) -> DiskUsage:
        """Return the used and usable bytes of the disk that contains the path."""
        ...


def write_atomically(files: FileSystem, path: str, data: bytes | Iterable[bytes]) -> None:
    """Replace a small file and make it durable. A crash leaves the old or the new content, never a mixture."""
    temporary = path + ".tmp"
    files.write(temporary, data, durable=True)
    files.replace(temporary, path)
    files.sync_dir(os.path.dirname(path) or ".")


def make_dirs_durably(files: FileSystem, path: str) -> None:
    """Create a folder and its parents, if they do not exist, and make their names durable."""
    made: list[str] = []
    at = path
    while at and not files.exists(at):
        made.append(at)
        at = os.path.dirname(at)
    files.make_dirs(path)
    for folder in made:
        files.sync_dir(os.path.dirname(folder) or ".")
