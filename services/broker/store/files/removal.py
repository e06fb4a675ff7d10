"""Removes files that the store's thread has dropped: in a worker, one slice at a time.

The worker is the one that syncs derived files, so no mapped file is closed during a sync. The store's thread closes
queue files before it hands them to the worker, because only this thread uses their pool of descriptors. Between two
slices the worker runs its other jobs, and the store may stop. The remaining files are then found again at the next
start, and removed when they are due.

Files are removed in the order in which they were handed in. While a file of the CommitLog can't be removed, everything
after it waits: to a start, a log without its middle would look damaged.

A file that is still read stays mapped ("hanged") and keeps its disk space until the read ends. The worker tries now and
then to close such files.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from gantry.runtime.errors import describe_os_error
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker, submit_slices
from services.broker.store.files.mappedfile import ClosableFile, remove_file

# Derived files take 0.1 ms each. A file of the CommitLog takes about 10 ms, and is a slice of its own.
SLICE_FILES_MAX: Final = 32

log = logger("broker.store.removal")


class _Batch(NamedTuple):
    files: list[ClosableFile]
    is_log: bool
    size_bytes: int


class FileRemover:
    """Removes files.

    Concurrency: the store's thread, except for `close_later`, `give_up`, `_removing` and `_closing_in_use`, which run
    in the worker. Only the worker removes or changes batches.

    Attributes:
        worker: The worker.
        is_stopping: Set to True to end after the current slice.
    """

    def __init__(self, files: FileSystem, worker: Worker) -> None:
        self._files = files
        self.worker = worker
        self._waiting: deque[_Batch] = deque()
        self._removal: Future[bool] | None = None
        self._in_use: list[ClosableFile] = []
        self._failure = ""
        self._removed_bytes = 0
        self._wanted_bytes = 0
        self.is_stopping = False

    @property
    def in_use_count(self) -> int:
        """Return how many removed files are still mapped because they are read."""
        return len(self._in_use)

    @property
    def pending_bytes(self) -> int:
        """Return the disk space of the log files that are not removed yet, in bytes."""
        return self._wanted_bytes - self._removed_bytes

    def remove_log_files(self, files: Sequence[tuple[ClosableFile, int]]) -> None:
        """Remove files of the CommitLog, each with its disk space; durable before derived files are removed."""
        for file, size_bytes in files:
            self._wanted_bytes += size_bytes
            self._waiting.append(_Batch([file], is_log=True, size_bytes=size_bytes))
        self.tick()

    def remove_derived_files(self, files: Sequence[ClosableFile]) -> None:
        """Remove files whose messages are all gone with the CommitLog files that were handed in before.

        The log goes first: if a file of the log came back after a crash without its units, it would look like damage.
        """
        for first in range(0, len(files), SLICE_FILES_MAX):
            self._waiting.append(_Batch(list(files[first : first + SLICE_FILES_MAX]), is_log=False, size_bytes=0))
        self.tick()

    def tick(self) -> None:
        """Start the removal of waiting files unless it is running."""
        if self._waiting and (self._removal is None or self._removal.done()):
            if self._removal is not None:
                self._removal.result()  # An exception of a slice is a bug and must not go unseen.
            self._removal = submit_slices(self.worker, self._removing(), lambda: not self.is_stopping)

    def retry_close_in_use(self) -> None:
        """Try again to close the removed files that were in use."""
        if self._in_use:
            self.worker.submit(self._closing_in_use)

    def close_later(self, files: Sequence[ClosableFile]) -> None:
        """Close files whose names are gone; for the worker."""
        self._in_use += [file for file in files if not file.close()]

    def give_up(self, folder: str) -> None:
        """Leave the waiting files in a folder to the caller, who removes them all; for the worker.

        The names may be used again after that, and must not be removed a second time.
        """
        for batch in list(self._waiting):
            batch.files[:] = [file for file in batch.files if not file.path.startswith(f"{folder}/")]

    def close(self) -> None:
        """Close the remaining files, after the worker has ended; their names stay."""
        for batch in self._waiting:
            for file in batch.files:
                file.close()
        self._waiting.clear()

    def _removing(self) -> Iterator[None]:
        while self._waiting:
            batch = self._waiting[0]
            try:
                self._remove_names(batch)
                self._failure = ""
            except OSError as error:
                if describe_os_error(error) != self._failure:
                    self._failure = describe_os_error(error)
                    log.warning("files can't be removed", path=error.filename, reason=self._failure)
                if batch.is_log:
                    return  # The next tick tries again.
                # A derived file that still has its name is found again at the next start.
            self.close_later(batch.files)
            self._removed_bytes += batch.size_bytes
            self._waiting.popleft()
            yield

    def _remove_names(self, batch: _Batch) -> None:
        for file in batch.files:
            remove_file(self._files, file.path)
        if batch.is_log:
            self._files.sync_dir(batch.files[0].path.rpartition("/")[0])

    def _closing_in_use(self) -> None:
        self._in_use = [file for file in self._in_use if not file.close()]
