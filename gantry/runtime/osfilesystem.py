"""OsFileSystem: the real file system. `gantry.runtime.files` documents the interface."""

import os
from collections.abc import Iterable

from gantry.runtime import ospath, pagecache
from gantry.runtime.errors import add_path
from gantry.runtime.filelock import lock_dir, lock_file
from gantry.runtime.files import DiskUsage, File, FileLock, Volume
from gantry.runtime.osfile import OsFile, OsVolume, is_volume_trusted


class OsFileSystem:
    """The file system of the operating system."""

    __slots__ = ()

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> File:
        """Create a file, with or without blocks."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            if sparse:
                os.ftruncate(fd, size_bytes)
            else:
                os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            add_path(error, path)
            raise
        return OsFile(path, fd, size_bytes, writable=True)

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open an existing file."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(fd).st_size
        except OSError as error:
            os.close(fd)
            add_path(error, path)
            raise
        return OsFile(path, fd, size_bytes, writable=writable)

    def open_volume(self, path: str) -> Volume | None:
        """Open the file system of a folder. Return None before Linux 5.8."""
        if not is_volume_trusted():
            return None
        return OsVolume(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        return ospath.read(path)

    def write(self, path: str, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
        """Write a small file in place."""
        ospath.write(path, data, durable=durable)

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
        ospath.make_dirs(path)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def list_files(self, path: str) -> list[tuple[str, int]]:
        """Return name and size of each file."""
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, entry.stat().st_size) for entry in entries if not entry.is_dir())
        except FileNotFoundError:
            return []

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder."""
        return ospath.is_dir(path)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return ospath.find_mode(path) is not None

    def size_bytes(self, path: str) -> int:
        """Return the size of a file."""
        return os.stat(path).st_size

    def allocated_bytes(self, path: str) -> int:
        """Return the size of a file's blocks. `stat` counts in blocks of 512 bytes on every file system."""
        return os.stat(path).st_blocks * 512

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ospath.sync_dir(path)

    def lock(self, path: str) -> FileLock:
        """Lock byte 0 as RocketMQ does, so that Gantry and RocketMQ never run on the same store at the same time."""
        return lock_file(path)

    def lock_dir(self, path: str) -> FileLock:
        """Lock a folder."""
        return lock_dir(path)

    def drop_cache(self, path: str) -> int:
        """Drop the pages of a file."""
        return pagecache.drop(path)

    def disk_usage(self, path: str) -> DiskUsage:
        """Return the usage of the disk. Blocks that are reserved for root count neither as used nor as usable."""
        usage = os.statvfs(path)
        return DiskUsage(used=(usage.f_blocks - usage.f_bfree) * usage.f_frsize, usable=usage.f_bavail * usage.f_frsize)
