"""Locks of files and folders. A lock belongs to an open descriptor, not to a process or a thread.

A plain POSIX lock has two problems. The process loses it as soon as any code in the process opens and closes the file.
And one process can take it twice.
"""

import errno
import fcntl
import os
import struct
from typing import Final

from gantry.runtime.errors import AlreadyLockedError

# struct flock of Linux on 64 bits: type, whence (start of file), start 0, length 1, pid (must be 0 for OFD locks).
_FLOCK: Final = struct.Struct("hhxxxxqqixxxx")
# The errors of file systems that do not support flock on folders.
_NO_FLOCK: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})


class OsLock:
    """A held lock."""

    __slots__ = ("_fd", "_path", "_stat")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._stat = os.fstat(fd)

    def is_current(self) -> bool:
        """Return whether the path still names the locked file or folder."""
        try:
            return os.path.samestat(os.stat(self._path), self._stat)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def lock_file(path: str, *, shared: bool = False) -> OsLock:
    """Lock byte 0 of a file, as RocketMQ does.

    Args:
        path: The path of the file. A missing file is created, unless `shared` is True.
        shared: Whether to share the lock with other shared locks. The file is then opened only for reading and must
            exist.

    Raises:
        AlreadyLockedError: Another descriptor holds the lock.
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

    If the file system does not support flock on folders (some NFS servers), this locks nothing. The lock of a file in
    the folder must then be enough.

    Raises:
        AlreadyLockedError: Another descriptor holds the lock.
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
