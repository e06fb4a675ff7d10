"""The store's folder as a whole: whose it is, whether it was left in order, and which format it has.

- `lock`: held while a broker runs on the store; RocketMQ's brokers hold the same byte.
- `abort`: there from start to an orderly stop, so that its presence at start means a crash; holds the process's id.
- `config/gantry.json`: our mark (gantry.storeformat.mark).
- `config/gantry-deletions.json`: which records are dead though they are in the log (deletedtopics.py).
"""

from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import FileLock, FileSystem
from gantry.storeformat.errors import BrokenFileError, NewerFormatError
from gantry.storeformat.layout import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    INDEX_DIR,
    LOCK_CONTENT,
    LOCK_FILE,
)
from gantry.storeformat.mark import GantryMark, opened_mark, trusted_mark
from services.broker.store.deletedtopics import DeletedTopics
from services.broker.store.errors import StoreFormatError, StoreLockedError


class StoreFolder:
    """The folder of one store.

    Attributes:
        is_clean: The last stop was orderly, or there was none.
        found_mark: What the mark said when the folder was opened; None where there was none.
        mark: What it says now.
        deleted: The topics that were deleted.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self.root = root
        self.checkpoint_path = f"{root}/{CHECKPOINT_FILE}"
        self._abort = f"{root}/{ABORT_FILE}"
        self._lock: FileLock | None = None
        self.is_clean = True
        self.found_mark: GantryMark | None = None
        self.mark = GantryMark()
        self.deleted = DeletedTopics(files, root)

    def open(self) -> None:
        """Make what is missing, lock the store and read its mark; nothing of a store is changed by that.

        Raises:
            StoreLockedError: Another process runs on it.
            StoreFormatError: It has a format that this release does not know, or a broken mark.
            OSError: The disk refused.
        """
        files, path = self._files, f"{self.root}/{LOCK_FILE}"
        for folder in (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            files.make_dirs(f"{self.root}/{folder}")
        is_new = not files.exists(path)
        try:
            self._lock = files.lock(path)
        except AlreadyLockedError:
            raise StoreLockedError(path) from None
        if is_new or files.read(path) != LOCK_CONTENT:
            files.write(path, LOCK_CONTENT)
        self.is_clean = not files.exists(self._abort)
        try:
            self.found_mark = trusted_mark(GantryMark.load(files, self.root), has_abort=not self.is_clean)
        except (NewerFormatError, BrokenFileError) as error:
            raise StoreFormatError(str(error)) from None
        self.mark = self.found_mark or GantryMark()
        self.deleted.load(is_ours=self.is_ours)

    @property
    def is_ours(self) -> bool:
        """Say whether the last one to run on the store was us, so that the checkpoint is ours too.

        We leave the log's end in the mark when we stop in order, and nothing there when we crash.
        """
        mark = self.found_mark
        return mark is not None and self.is_clean == (mark.clean_stop_offset is not None)

    def begin(self, process_id: int) -> None:
        """Say that somebody runs on the store, before anything in it is changed."""
        self._files.write(self._abort, str(process_id).encode() if process_id else b"", durable=True)
        # The folders' own names, all the way up: what is in a folder is lost with its name.
        self._files.sync_dir(self.root)
        folder = self.root
        while "/" in folder.rstrip("/"):
            folder = folder.rstrip("/").rpartition("/")[0] or "/"
            try:
                self._files.sync_dir(folder)
            except PermissionError:
                return  # Where we may not look we have made nothing.

    def mark_opened(self, log_min: int, log_end: int, record_checksum: bool) -> None:
        """Write the mark, and what recovery means for deletions, before the first record is appended."""
        self.deleted.settle(log_min, log_end)
        self.mark = opened_mark(self.found_mark, log_end=log_end, record_checksum=record_checksum)
        self.mark.dump(self._files, self.root)

    def end(self, log_end: int) -> None:
        """Say that the store was stopped in order, after everything in it is on the disk."""
        self.mark = self.mark.stopped(log_end)
        self.mark.dump(self._files, self.root)
        self._files.remove(self._abort)
        self._files.sync_dir(self.root)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
