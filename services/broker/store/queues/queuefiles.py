"""The files of one ConsumeQueue. They are opened through a pool that limits the number of open files.

Concurrency: the store's thread only.
"""

from collections.abc import Callable

from gantry.runtime.openfiles import OpenFiles, PooledFile
from gantry.runtime.telemetry import logger
from services.broker.store.errors import StoreFullError
from services.broker.store.files.mappedfilequeue import FileSequence, make_file
from services.broker.store.files.unfinished import complete
from services.broker.store.queues.queuefile import QueueFile

log = logger("broker.store")


class QueueFiles(FileSequence[QueueFile]):
    """The files of one queue's folder in offset order. A file is named by the queue's byte at which it starts."""

    __slots__ = ("_pool",)

    def __init__(self, pool: OpenFiles, folder: str, file_size: int) -> None:
        super().__init__(pool.files, folder, file_size)
        self._pool = pool

    def _open(self, start: int) -> QueueFile:
        return QueueFile(start, PooledFile(self._pool, self.path_of(start), self.file_size))

    def rescue(self, on_repair: Callable[[], None] | None) -> None:
        """Replace each file that the disk can't read in full. The new file has zeros for the unreadable pages.

        Recovery builds the missing units from the CommitLog, because `was_repaired` is set.

        Args:
            on_repair: Called before each replacement; it may raise to prevent the replacement.

        Raises:
            OSError: The disk failed in another way, or the new file can't be created.
        """
        for file in self:
            if not file.is_readable():
                if on_repair is not None:
                    on_repair()
                file.file.close()
                count = complete(self._files, file.path, self.file_size)
                self.was_repaired = True
                log.error("the disk can't read a part of a queue; recovery builds it", path=file.path, bytes=count)

    def add_file(self, start: int) -> QueueFile:
        """Create the file that starts at an offset (bytes): the next file or a missing one. Allocate its first block.

        Raises:
            StoreFullError: The file could not be created or has no block, for whatever reason; nothing has changed.
        """
        assert start % self.file_size == 0, f"a file of {self.folder} can't start at {start}"
        path = self.path_of(start)
        try:
            pooled = self._pool.adopt(
                self._pool.open_with_eviction(lambda: make_file(self._files, path, self.file_size, sparse=True))
            )
        except OSError as error:
            raise StoreFullError(path, error) from error
        file = QueueFile(start, pooled)
        try:
            file.prepare()
        except StoreFullError:
            file.close()
            self._files.remove(path)
            raise
        self._add(file)
        self.folder_is_dirty = True
        return file

    def close(self) -> None:
        """Close all files and forget them, before their removal from the disk."""
        for file in self:
            file.close()
        self.clear()
