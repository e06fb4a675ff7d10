"""CommitLog files that a worker makes before they are needed.

The store's thread never waits for one, except at the start: if the next file is not there in time, the record is
refused, and its sender tries again. A file of the usual size is made alone, of smaller ones several are ready.

Concurrency: the store's thread; the worker does nothing but make files.
"""

from concurrent.futures import Future

from gantry.runtime.files import File, FileSystem
from gantry.runtime.workers import Worker
from services.broker.store.errors import FileNotReadyError, StoreFullError
from services.broker.store.mappedfile import is_gone
from services.broker.store.mappedfilequeue import MappedFileQueue, create_file


class FilesAhead:
    """The files behind the current one, by the offset at which they start.

    Args:
        count: So many are ready, or being made.
    """

    def __init__(self, files: FileSystem, sequence: MappedFileQueue, worker: Worker, *, count: int) -> None:
        self._files = files
        self._sequence = sequence
        self._worker = worker
        self._count = count
        self._made: dict[int, Future[File]] = {}
        self._last_failure: StoreFullError | None = None

    def make(self, start: int) -> None:
        """Have the worker make the files from an offset on, those that are not made and not being made."""
        for number in range(self._count):
            self._make(start + number * self._sequence.file_size)

    def _make(self, start: int) -> "Future[File]":
        future = self._made.get(start)
        if future is None:
            files, path, size = self._files, self._sequence.path_of(start), self._sequence.file_size
            future = self._worker.submit(lambda: create_file(files, path, size, durable=True))
            self._made[start] = future
        return future

    def retry(self, start: int) -> None:
        """Forget that making files failed, and try again; called now and then."""
        self._last_failure = None
        for each, future in list(self._made.items()):
            if future.done() and future.exception() is not None:
                del self._made[each]
        self.make(start)

    def wait_for(self, start: int) -> None:
        """Wait until the file is made, or can't be; part of the start."""
        self._make(start).exception()

    def wait_for_room(self, start: int, room_bytes: int) -> None:
        """Wait until files of so many bytes are made, or all are, or one can't be; part of the start."""
        self.make(start)
        for future in self._made.values():
            if room_bytes <= 0 or future.exception() is not None:
                return
            room_bytes -= self._sequence.file_size

    def take(self, start: int) -> File:
        """Return a file that was made.

        Raises:
            StoreFullError: Making it has failed, and it is too soon to try again.
            FileNotReadyError: It is still being made.
        """
        if self._last_failure is not None:
            raise self._last_failure
        while True:
            future = self._make(start)
            if not future.done():
                raise FileNotReadyError(self._sequence.path_of(start))
            del self._made[start]
            try:
                made = future.result()
            except StoreFullError as error:
                self._last_failure = error
                raise
            if not is_gone(self._files, made.path):
                return made
            made.close()  # Somebody took it away meanwhile.

    def full_reason(self, start: int) -> str | None:
        """Say why there is no file for an offset, or None; None also while it is being made."""
        if self._last_failure is not None:
            return str(self._last_failure)
        future = self._made.get(start)
        error = future.exception() if future is not None and future.done() else None
        return None if error is None else str(error)

    def close(self) -> None:
        """Close the files, after the worker has ended; they are left empty on the disk."""
        for future in self._made.values():
            if future.exception() is None:
                future.result().close()
        self._made.clear()
