"""Locks of files and folders that belong to an open descriptor, and so to neither a process nor a thread.

A plain POSIX lock would be lost as soon as anybody in the process opened and closed the file, and would let one
process take it twice.
"""

import errno
import fcntl
import os
import struct
from typing import Final

from gantry.runtime.errors import AlreadyLockedError

# struct flock of Linux on 64 bits: type, whence (start of file), start 0, length 1, pid (must be 0 for OFD locks).
_FLOCK: Final = struct.Struct("hhxxxxqqixxxx")
# Answers of file systems that have no flock for folders.
_NO_FLOCK: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})


class OsLock:
    """A held lock."""

    __slots__ = ("_fd", "_path", "_stat")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._stat = os.fstat(fd)

    def is_there(self) -> bool:
        """Say whether the path still names what is locked."""
        try:
            return os.path.samestat(os.stat(self._path), self._stat)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._fd)


def lock_file(path: str, *, shared: bool = False) -> OsLock:
    """Lock byte 0 of a file, as RocketMQ does.

    Args:
        path: Path of the file, which is made if it is missing.
        shared: Share the lock with others that do so, and only read the file, which must be there.

    Raises:
        AlreadyLockedError: Another descriptor holds it.
        OSError: The file can't be opened.
    """
    fd = os.open(path, os.O_CLOEXEC | (os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT), 0o640)
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise AlreadyLockedError(path) from None
        raise
    return OsLock(fd, path)


def lock_dir(path: str, *, shared: bool = False) -> OsLock:
    """Lock a folder with flock.

    Where the file system has no flock for folders (some of NFS) nothing is locked: the lock of a file in the folder
    has to do there.

    Raises:
        AlreadyLockedError: Another descriptor holds it.
        OSError: The folder can't be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            os.close(fd)
            if error.errno == errno.EWOULDBLOCK:
                raise AlreadyLockedError(path) from None
            raise
    return OsLock(fd, path)
