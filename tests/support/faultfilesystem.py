"""A file system that fails according to rules, on top of any other one."""

import errno
import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gantry.runtime.files import File, FileSystem, Memory, Volume


@dataclass(slots=True)
class FaultRule:
    """Fail operations on matching paths, from the `after`-th on, at most `times` times."""

    operation: str
    """A FileSystem method, or one of `sync`, `allocate`, `pwrite` (File.write), `pread` (File.read, read_now), `syncfs`,
    `mincore`.
    """
    path: str = "*"
    error: int = errno.EIO
    after: int = 0
    times: int = 1 << 30
    seen: int = 0

    def strike(self, operation: str, path: str) -> None:
        """Raise the error if this rule matches the operation and its count."""
        if operation != self.operation or not fnmatch.fnmatch(path, self.path):
            return
        self.seen += 1
        if self.after < self.seen <= self.after + self.times:
            raise OSError(self.error, os.strerror(self.error), path)


class _FaultFile:
    def __init__(self, file: File, owner: "FaultFileSystem") -> None:
        self.path = file.path
        self.size_bytes = file.size_bytes
        self._file = file
        self._owner = owner

    def map(self) -> Memory:
        return self._file.map()

    def drop_descriptor(self) -> None:
        self._file.drop_descriptor()

    def read(self, at: int, size: int) -> bytes:
        self._owner.strike("pread", self.path)
        return self._file.read(at, size)

    def read_now(self, at: int, size: int) -> bytes | None:
        self._owner.strike("pread", self.path)
        return self._file.read_now(at, size)

    def cached_end(self, at: int, end: int) -> int:
        try:
            self._owner.strike("mincore", self.path)
        except OSError:
            return at
        return self._file.cached_end(at, end)

    def prefetch(self, at: int, size: int) -> None:
        self._file.prefetch(at, size)

    def allocate(self, at: int, size: int) -> None:
        self._owner.strike("allocate", self.path)
        self._file.allocate(at, size)

    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        return self._file.blank_unreadable(start, stop)

    def sync(self) -> None:
        self._owner.strike("sync", self.path)
        self._file.sync()

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        self._owner.strike("pwrite", self.path)
        self._file.write(at, pieces)

    def data_end(self, start: int) -> int:
        return self._file.data_end(start)

    def close(self) -> None:
        self._file.close()


class _FaultVolume:
    def __init__(self, volume: Volume, path: str, owner: "FaultFileSystem") -> None:
        self._volume = volume
        self._path = path
        self._owner = owner

    def sync(self) -> None:
        self._owner.strike("syncfs", self._path)
        self._volume.sync()

    def close(self) -> None:
        self._volume.close()


class FaultFileSystem:
    """Passes every call on after checking the rules; `rules` may be changed at any time."""

    def __init__(self, inner: FileSystem, *rules: FaultRule) -> None:
        self.inner = inner
        self.rules = list(rules)

    def strike(self, operation: str, path: str) -> None:
        for rule in self.rules:
            rule.strike(operation, path)

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> Any:
        self.strike("create", path)
        return _FaultFile(self.inner.create(path, size_bytes, sparse=sparse), self)

    def open(self, path: str, *, writable: bool = True) -> Any:
        self.strike("open", path)
        return _FaultFile(self.inner.open(path, writable=writable), self)

    def wrap(self, file: File) -> Any:
        """Return a file that is open already, with the rules applied to it."""
        return _FaultFile(file, self)

    def open_volume(self, path: str) -> Any:
        self.strike("open_volume", path)
        volume = self.inner.open_volume(path)
        return None if volume is None else _FaultVolume(volume, path, self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            self.strike(name, path)
            return method(path, *args, **kwargs)

        return call
