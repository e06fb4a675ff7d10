"""Files and volumes of the real file system, by descriptor. `gantry.runtime.files` documents the interface."""

import contextlib
import ctypes
import errno
import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from gantry.runtime import pagecache
from gantry.runtime.errors import add_path

# IOV_MAX of Linux.
_PIECES_MAX = 1024

# From this Linux release on, syncfs reports failed write-backs.
_TRUSTED_RELEASE = (5, 8)

_libc = ctypes.CDLL(None, use_errno=True)

# PyDLL calls it without releasing the GIL: mincore never waits, and a release of the GIL costs more than the call.
_mincore = ctypes.PyDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
# The maximum number of pages that one call of `cached_end` checks: 4 MiB, the size of the largest record.
_PAGES_MAX = 1024
# mincore fills one byte per page. Its lowest bit is set if the page is in memory. The other bits are reserved.
_ABSENT = re.compile(rb"[^\x01]")


P = ParamSpec("P")
R = TypeVar("R")


def _with_path_in_errors(call: "Callable[Concatenate[OsFile, P], R]", /) -> "Callable[Concatenate[OsFile, P], R]":
    """Wrap a method so that its OSErrors name the file. System calls on a descriptor don't know the path."""

    @wraps(call)
    def named(self: "OsFile", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(self, *args, **kwargs)
        except OSError as error:
            add_path(error, self.path)
            raise

    return named


class OsFile:
    """An open file. Its OSErrors name the file."""

    __slots__ = ("_address", "_fd", "_knows_cache", "_memory", "_writable", "path", "size_bytes")

    def __init__(self, path: str, fd: int, size_bytes: int, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd
        self._writable = writable
        self._knows_cache = True
        self._memory: mmap.mmap | None = None
        self._address = 0

    @_with_path_in_errors
    def map(self) -> mmap.mmap:
        """Return the map."""
        if self._memory is None:
            if self._writable:
                self._memory = pagecache.map_without_descriptor(self._fd, self.size_bytes)
            else:
                self._memory = mmap.mmap(self._fd, self.size_bytes, access=mmap.ACCESS_READ)
        return self._memory

    def drop_descriptor(self) -> None:
        """Close the descriptor."""
        assert self._memory is not None, f"{self.path} is not mapped"
        self._close_descriptor()

    def _reopen(self) -> int:
        assert self._memory is not None, f"{self.path} is closed"
        self._fd = os.open(self.path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC)
        return self._fd

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        """Yield the descriptor. If it was closed, open it, and close it again afterwards."""
        was_open = self._fd >= 0
        try:
            yield self._fd if was_open else self._reopen()
        finally:
            if not was_open:
                self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @_with_path_in_errors
    def read(self, at: int, size: int) -> bytes:
        """Read by position."""
        if self._fd >= 0:
            return self._read(self._fd, at, size)
        with self._descriptor() as fd:
            return self._read(fd, at, size)

    def _read(self, fd: int, at: int, size: int) -> bytes:
        data = os.pread(fd, size, at)
        while len(data) < size:
            # A signal interrupted the read, the file ended early, or one call can't read so much (2 GiB).
            more = os.pread(fd, size - len(data), at + len(data))
            if not more:
                raise OSError(errno.EIO, f"only {len(data)} of {size} bytes at {at} are there", self.path)
            data += more
        return data

    @_with_path_in_errors
    def read_now(self, at: int, size: int) -> bytes | None:
        """Read from the page cache only."""
        if not self._knows_cache:
            return self.read(at, size)
        data = bytearray(size)
        fd = self._fd if self._fd >= 0 else self._reopen()
        try:
            count = os.preadv(fd, [data], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._knows_cache = False
            return self.read(at, size)
        return bytes(data) if count == size else None

    def cached_end(self, at: int, end: int) -> int:
        """Return the end of the bytes in the page cache, found with mincore."""
        memory = self._memory
        assert memory is not None, f"{self.path} is not mapped"
        if self._address == 0:
            # This fails for a read-only map, because ctypes can't get its address. No caller uses one here.
            # The temporary ctypes object blocks the close of the map. It is freed at the end of this line.
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        first = at - at % mmap.PAGESIZE
        pages = min(-(-(end - first) // mmap.PAGESIZE), _PAGES_MAX)
        answer = bytearray(pages)
        target = ctypes.addressof(ctypes.c_char.from_buffer(answer))
        if _mincore(self._address + first, pages * mmap.PAGESIZE, target) != 0:
            # For example EAGAIN, for lack of memory. Treat the pages as absent: then a thread reads them, not the loop.
            return at
        absent = _ABSENT.search(answer)
        reached = pages if absent is None else absent.start()
        return max(min(first + reached * mmap.PAGESIZE, end), at)

    def prefetch(self, at: int, size: int) -> None:
        """Ask the kernel to read ahead."""
        with contextlib.suppress(OSError), self._descriptor() as fd:
            os.posix_fadvise(fd, at, size, os.POSIX_FADV_WILLNEED)

    @_with_path_in_errors
    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Read a range, and let the map show zeros for the parts that can't be read."""
        with self._descriptor() as fd:
            return pagecache.blank_unreadable(fd, self.map(), start, stop)

    @_with_path_in_errors
    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        """Write by position."""
        fd = self._fd if self._fd >= 0 else self._reopen()
        if len(pieces) == 1:
            # The fast path for units of a queue, which are written thousands of times a second.
            size = len(pieces[0])
            assert at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
            if os.pwrite(fd, pieces[0], at) == size:
                return
        for first in range(0, len(pieces), _PIECES_MAX):
            some = pieces[first : first + _PIECES_MAX]
            size = sum(map(len, some))
            assert at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
            wrote = os.pwritev(fd, some, at)
            while wrote < size:  # A signal interrupted the write.
                wrote += os.pwrite(fd, b"".join(some)[wrote:], at + wrote)
            at += size

    @_with_path_in_errors
    def allocate(self, at: int, size: int) -> None:
        """Allocate a range."""
        assert at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
        os.posix_fallocate(self._fd if self._fd >= 0 else self._reopen(), at, size)

    @_with_path_in_errors
    def sync(self) -> None:
        """Sync the data, and the metadata that is needed to read it."""
        # On Linux fdatasync also writes pages changed through the map. Unlike mmap.flush, it releases the GIL.
        with self._descriptor() as fd:
            os.fdatasync(fd)

    def data_end(self, start: int) -> int:
        """Return an offset from which on there are only zeros."""
        end = start
        with self._descriptor() as fd:
            while end < self.size_bytes:
                try:
                    data = os.lseek(fd, end, os.SEEK_DATA)
                except OSError as error:
                    # ENXIO: no data from here on. A file system without holes reports the whole file as data.
                    return end if error.errno == errno.ENXIO else self.size_bytes
                end = os.lseek(fd, data, os.SEEK_HOLE)
        return end

    def close(self) -> None:
        """Unmap and close."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._close_descriptor()


class OsVolume:
    """A file system, represented by a descriptor of a folder in it."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def sync(self) -> None:
        """Sync the whole file system. ctypes releases the GIL."""
        assert self._fd >= 0, "closed"
        if _libc.syncfs(self._fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self._path)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_volume_trusted() -> bool:
    """Return whether syncfs of this kernel reports failed write-backs."""
    numbers = [int(part) for part in os.uname().release.replace("-", ".").split(".")[:2] if part.isdigit()]
    return tuple(numbers) >= _TRUSTED_RELEASE
