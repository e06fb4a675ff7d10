"""Checks whether this broker still owns the store, before each change of a file or folder by path.

A running broker locks the store's folder and the file `lock` in it. Both locks hold files and not paths. A person may
move the folder away and start another broker at its path. A broker of Apache RocketMQ starts if somebody removed the
lock file. From then on, the paths lead to files of the other broker. Before each change, `OwnedFiles` therefore checks
whether the path of the lock file still leads to the locked file. The check costs one `stat`.

    found at the path                       means
    the locked lock file                    this broker owns the store
    another folder, or none                 the store is lost
    no lock file, or one that is free       somebody removed it: it is created again and locked
    a lock file that another process holds  the store is lost

This broker never owns a lost store again: another broker may have changed it meanwhile.
"""

from collections.abc import Callable, Iterable
from errno import ESTALE
from threading import Lock

from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import File, FileLock, FileSystem
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import LOCK_CONTENT, LOCK_FILE
from services.broker.store.errors import StoreError, StoreLockedError

log = logger("broker.store")


class Ownership:
    """The locks of one store; checks that they still protect the files at the store's path.

    Args:
        files: The file system that holds the store.
        root: The store's folder.

    Attributes:
        lost: The reason why this broker no longer owns the store, or None.
        on_lost: Called once with the reason why the store is lost, in the thread that noticed it.

    Concurrency: any thread; `take` and `release` while no other thread writes to the store.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root
        self._path = f"{root}/{LOCK_FILE}"
        self._folder_lock: FileLock | None = None
        self._lock: FileLock | None = None
        # Each of two threads that lock a new lock file at the same time would take the other for another process.
        self._mutex = Lock()
        self._refused = ""
        self.lost: str | None = None
        self.on_lost: Callable[[str], None] = lambda reason: None

    def take(self) -> None:
        """Lock the folder, which must exist, and the lock file.

        Raises:
            StoreLockedError: Another process holds one of the locks.
            OSError: The file system reported an error.
        """
        try:
            self._folder_lock = self._files.lock_dir(self._root)
            self._lock_file()
        except AlreadyLockedError:
            raise StoreLockedError(self._path) from None

    def release(self) -> None:
        """Release the locks."""
        for lock in (self._lock, self._folder_lock):
            if lock is not None:
                lock.release()
        self._lock = self._folder_lock = None

    def is_still_owned(self) -> bool:
        """Return whether this broker owns the store; True before `take` and, unless it was lost, after `release`."""
        if self.lost is not None:
            return False
        lock = self._lock
        return lock is None or _is_current(lock) or self._check_loss()

    def _check_loss(self) -> bool:
        with self._mutex:
            if self.lost is not None:
                return False
            self.lost = reason = self._find_loss()
        if reason is None:
            return True
        log.critical("the store is lost; nothing is written to it any more", reason=reason)
        self.on_lost(reason)
        return False

    def lost_reason(self) -> str | None:
        """Check the ownership; return why the store is lost, or None."""
        return None if self.is_still_owned() else self.lost

    def require(self) -> None:
        """Raise OSError if the store is lost."""
        if not self.is_still_owned():
            raise self._error()

    def explain(self, error: StoreError | OSError) -> StoreError | OSError:
        """Return an error as it is, or the loss of the store if that is the likely cause."""
        return error if self.is_still_owned() else self._error()

    def _error(self) -> OSError:
        return OSError(ESTALE, self.lost, self._root)

    def _find_loss(self) -> str | None:
        """Return why the store is lost, or None; if only the lock file is missing, create and lock it again."""
        folder_lock, lock = self._folder_lock, self._lock
        assert folder_lock is not None
        assert lock is not None
        if not _is_current(folder_lock):
            return f"the store's folder was moved or removed: {self._root}"
        if _is_current(lock):
            return None  # Another thread has created it again.
        try:
            self._lock_file()
        except AlreadyLockedError:
            return f"another broker has the store's lock: {self._path}"
        except OSError as error:
            # The folder stays locked. The reason is logged once, not for every change of a file.
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("the store's lock file can't be made", reason=self._refused)
            return None
        log.error("somebody removed the store's lock file; it was made again", path=self._path)
        return None

    def _lock_file(self) -> None:
        is_new = not self._files.exists(self._path)
        gone, self._lock = self._lock, self._files.lock(self._path)
        if gone is not None:
            gone.release()
        # Last: if there is no room for the content, the file is empty, but locked.
        if is_new or self._files.read(self._path) != LOCK_CONTENT:
            self._files.write(self._path, LOCK_CONTENT)


def _is_current(lock: FileLock) -> bool:
    try:
        return lock.is_current()
    except OSError:
        return True  # The path can't be followed now. That is no sign of another owner, and prevents changes by path.


class OwnedFiles:
    """A file system that changes nothing by path once the store is lost: it raises OSError (ESTALE) with the reason.

    Opening a file for writing counts as a change. Files that are already open can still be written.
    """

    def __init__(self, files: FileSystem, ownership: Ownership) -> None:
        self._files = files
        self._require = ownership.require
        self.open_volume = files.open_volume
        self.read = files.read
        self.list_dir = files.list_dir
        self.list_files = files.list_files
        self.is_dir = files.is_dir
        self.exists = files.exists
        self.size_bytes = files.size_bytes
        self.allocated_bytes = files.allocated_bytes
        self.modified_ms = files.modified_ms
        self.sync_dir = files.sync_dir
        self.lock = files.lock
        self.lock_dir = files.lock_dir
        self.drop_cache = files.drop_cache
        self.disk_usage = files.disk_usage

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> File:
        """Create a file of zeros and open it."""
        self._require()
        return self._files.create(path, size_bytes, sparse=sparse)

    def open(self, path: str, *, writable: bool = True) -> File:
        """Open an existing file."""
        if writable:
            self._require()
        return self._files.open(path, writable=writable)

    def write(self, path: str, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
        """Write a small file in place."""
        self._require()
        self._files.write(path, data, durable=durable)

    def replace(self, source: str, target: str) -> None:
        """Rename a file atomically to `target`, which it replaces."""
        self._require()
        self._files.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._require()
        self._files.remove(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        self._require()
        self._files.remove_dir(path)

    def make_dirs(self, path: str) -> None:
        """Create a folder and its missing parents."""
        self._require()
        self._files.make_dirs(path)
