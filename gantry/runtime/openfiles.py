"""Open files within a budget of descriptors.

A store with thousands of queues has more files than a process may have descriptors. `OpenFiles` keeps those that were
used lately open, up to a budget, and opens the others again when they are used. If the process runs out of descriptors
earlier than that, it closes some and tries again. A use only sets a flag, since there are thousands a second: a file
that was used since the last look is passed over once, the first one that was not is closed (the clock algorithm).

It also knows which files were written since they were last synced. Linux reports a failed write-back to the
descriptors that are open. So a file that is closed while it is dirty may lose its error: `take_dirty` says that this
happened, and then only `Volume.sync` finds the error.

Concurrency: one thread calls everything, except that another thread may sync the files that `take_dirty` has handed
out. These are held: none of them is closed before `release`.
"""

import errno
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from gantry.runtime.files import File, FileSystem

# So many are closed when the process runs out of descriptors, since others need some too.
_CLOSED_AT_ONCE = 16
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class Dirty(NamedTuple):
    """Files with unsynced bytes."""

    files: "Collection[PooledFile]"
    was_closed: bool
    """One of them was closed in between, so that syncing it may not show a failed write-back."""


class OpenFiles:
    """The files of a store that are open.

    Attributes:
        files: The file system.
        open_max: The budget. More are open only while they are held.
        made_again: So many files were made again, blank, since somebody had removed them.
    """

    def __init__(self, files: FileSystem, open_max: int) -> None:
        assert open_max > 0, open_max
        self.files = files
        self.open_max = open_max
        self.dirty: dict[PooledFile, int] = {}
        """Files with unsynced bytes, and how many."""
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self.made_again = 0
        self._held: set[PooledFile] = set()
        self._doomed: list[File] = []
        self._was_closed_dirty = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, pooled: "PooledFile") -> File:
        """Open a file of this pool. Raises OSError."""
        path = pooled.path
        return self._keep(pooled, self.with_room(lambda: self.files.open(path)))

    def make_again(self, pooled: "PooledFile") -> None:
        """Make a file of this pool that somebody removed, and its folder: zeros, sparse. Raises OSError."""
        self.files.make_dirs(pooled.path.rpartition("/")[0])
        self._keep(pooled, self.with_room(lambda: self.files.create(pooled.path, pooled.size_bytes, sparse=True)))
        self.made_again += 1

    def adopt(self, file: File) -> "PooledFile":
        """Take a file that was just created over."""
        pooled = PooledFile(self, file.path, file.size_bytes)
        self._keep(pooled, file)
        return pooled

    def _keep(self, pooled: "PooledFile", file: File) -> File:
        self._open[pooled] = None
        pooled.file = file
        if len(self._open) > self.open_max:
            self._close_oldest(len(self._open) - self.open_max, but=pooled)
        return file

    def with_room(self, make: Callable[[], File]) -> File:
        """Return what `make` opens; if the process has no descriptor left, close files and try again.

        Raises:
            OSError: It was refused for another reason, or there is nothing left to close.
        """
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno not in _EXHAUSTED or self._close_oldest(_CLOSED_AT_ONCE) == 0:
                    raise

    def _close_oldest(self, count: int, *, but: "PooledFile | None" = None) -> int:
        """Close files that are not held and were not used lately; return how many."""
        closed = 0
        for _ in range(2 * len(self._open)):
            if closed == count or not self._open:
                break
            oldest = next(iter(self._open))
            file = oldest.file
            assert file is not None, "what is listed is open"
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
        """Close a file that is about to be removed: what was written to it does not matter any more."""
        self.dirty.pop(pooled, None)
        file = pooled.file
        if file is None:
            return
        self._drop(pooled)
        if pooled in self._held:
            self._doomed.append(file)
        else:
            file.close()

    def take_dirty(self) -> Dirty:
        """Return all dirty files; from here on they count as synced. Takes no longer for many of them."""
        taken = Dirty(self.dirty.keys(), self._was_closed_dirty)
        self.dirty = {}
        self._was_closed_dirty = False
        return taken

    def take_ripe(self, bytes_min: int, count_max: int) -> "list[PooledFile]":
        """Return the dirty files with so many unsynced bytes that are open; none if there are too many of them."""
        ripe = [each for each, size in self.dirty.items() if size >= bytes_min]
        if len(ripe) > count_max or self._was_closed_dirty:
            return []
        for each in ripe:
            del self.dirty[each]
        return ripe

    def hold(self, pooled: "Collection[PooledFile]") -> list[File]:
        """Return the open files of these, which stay open until `release`, for another thread to sync."""
        assert not self._held, "one job at a time"
        self._held.update(pooled)
        return [each.file for each in pooled if each.file is not None]

    def release(self) -> None:
        """Say that the other thread is done with what `hold` returned."""
        self._held.clear()
        for file in self._doomed:
            file.close()
        self._doomed.clear()
        if len(self._open) > self.open_max:
            self._close_oldest(len(self._open) - self.open_max)

    def close(self) -> None:
        """Close all files."""
        self.release()
        for pooled in list(self._open):
            self.forget(pooled)
        self.dirty.clear()


class PooledFile:
    """A file of a fixed size that is open while its pool has room for it. Calls mean what they mean for `File`.

    Attributes:
        file: The file while it is open.
        was_used: More than once since its pool last looked for files to close.
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
            # Used once is not used often: files that are merely gone through must not drive out the busy ones.
            return self._pool.open(self)
        self.was_used = True
        return file

    def open_or_make(self) -> bool:
        """Open it; True if somebody has removed it, and it was made again. Raises OSError."""
        try:
            self._use()
        except FileNotFoundError:
            self._pool.make_again(self)
            return True
        return False

    def read(self, at: int, size: int) -> bytes:
        """Return bytes. Waits for the disk."""
        return self._use().read(at, size)

    def read_now(self, at: int, size: int) -> bytes | None:
        """Return bytes if all of them are in the page cache."""
        return self._use().read_now(at, size)

    def write(self, at: int, data: bytes) -> None:
        """Write at a position."""
        file = self._use()
        # Before the write: one that fails may have changed something.
        dirty = self._pool.dirty
        dirty[self] = dirty.get(self, 0) + len(data)
        file.write(at, (data,))

    def allocate(self, at: int, size: int) -> None:
        """Give a range its blocks."""
        file = self._use()
        self._pool.dirty.setdefault(self, 0)
        file.allocate(at, size)

    def data_end(self, start: int) -> int:
        """Return an offset behind which there are only zeros."""
        return self._use().data_end(start)

    def open_apart(self) -> File:
        """Open it once more, for a caller that maps it and closes it."""
        return self._pool.with_room(lambda: self._pool.files.open(self.path))

    def close(self) -> None:
        """Close it, since it is about to be removed."""
        self._pool.forget(self)
