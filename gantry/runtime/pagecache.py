"""Maps and the page cache: drop cached pages, so that the next read comes from the disk, and replace parts of a map.

After a failed write-back, Linux keeps the pages readable, marks them as clean and reports the error once. From then on
the cache shows bytes that the disk does not have, and a later `fdatasync` succeeds. To see the real content of the
disk, the pages must be dropped. The kernel keeps pages that another process maps. So this module compares the pages
that stay in the cache with the disk.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_MAP_FIXED: Final = 0x10  # Linux on x86, Arm, RISC-V, POWER and s390x. The mmap module does not define it.
_abandoned: list[mmap.mmap] = []
_PIECE_BYTES: Final = 1 << 20
_FOLIO_BYTES: Final = 2 << 20
"""The size of the largest folio in the page cache of Linux. A folio is aligned to its size."""
# Without this flag, a machine that does not overcommit would reserve memory for a map that is replaced at once.
_MAP_NORESERVE: Final = 0x4000  # Linux on x86, Arm, RISC-V and s390x. Other machines ignore the number.
# mincore uses only the lowest bit of each byte.
_LOWEST_BIT: Final = bytes(number & 1 for number in range(256))


def drop(path: str) -> int:
    """Sync a file and drop its pages from the page cache.

    Returns:
        The number of bytes that stay in the cache and can't be compared with the disk, because the file system does
        not support direct reads. This is the case for memory file systems, which store files in the cache.

    Raises:
        OSError: The disk reported an error, or pages that another process keeps in the cache differ from the disk.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return sum(_compare(path, fd, start, end) for start, end in resident_ranges(fd))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(fd)


def resident_ranges(fd: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each range of a file in the page cache, in whole pages. `fd` must be writable."""
    size = os.fstat(fd).st_size
    if size == 0:
        return
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with mmap.mmap(fd, size) as memory:
        first = ctypes.c_char.from_buffer(memory)
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found)
        del first  # Otherwise the map can't be closed.
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    is_resident = bytes(found).translate(_LOWEST_BIT)
    start = is_resident.find(1)
    while start >= 0:
        end = is_resident.find(0, start)
        end = pages if end < 0 else end
        yield start * mmap.PAGESIZE, end * mmap.PAGESIZE
        start = is_resident.find(1, end)


def _compare(path: str, fd: int, start: int, end: int) -> int:
    """Compare a cached range with the disk. Return the number of bytes that can't be compared.

    Raises:
        OSError: The cache and the disk differ.
    """
    try:
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return end - start
        raise
    try:
        with mmap.mmap(-1, _PIECE_BYTES) as buffer:  # Direct reads need aligned memory.
            for at in range(start, end, _PIECE_BYTES):
                size = min(_PIECE_BYTES, end - at)
                with memoryview(buffer) as view, view[:size] as piece:
                    count = os.preadv(direct, [piece], at)
                if os.pread(fd, size, at) != buffer[:count]:
                    text = f"another process keeps pages in memory that differ from the disk, near byte {at}"
                    raise OSError(errno.EBUSY, text)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return end - start
        raise
    finally:
        os.close(direct)
    return 0


def map_without_descriptor(fd: int, size_bytes: int) -> mmap.mmap:
    """Return a map of a file, for reading and writing, that needs no descriptor.

    A map that Python creates for a file keeps a duplicate of the descriptor. With ten thousand files this needs ten
    thousand descriptors. So this function maps anonymous memory and then replaces it with a map of the file.

    Raises:
        OSError: The kernel refused the map.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    try:
        _replace(memory, 0, size_bytes, mmap.MAP_SHARED, fd)
    except OSError:
        # The kernel may already have unmapped this memory and given its addresses to another map. Never unmap it.
        _abandoned.append(memory)
        raise
    return memory


def blank_unreadable(fd: int, memory: mmap.mmap, start: int, stop: int) -> list[tuple[int, int]]:
    """Read a range of a mapped file. From now on the map shows zeros for the parts that the disk can't read.

    An access through the map to a page that the disk can't read ends the process with SIGBUS. The good pages in the
    same folio of the page cache also cause SIGBUS, although they can be read by position. So this function replaces the
    whole folio in the map of this process with anonymous pages. They contain a copy of the bytes that can be read. The
    file does not change.

    Returns:
        The ranges that could not be read, in whole pages.
    """
    unreadable: list[tuple[int, int]] = []
    buffer = bytearray(_PIECE_BYTES)
    for at in range(start - start % mmap.PAGESIZE, stop, _PIECE_BYTES):
        end = min(at + _PIECE_BYTES, stop)
        if _can_read(fd, buffer, at, end):
            continue
        for page in range(at, end, mmap.PAGESIZE):
            if _can_read(fd, buffer, page, min(page + mmap.PAGESIZE, end)):
                continue
            if unreadable and unreadable[-1][1] == page:
                unreadable[-1] = unreadable[-1][0], page + mmap.PAGESIZE
            else:
                unreadable.append((page, page + mmap.PAGESIZE))
    folios = {at - at % _FOLIO_BYTES for first, last in unreadable for at in range(first, last, mmap.PAGESIZE)}
    for folio in folios:
        _detach(fd, memory, folio, min(folio + _FOLIO_BYTES, len(memory)))
    return unreadable


def _detach(fd: int, memory: mmap.mmap, start: int, stop: int) -> None:
    """Replace a part of a map with anonymous pages: a copy of the file, with zeros for pages that can't be read."""
    copy, buffer = bytearray(stop - start), bytearray(mmap.PAGESIZE)
    for page in range(start, stop, mmap.PAGESIZE):
        end = min(page + mmap.PAGESIZE, stop)
        if _can_read(fd, buffer, page, end):
            copy[page - start : end - start] = buffer[: end - page]
    # Populate the pages, so that mincore reports them as in memory and no caller reads them from the disk.
    _replace(memory, start, stop - start, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE, -1)
    ctypes.memmove(_address_of(memory) + start, bytes(copy), len(copy))


def _can_read(fd: int, buffer: bytearray, start: int, stop: int) -> bool:
    try:
        with memoryview(buffer) as view, view[: stop - start] as piece:
            return os.preadv(fd, [piece], start) == stop - start
    except OSError:
        return False


class _Buffer(ctypes.Structure):
    """The struct Py_buffer. It is needed because `ctypes.c_char.from_buffer` rejects a read-only map."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        *[(name, ctypes.c_ssize_t) for name in ("size", "item_size")],
        *[(name, ctypes.c_int) for name in ("is_read_only", "dimensions")],
        *[(name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")],
    ]


def _address_of(memory: mmap.mmap) -> int:
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), 0)
    address: int = buffer.address
    # Otherwise the map can't be closed.
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


def _replace(memory: mmap.mmap, at: int, size: int, flags: int, fd: int) -> None:
    """Replace a part of a map with another map, which starts at the first byte of its file."""
    address = _address_of(memory) + at
    if _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, fd, 0) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
