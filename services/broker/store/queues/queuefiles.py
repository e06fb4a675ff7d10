"""The files of one ConsumeQueue, through a pool of descriptors."""

from collections.abc import Callable

from gantry.runtime.openfiles import OpenFiles, PooledFile
from gantry.runtime.telemetry import logger
from services.broker.store.errors import StoreFullError
from services.broker.store.files.mappedfilequeue import FileSequence, make_file
from services.broker.store.files.unfinished import complete
from services.broker.store.queues.queuefile import QueueFile

log = logger("broker.store")


class QueueFiles(FileSequence[QueueFile]):
    """The files of a queue's folder in offset order."""

    __slots__ = ("_pool",)

    def __init__(self, pool: OpenFiles, folder: str, file_size: int) -> None:
        super().__init__(pool.files, folder, file_size)
        self._pool = pool

    def _open(self, start: int) -> QueueFile:
        return QueueFile(start, PooledFile(self._pool, self.path_of(start), self.file_size))

    def rescue(self, on_repair: Callable[[], None] | None) -> None:
        """Replace files that the disk can't read in full with files that have blanks there; recovery fills the blanks.

        Args:
            on_repair: Called before a file is replaced; may raise to prevent it.

        Raises:
            OSError: The disk failed.
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
        """Create the file that starts at an offset, the next file or a missing one, with its first block.

        Raises:
            StoreFullError: The file could not be created; nothing has changed.
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
        """Drop all files before their removal."""
        for file in self:
            file.close()
        self.clear()
