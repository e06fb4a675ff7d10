"""Files: the seam between the store and the operating system.

A `File` is preallocated and mapped. All writing to a map goes through slice assignment
(`memory[start:end] = data`) and nothing else, so that a file system in memory can see, drop or tear every
single write. Reading may use slices (a copy) or `memoryview(memory)` (no copy). What is written in long stretches
goes through `write` instead: the map shows it at once, and the kernel has no page fault a page to handle.

`sync` makes a file's bytes durable, `sync_dir` makes created, renamed and removed names durable: a new file
whose folder was not synced may be gone after a power cut.

Concurrency: one thread writes; `sync` may be called from another one and releases the GIL.
"""

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gantry.runtime.errors import AlreadyLockedError

Memory = mmap.mmap | bytearray

# IOV_MAX of Linux.
_PIECES_MAX = 1024

# struct flock of Linux on 64 bits: type, whence (start of file), start 0, length 1, pid (must be 0 for OFD locks).
_LOCK_BYTE_0 = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


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

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        """Write pieces one behind the other, in this order; the map shows them.

        Raises:
            OSError: Nobody knows how much was written.
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


class FileLock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Give the lock back; the file stays."""
        ...


class FileSystem(Protocol):
    """What the store needs of a file system. Paths are absolute or relative strings with `/`."""

    def create(self, path: str, size_bytes: int) -> File:
        """Create a file, allocate all its blocks (zeros) and open it. Raises FileExistsError, OSError(ENOSPC)."""
        ...

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open an existing file. Raises FileNotFoundError."""
        ...

    def read(self, path: str) -> bytes:
        """Return a small file's content. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Write a small file in place (not atomic); with `durable` also sync it and its folder."""
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

    def is_dir(self, path: str) -> bool:
        """Say whether the path is a folder."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether the path exists."""
        ...

    def size_bytes(self, path: str) -> int:
        """Return a file's size. Raises FileNotFoundError."""
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

    def disk_usage(self, path: str) -> DiskUsage:
        """Return how full the disk is that holds the path."""
        ...


class _OsFile:
    __slots__ = ("_fd", "_memory", "_writable", "path", "size_bytes")

    def __init__(self, path: str, fd: int, size_bytes: int, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd
        self._writable = writable
        self._memory: mmap.mmap | None = None

    def map(self) -> Memory:
        if self._memory is None:
            access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
            self._memory = mmap.mmap(self._fd, self.size_bytes, access=access)
        return self._memory

    def sync(self) -> None:
        # On Linux this writes pages dirtied through the map too, and unlike mmap.flush it releases the GIL.
        os.fdatasync(self._fd)

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        for first in range(0, len(pieces), _PIECES_MAX):
            some = pieces[first : first + _PIECES_MAX]
            size = sum(map(len, some))
            assert at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
            wrote = os.pwritev(self._fd, some, at)
            while wrote < size:  # A signal came in between.
                wrote += os.pwrite(self._fd, b"".join(some)[wrote:], at + wrote)
            at += size

    def data_end(self, start: int) -> int:
        end = start
        while end < self.size_bytes:
            try:
                data = os.lseek(self._fd, end, os.SEEK_DATA)
            except OSError as error:
                # ENXIO: nothing from here on. Whoever knows no holes answers with the whole file, not with an error.
                return end if error.errno == errno.ENXIO else self.size_bytes
            end = os.lseek(self._fd, data, os.SEEK_HOLE)
        return end

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _OsLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class OsFileSystem:
    """The real one."""

    __slots__ = ()

    def create(self, path: str, size_bytes: int) -> File:
        """Create and allocate; a sparse file would turn a full disk into SIGBUS at some later write."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        return _OsFile(path, fd, size_bytes, writable=True)

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open a file whose blocks exist; holes of a file that came from elsewhere are allocated first."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if writable and status.st_blocks * 512 < status.st_size:
                os.posix_fallocate(fd, 0, status.st_size)
        except OSError:
            os.close(fd)
            raise
        return _OsFile(path, fd, status.st_size, writable=writable)

    def read(self, path: str) -> bytes:
        """Return a small file's content."""
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Write a small file in place."""
        with open(path, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if durable:
            self.sync_dir(os.path.dirname(path) or ".")

    def replace(self, source: str, target: str) -> None:
        """Rename atomically."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents."""
        os.makedirs(path, exist_ok=True)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_dir(self, path: str) -> bool:
        """Say whether the path is a folder."""
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        """Say whether the path exists."""
        return os.path.exists(path)

    def size_bytes(self, path: str) -> int:
        """Return a file's size."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock:
        """Lock byte 0 as RocketMQ does, so that neither starts on a store the other one runs.

        The lock belongs to the open file (OFD), not to the process: a plain POSIX lock would be lost as soon as
        anybody in this process opened and closed the file, and would let one process open a store twice.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK_BYTE_0)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise AlreadyLockedError(path) from None
            raise
        return _OsLock(fd)

    def disk_usage(self, path: str) -> DiskUsage:
        """Return how full the disk is; blocks reserved for root count as used up."""
        usage = os.statvfs(path)
        return DiskUsage(used=(usage.f_blocks - usage.f_bfree) * usage.f_frsize, usable=usage.f_bavail * usage.f_frsize)


def write_atomically(files: FileSystem, path: str, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new content, never a mixture; durable."""
    temporary = path + ".tmp"
    files.write(temporary, data, durable=True)
    files.replace(temporary, path)
    files.sync_dir(os.path.dirname(path) or ".")
