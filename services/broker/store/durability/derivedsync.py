"""Makes derived files durable: collects the files that were written since the last time, and returns sync jobs.

A few files are synced one by one. Many files, for example of thousands of queues that each got a message, are synced
with one call for the whole file system (`Volume.sync`), because one by one they would take minutes. The same call is
used if a dirty file was closed to stay within the limit of descriptors, because a failed write-back is reported only to
open files. The volume is open from the start of the store, so it reports every failure since then.

Kernels older than 5.8 do not report failures on the volume. On these, files are opened again and synced one by one.

Concurrency: the store's thread calls the methods. The returned jobs run in a worker, one at a time, and `settle` is
called after each job.
"""

from collections.abc import Callable, Collection, Sequence
from errno import EMFILE, ENFILE
from typing import Final

from gantry.runtime.files import File, Volume
from gantry.runtime.openfiles import OpenFiles, PooledFile
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.index.indexservice import IndexService
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.settings import StoreSettings

SYNCED_EACH_MAX: Final = 64
_PAGE_BYTES: Final = 4096

Job = Callable[[], None]


class DerivedSync:
    """The unsynced files and names of ConsumeQueues and index."""

    def __init__(
        self, pool: OpenFiles, settings: StoreSettings, *, queues: ConsumeQueueStore, index: IndexService
    ) -> None:
        self._pool = pool
        self._files = pool.files
        self._root = settings.store_path_root_dir
        self._queues = queues
        self._index = index
        self._bytes_min = settings.flush_consume_queue_least_pages * _PAGE_BYTES
        self._volume: Volume | None = None

    def open(self) -> None:
        """Open the volume; called when the folder exists and before anything is written."""
        self._volume = self._files.open_volume(self._root)

    def due_job(self) -> Job | None:
        """Return the job that syncs a few files with many unsynced bytes; None if there are none, or too many."""
        ripe = self._pool.take_due(self._bytes_min, SYNCED_EACH_MAX)
        if not ripe:
            return None
        files = self._pool.hold(ripe)
        return lambda: self._sync_each(files, (), set())

    def thorough_job(self) -> Job:
        """Return the job that syncs everything written by now, including names."""
        dirty = self._pool.take_dirty()
        mapped, index_folders = self._index.take_unflushed()
        folders = self._queues.take_unsynced_folders()
        folders |= index_folders
        retired = self._index.take_retired()
        is_much = dirty.was_closed or len(dirty.files) + len(mapped) + len(folders) > SYNCED_EACH_MAX
        files: Sequence[File] = () if is_much else self._pool.hold(dirty.files)

        def job() -> None:
            for gone in retired:
                gone.close()
            if not is_much:
                self._sync_each(files, mapped, folders)
            elif self._volume is not None:
                self._sync_volume(self._volume, mapped)
            else:
                self._sync_paths(dirty.files)
                self._sync_each((), mapped, folders)

        return job

    def sync_now(self) -> None:
        """Sync everything written by now, and wait for it; part of the start. Raises OSError."""
        try:
            self.thorough_job()()
        finally:
            self.settle()

    def settle(self) -> None:
        """Release the files that the last job synced."""
        self._pool.release()

    def close(self) -> None:
        """Close the volume."""
        if self._volume is not None:
            self._volume.close()

    # The methods below run in the worker.

    def _sync_each(self, files: Sequence[File], mapped: Sequence[MappedFile], folders: Collection[str]) -> None:
        for file in files:
            file.sync()
        for each in mapped:
            each.sync()
        # Deepest first, so a name is never durable before the content that it names.
        for folder in sorted(folders, key=len, reverse=True):
            try:
                self._files.sync_dir(folder)
            except FileNotFoundError:
                continue  # The folder's topic was deleted meanwhile.
            except OSError as error:
                if self._volume is None or error.errno not in (EMFILE, ENFILE):
                    raise
                # Connections took the last descriptor; the volume has its own.
                self._volume.sync()
                return

    def _sync_paths(self, closed: Collection[PooledFile]) -> None:
        for each in closed:
            try:
                file = self._files.open(each.path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()

    @staticmethod
    def _sync_volume(volume: Volume, mapped: Sequence[MappedFile]) -> None:
        for each in mapped:
            each.is_dirty = False  # Before the sync: writes during it count for the next one.
        volume.sync()
