"""Drops files from the page cache at a start after a crash, so that the start reads them from the disk.

A failed flush leaves pages in the cache that the disk does not have (gantry.runtime.pagecache). If a broker served
these pages, the next power cut would lose them, and bytes next to them would never reach the disk. The broker whose
flush failed may not have been able to leave a note. The drop therefore happens after every crash.

File names need the same care: the start syncs the folders, because a file can be found in memory although its name was
never synced.

The checkpoint holds the physical offset up to which a sync of everything has succeeded. Files with no data after that
offset are synced and keep their pages.
"""

from gantry.runtime.errors import describe_os_error
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import (
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONSUME_QUEUE_DIR,
    INDEX_DIR,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    UNIT_SIZE_BYTES,
    decode_unit,
    is_index_file_name,
    parse_file_name,
)
from services.broker.store.errors import UnsyncedStoreError
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.queues.consumequeue import is_message_unit
from services.broker.store.settings import StoreSettings

log = logger("broker.store")


def drop_unsynced(files: FileSystem, settings: StoreSettings, folder: StoreFolder) -> None:
    """After a crash, drop from memory the pages that a failed flush may have left there but not written to the disk.

    Raises:
        UnsyncedStoreError: The disk still fails.
    """
    if folder.is_clean:
        return
    if folder.failed_flush is not None:
        log.error("the last broker on this store could not flush it", **folder.failed_flush._asdict())
    volume = files.open_volume(settings.store_path_root_dir)
    if volume is not None:
        # One call writes the files of thousands of queues. The call also takes the report of the last broker's failure.
        # Otherwise a volume that is opened later would get that report as its own.
        try:
            volume.sync()
        except OSError as error:
            log.warning(
                "the disk could not be written; what it has not is dropped from memory", reason=describe_os_error(error)
            )
        finally:
            volume.close()
    unsynced = _UnsyncedFiles(files, folder, index_entries=settings.max_index_num)
    count, kept_bytes = unsynced.drop()
    log.info("files are read anew from the disk", files=count)
    if kept_bytes:
        log.warning("the file system can't show whether memory and disk agree", bytes=kept_bytes)


class _UnsyncedFiles:
    """The files of a store whose content in memory may differ from the disk.

    Args:
        folder: The store's folder, which knows how much its checkpoint proves.
        index_entries: The number of entries of a full index file.
    """

    def __init__(self, files: FileSystem, folder: StoreFolder, *, index_entries: int) -> None:
        self._files = files
        self._folder = folder
        self._root = folder.root
        self._index_entries = index_entries
        self._checkpoint_offset = 0
        self._folders = [folder.root]

    def drop(self) -> tuple[int, int]:
        """Drop the cached pages of all files that may not be synced, and sync all names.

        Returns:
            The number of files, and the number of bytes that stay in memory and could not be compared with the disk.

        Raises:
            UnsyncedStoreError: The disk still fails.
        """
        path = f"{self._root}/{CHECKPOINT_FILE}"
        count = kept = 0
        if self._files.exists(path):
            kept += self._drop(path)
            count += 1
            self._checkpoint_offset = self._folder.checkpoint_offset().offset
        for path in (*self._log_files(), *self._queue_files(), *self._index_files()):
            kept += self._drop(path)
            count += 1
        for folder in reversed(self._folders):
            try:
                self._files.sync_dir(folder)
            except OSError as error:
                raise UnsyncedStoreError(folder, error) from error
        return count, kept

    def _drop(self, path: str) -> int:
        try:
            return self._files.drop_cache(path)
        except OSError as error:
            # Linux reports the last broker's failed write-back once, to the next process that opens the file. The pages
            # are dropped anyway, so the second answer is about the current state of the disk.
            log.warning("a file could not be written; trying again", path=path, reason=describe_os_error(error))
        try:
            return self._files.drop_cache(path)
        except OSError as error:
            raise UnsyncedStoreError(path, error) from error

    def _names(self, *parts: str) -> tuple[str, list[str]]:
        folder = "/".join((self._root, *parts))
        self._folders.append(folder)
        return folder, self._files.list_dir(folder)

    def _file_names(self, *parts: str) -> tuple[str, list[str]]:
        """Return a folder and the names of its files, not of subfolders: `load` rejects one with a file's name."""
        folder = "/".join((self._root, *parts))
        self._folders.append(folder)
        return folder, [name for name, _ in self._files.list_files(folder)]

    def _log_files(self) -> list[str]:
        folder, names = self._file_names(COMMIT_LOG_DIR)
        return [
            f"{folder}/{name}"
            for name in names
            if (start := parse_file_name(name)) is not None
            and start + self._files.size_bytes(f"{folder}/{name}") > self._checkpoint_offset
        ]

    def _queue_files(self) -> list[str]:
        top, topics = self._names(CONSUME_QUEUE_DIR)
        found = []
        for topic in topics:
            if not self._files.is_dir(f"{top}/{topic}"):
                continue
            for queue in self._names(CONSUME_QUEUE_DIR, topic)[1]:
                if not self._files.is_dir(f"{top}/{topic}/{queue}"):
                    continue
                folder, names = self._file_names(CONSUME_QUEUE_DIR, topic, queue)
                paths = [f"{folder}/{name}" for name in names if parse_file_name(name) is not None]
                found += [path for path in paths if not self._is_synced_queue_file(path)]
        return found

    def _is_synced_queue_file(self, path: str) -> bool:
        """Return whether a file's last unit is of a synced record; such a file was full by the last sync."""
        size = self._files.size_bytes(path)
        if size < UNIT_SIZE_BYTES:
            return False
        unit = decode_unit(self._read(path, size - UNIT_SIZE_BYTES, UNIT_SIZE_BYTES))
        return (
            is_message_unit(unit.physical_offset, unit.size_bytes)
            and unit.physical_offset + unit.size_bytes <= self._checkpoint_offset
        )

    def _index_files(self) -> list[str]:
        folder, names = self._file_names(INDEX_DIR)
        paths = [f"{folder}/{name}" for name in names if is_index_file_name(name)]
        return [path for path in paths if not self._is_synced_index_file(path)]

    def _is_synced_index_file(self, path: str) -> bool:
        if self._files.size_bytes(path) < INDEX_HEADER_BYTES:
            return False
        header = INDEX_HEADER.unpack(self._read(path, 0, INDEX_HEADER_BYTES))
        _, _, _, end_offset, _, count = header
        return bool(count >= self._index_entries and end_offset < self._checkpoint_offset)

    def _read(self, path: str, at: int, size: int) -> bytes:
        """Read a few bytes; return zeros, which prove nothing, if the disk can't read them."""
        file = self._files.open(path, writable=False)
        try:
            return file.read(at, size)
        except OSError:
            return bytes(size)
        finally:
            file.close()
