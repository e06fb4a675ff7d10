"""A pool of open files with a limit of descriptors.

A store with thousands of queues has more files than a process may have descriptors. `OpenFiles` keeps recently used
files open, up to its limit, and reopens the other files on their next use. If the process runs out of descriptors
before the limit is reached, the pool closes some files and tries again. A use only sets a flag, because there are
thousands of uses a second. To find a file to close, the pool skips each used file once and clears its flag, and closes
the first file without the flag (the clock algorithm).

The pool also tracks dirty files: files with writes since their last sync. Linux reports a failed write-back only to
open descriptors. So if a dirty file is closed, its error may be lost. `take_dirty` tells whether this happened. Then
only `Volume.sync` finds the error.

Concurrency: one thread calls everything. Another thread may sync the files that `hold` returned. The pool does not
close these files before `release`.
"""

import errno
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from gantry.runtime.files import File, FileSystem

# The number of files to close when the process runs out of descriptors: other code needs descriptors too.
_CLOSED_AT_ONCE = 16
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class DirtyFiles(NamedTuple):
    """A set of files with unsynced bytes."""

    files: "Collection[PooledFile]"
    was_closed: bool
    """Whether a dirty file was closed. A sync of that file may not report a failed write-back."""


class OpenFiles:
    """The open files of a store.

    Attributes:
        files: The file system.
        open_max: The maximum number of open files. Only held files can exceed it.
        recreated_count: The number of removed files that were created again, filled with zeros.
    """

    def __init__(self, files: FileSystem, open_max: int) -> None:
        assert open_max > 0, open_max
        self.files = files
        self.open_max = open_max
        self.dirty: dict[PooledFile, int] = {}
        """Files with unsynced bytes, and the number of these bytes."""
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self.recreated_count = 0
        self._held: set[PooledFile] = set()
        self._to_close: list[File] = []
        self._was_closed_dirty = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, pooled: "PooledFile") -> File:
        """Open a file of this pool. Raises OSError."""
        path = pooled.path
        return self._keep(pooled, self.open_with_eviction(lambda: self.files.open(path)))

    def recreate(self, pooled: "PooledFile") -> None:
        """Create a removed file of this pool again, as a sparse file of zeros, and its folder. Raises OSError."""
        self.files.make_dirs(pooled.path.rpartition("/")[0])
        self._keep(
            pooled, self.open_with_eviction(lambda: self.files.create(pooled.path, pooled.size_bytes, sparse=True))
        )
        self.recreated_count += 1

    def adopt(self, file: File) -> "PooledFile":
        """Add a file that the caller has just created to the pool."""
        pooled = PooledFile(self, file.path, file.size_bytes)
        self._keep(pooled, file)
        return pooled

    def _keep(self, pooled: "PooledFile", file: File) -> File:
        self._open[pooled] = None
        pooled.file = file
        if len(self._open) > self.open_max:
            self._close_oldest(len(self._open) - self.open_max, but=pooled)
        return file

    def open_with_eviction(self, make: Callable[[], File]) -> File:
        """Return the file that `make` opens. If the process has no descriptor left, close pooled files and try again.

        Raises:
            OSError: The error has another reason, or the pool has no more files to close.
        """
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno not in _EXHAUSTED or self._close_oldest(_CLOSED_AT_ONCE) == 0:
                    raise

    def _close_oldest(self, count: int, *, but: "PooledFile | None" = None) -> int:
        """Close up to `count` files that are not held and were not used recently. Return the number of closed files."""
        closed = 0
        for _ in range(2 * len(self._open)):
            if closed == count or not self._open:
                break
            oldest = next(iter(self._open))
            file = oldest.file
            assert file is not None, "listed files are open"
            if oldest.was_used or oldest is but or oldest in self._held:
                oldest.was_used = False
                self._open.move_to_end(oldest)
                continue
            self._was_closed_dirty = self._was_closed_dirty or oldest in self.dirty
            self._drop(oldest)
            file.close()
            closed += 1
        return closed

    def _drop(self, pooled: "PooledFile") -> None:
        del self._open[pooled]
        pooled.file = None

    def forget(self, pooled: "PooledFile") -> None:
        """Close a file that will be removed. Its unsynced bytes no longer matter."""
        self.dirty.pop(pooled, None)
        file = pooled.file
        if file is None:
            return
        self._drop(pooled)
        if pooled in self._held:
            self._to_close.append(file)
        else:
            file.close()

    def take_dirty(self) -> DirtyFiles:
        """Return all dirty files, in constant time. From now on the pool counts them as synced."""
        taken = DirtyFiles(self.dirty.keys(), self._was_closed_dirty)
        self.dirty = {}
        self._was_closed_dirty = False
        return taken

    def take_due(self, bytes_min: int, count_max: int) -> "list[PooledFile]":
        """Return the dirty files with at least `bytes_min` unsynced bytes. From now on the pool counts them as synced.

        Return an empty list if there are more than `count_max` such files, or if a dirty file was closed.
        """
        ripe = [each for each, size in self.dirty.items() if size >= bytes_min]
        if len(ripe) > count_max or self._was_closed_dirty:
            return []
        for each in ripe:
            del self.dirty[each]
        return ripe

    def hold(self, pooled: "Collection[PooledFile]") -> list[File]:
        """Return those of the given files that are open, for another thread to sync. They stay open until `release`."""
        assert not self._held, "one job at a time"
        self._held.update(pooled)
        return [each.file for each in pooled if each.file is not None]

    def release(self) -> None:
        """End the hold, after the other thread has finished with the files from `hold`."""
        self._held.clear()
        for file in self._to_close:
            file.close()
        self._to_close.clear()
        if len(self._open) > self.open_max:
            self._close_oldest(len(self._open) - self.open_max)

    def close(self) -> None:
        """Close all files."""
        self.release()
        for pooled in list(self._open):
            self.forget(pooled)
        self.dirty.clear()


class PooledFile:
    """A file of a fixed size that its pool opens when needed. The methods have the same meaning as those of `File`.

    Attributes:
        file: The open file, or None while it is closed.
        was_used: Whether the file was used again after it was opened, or after the pool last skipped it.
    """

    __slots__ = ("_pool", "file", "path", "size_bytes", "was_used")

    def __init__(self, pool: OpenFiles, path: str, size_bytes: int) -> None:
        self._pool = pool
        self.path = path
        self.size_bytes = size_bytes
        self.file: File | None = None
        self.was_used = False

    def _use(self) -> File:
        file = self.file
        if file is None:
            # The first use does not set the flag: a scan over many files must not evict the busy files.
            return self._pool.open(self)
        self.was_used = True
        return file

    def open_or_make(self) -> bool:
        """Open the file. If it was removed, create it again and return True. Raises OSError."""
        try:
            self._use()
        except FileNotFoundError:
            self._pool.recreate(self)
            return True
        return False

    def read(self, at: int, size: int) -> bytes:
        """Return bytes. It may wait for the disk."""
        return self._use().read(at, size)

    def read_now(self, at: int, size: int) -> bytes | None:
        """Return bytes if all of them are in the page cache, else None."""
        return self._use().read_now(at, size)

    def write(self, at: int, data: bytes) -> None:
        """Write at a position."""
        file = self._use()
        # Count the bytes before the write, because a failed write may have changed the file.
        dirty = self._pool.dirty
        dirty[self] = dirty.get(self, 0) + len(data)
        file.write(at, (data,))

    def allocate(self, at: int, size: int) -> None:
        """Allocate the blocks of a range."""
        file = self._use()
        self._pool.dirty.setdefault(self, 0)
        file.allocate(at, size)

    def data_end(self, start: int) -> int:
        """Return an offset from which on there are only zeros."""
        return self._use().data_end(start)

    def open_unpooled(self) -> File:
        """Open the file a second time, outside the pool, for a caller that maps it and closes it."""
        return self._pool.open_with_eviction(lambda: self._pool.files.open(self.path))

    def close(self) -> None:
        """Close the file, which will be removed."""
        self._pool.forget(self)
