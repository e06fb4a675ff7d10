"""CommitLog files that a worker creates before they are needed.

The store's thread waits for them only at the start. If the next file does not exist in time, the store rejects the
record, and its sender retries. One file of the usual size is created ahead, or several smaller ones.

Concurrency: the store's thread; the worker only creates files.
"""

from concurrent.futures import Future

from gantry.runtime.files import File, FileSystem
from gantry.runtime.workers import Worker
from services.broker.store.errors import FileNotReadyError, StoreFullError
from services.broker.store.files.mappedfile import is_gone
from services.broker.store.files.mappedfilequeue import MappedFileQueue, create_file


class Preallocator:
    """The files after the current one, by the offset at which they start.

    Args:
        count: The number of files that are ready or being created.
    """

    def __init__(self, files: FileSystem, sequence: MappedFileQueue, worker: Worker, *, count: int) -> None:
        self._files = files
        self._sequence = sequence
        self._worker = worker
        self._count = count
        self._made: dict[int, Future[File]] = {}
        self._last_failure: StoreFullError | None = None

    def make(self, start: int) -> None:
        """Start the creation of the files from an offset on, unless they exist or are being created."""
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
        """Forget failed creations, and try again; called now and then."""
        self._last_failure = None
        for each, future in list(self._made.items()):
            if future.done() and future.exception() is not None:
                del self._made[each]
        self.make(start)

    def wait_for(self, start: int) -> None:
        """Wait until the file exists, or its creation has failed; part of the start."""
        self._make(start).exception()

    def wait_for_room(self, start: int, room_bytes: int) -> None:
        """Wait until files of `room_bytes` exist, or all files do, or a creation fails; part of the start."""
        self.make(start)
        for future in self._made.values():
            if room_bytes <= 0 or future.exception() is not None:
                return
            room_bytes -= self._sequence.file_size

    def take(self, start: int) -> File:
        """Return a file that was created.

        Raises:
            StoreFullError: The creation has failed, and it is too soon to try again.
            FileNotReadyError: The file is still being created.
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
            made.close()  # The file was removed from outside meanwhile.

    def full_reason(self, start: int) -> str | None:
        """Return why there is no file for an offset, or None; also None while it is being created."""
        if self._last_failure is not None:
            return str(self._last_failure)
        future = self._made.get(start)
        error = future.exception() if future is not None and future.done() else None
        return None if error is None else str(error)

    def close(self) -> None:
        """Close the files, after the worker has ended; they stay on the disk, empty."""
        for future in self._made.values():
            if future.exception() is None:
                future.result().close()
        self._made.clear()
