"""Files: the seam between the store and the operating system.

A `File` has a fixed size and is read and written either through its map or by position (`read`, `write`). All writing
to a map goes through slice assignment (`memory[start:end] = data`) and nothing else, so that a file system in memory
can see, drop or tear every single write. Reading may use slices (a copy) or `memoryview(memory)` (no copy). The map
shows at once what `write` writes.

An OSError names the file (`filename`), also where the system call has only a descriptor: it is the reason that people
read when a store stops to take messages.

A file may have holes: ranges that read as zeros and have no blocks yet. `write` into a hole of a full disk raises
OSError; a write through the map ends the process with SIGBUS. So a caller that writes through the map calls `allocate`
for the range first. `open` never allocates: a sparse file stays sparse.

`sync` makes a file's bytes durable, `sync_dir` makes created, renamed and removed names durable: a new file
whose folder was not synced may be gone after a power cut. `Volume.sync` makes both durable for a whole file system.

Concurrency: one thread writes; `sync` may be called from another one and releases the GIL.
"""

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

Memory = mmap.mmap | bytearray


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system a path lies in; `used` + `usable` is what an ordinary user can fill."""

    used: int
    usable: int

    @property
    def percent(self) -> int:
        """Return the used share as a whole percentage, rounded up as RocketMQ does."""
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

        A later call that needs a descriptor opens the file again, by its path: FileNotFoundError if the path is gone.
        Reads, writes and `allocate` keep the new descriptor; all other calls close it.
        """
        ...

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        """Write pieces one behind the other, in this order; the map shows them.

        Raises:
            OSError: Nobody knows how much was written.
        """
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from a position on; they lie within the file. Waits for the disk.

        Raises:
            OSError: The disk can't read them, or the file became shorter.
        """
        ...

    def read_now(self, at: int, size: int) -> bytes | None:
        """Return the bytes as `read` does, but never wait for the disk.

        Returns:
            None if a byte of them is not in the page cache. A file system that can't tell (EOPNOTSUPP; tmpfs before
            Linux 6.7 is one) answers as `read`.

        Raises:
            OSError: As `read`.
        """
        ...

    def in_memory_end(self, at: int, end: int) -> int:
        """Return where the bytes from `at` on stop to be in the page cache; `end` if all of them are there.

        Reads nothing and starts no reading, which `read_now` does where a byte is missing. The map of the file may
        be touched up to that position without waiting for the disk, unless the kernel evicts the pages meanwhile.
        Raises nothing: where the kernel can't tell, the answer is `at`.
        """
        ...

    def will_need(self, at: int, size: int) -> None:
        """Start to read a range that somebody is going to read soon; may wait for a place in the disk's queue.

        Raises nothing: without it the reading starts later.
        """
        ...

    def allocate(self, at: int, size: int) -> None:
        """Give a range its blocks, so that writing there can't fail for lack of space. Content does not change.

        Raises:
            OSError: ENOSPC, EDQUOT; some of the blocks may be there.
        """
        ...

    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Read a range; where the disk can't read it, the map shows zeros from now on instead of ending the process.

        Returns:
            The ranges that could not be read. Bytes written there through the map are lost.
        """
        ...

    def sync(self) -> None:
        """Make everything written so far durable (fdatasync). Raises OSError; the data may then be lost."""
        ...

    def data_end(self, start: int) -> int:
        """Return an offset behind which, from `start` on, there are only zeros: allocated and never written.

        May be later than need be; tells what is empty without reading it.
        """
        ...

    def close(self) -> None:
        """Unmap and close. Raises BufferError while somebody still holds a memoryview of the map."""
        ...


class Volume(Protocol):
    """A file system as a whole, held by a descriptor."""

    def sync(self) -> None:
        """Make all its files and names durable (syncfs). May be called from any thread, one at a time.

        Raises:
            OSError: A write-back failed since the descriptor was opened or last reported one, even of a file that is
                closed by now.
        """
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class FileLock(Protocol):
    """A held lock."""

    def is_there(self) -> bool:
        """Say whether the path still names the file or folder that is locked; if not, others can lock the path.

        May be called from any thread, also while another one releases the lock.

        Raises:
            OSError: The path can't be followed now.
        """
        ...

    def release(self) -> None:
        """Give the lock back; the file stays."""
        ...


class FileSystem(Protocol):
    """What the store needs of a file system. Paths are absolute or relative strings with `/`."""

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> File:
        """Create a file of zeros and open it, with all its blocks or, if it is `sparse`, without any.

        Raises:
            FileExistsError: There is one.
            OSError: ENOSPC and others; then there is no file.
        """
        ...

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open an existing file, and allocate nothing. Raises FileNotFoundError."""
        ...

    def open_volume(self, path: str) -> Volume | None:
        """Hold the file system that a folder lies in; None where its `sync` would not report failed write-backs."""
        ...

    def read(self, path: str) -> bytes:
        """Return a small file's content. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
        """Write a small file in place (not atomic); with `durable` also sync it and its folder.

        A file of megabytes comes in pieces of some 64 KiB: the real file system releases the GIL for each of them.
        """
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename atomically over `target`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder. Raises OSError when it is not empty."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents where they are missing."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty when there is no such folder."""
        ...

    def list_files(self, path: str) -> list[tuple[str, int]]:
        """Return name and size of each file in a folder, sorted; folders are left out. Empty if there is no folder."""
        ...

    def is_dir(self, path: str) -> bool:
        """Say whether the path is a folder. Raises OSError if that can't be known (no memory, no rights)."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether the path exists. Raises OSError if that can't be known (no memory, no rights)."""
        ...

    def size_bytes(self, path: str) -> int:
        """Return a file's size. Raises FileNotFoundError."""
        ...

    def allocated_bytes(self, path: str) -> int:
        """Return how many bytes of the disk a file's content takes. Raises FileNotFoundError."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the wall time in ms at which a file was last written."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def lock(self, path: str) -> FileLock:
        """Lock byte 0 of a file, made if missing. Raises AlreadyLockedError."""
        ...

    def lock_dir(self, path: str) -> FileLock:
        """Lock a folder itself, which outlives every file in it. Raises AlreadyLockedError, FileNotFoundError."""
        ...

    def drop_cache(self, path: str) -> int:
        """Have the next read of a file come from the disk: sync the file and drop its pages from the page cache.

        Nobody in this process may have the file mapped.

        Returns:
            How many bytes stay in the cache and can't be compared with the disk; 0 but in a memory file system.

        Raises:
            OSError: The disk refused, or what another process keeps in the cache differs from the disk.
        """
        ...

    def disk_usage(self, path: str) -> DiskUsage:
        """Return how full the disk is that holds the path."""
        ...


def write_atomically(files: FileSystem, path: str, data: bytes | Iterable[bytes]) -> None:
    """Replace a small file so that a crash leaves the old or the new content, never a mixture; durable."""
    temporary = path + ".tmp"
    files.write(temporary, data, durable=True)
    files.replace(temporary, path)
    files.sync_dir(os.path.dirname(path) or ".")
