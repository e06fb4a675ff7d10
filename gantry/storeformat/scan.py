"""Read-only access to a store that no broker runs on: the interface for the command line, Spark and tests.

The reader takes file sizes from the files. It can therefore read a store with any settings, from Gantry or Apache
RocketMQ.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from gantry.model.javahash import index_key_hash
from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import File, FileLock, FileSystem, Memory
from gantry.storeformat import layout
from gantry.storeformat.commitlog import LogFile, LogScan
from gantry.storeformat.consumequeue import QueueFile, QueueFiles, QueueScan
from gantry.storeformat.errors import BrokenFileError, NotAStoreError, StoreFileError, StoreInUseError
from gantry.storeformat.flushnote import FailedFlush, decode_flush_note
from gantry.storeformat.indexfile import IndexReader
from gantry.storeformat.manifest import StoreManifest, trusted_manifest
from gantry.storeformat.resync import NO_MANIFEST, LogRecord, examine

OPEN_FILES_MAX: Final = 128
"""Limit for open files of one folder: a store has thousands of queues, a process by default 1,024 descriptors."""
TIME_MAX_MS: Final = 1 << 62

OnUnreadable = Callable[[str, int, int], None]


class StoreReader:
    """Reads a store.

    An open reader holds the store's locks: the lock on the folder, and the lock on the lock file if there is one. No
    broker can therefore start and change the files meanwhile.
    The reader writes nothing: it does not create a missing lock file.

    Concurrency: one thread.
    """

    def __init__(self, files: FileSystem, root: str, *, index_slots: int | None = None) -> None:
        """Open a store.

        Args:
            files: The file system.
            root: The store's folder.
            index_slots: The number of hash slots of an index file; None for a quarter of its entries.

        Raises:
            NotAStoreError: The folder does not exist, or holds no store.
            StoreInUseError: A broker runs on the store.
            NewerFormatError: A later release wrote the store.
        """
        self.root = root.rstrip("/") or "/."
        self.files = files
        self._index_slots = index_slots
        # Each folder has its own pool. Otherwise, looking up records would close the files of the queue that is being
        # read.
        self._pools: dict[str, OrderedDict[str, File]] = {}
        self._locks: list[FileLock] = []
        self._on_unreadable: OnUnreadable | None = None
        self._unreadable: dict[str, list[tuple[int, int]]] = {}
        if not files.is_dir(self.root):
            raise NotAStoreError(f"{root}: there is no such folder")
        if not files.is_dir(self.path(layout.COMMIT_LOG_DIR)):
            raise NotAStoreError(f"{root}: is no store, it has no folder {layout.COMMIT_LOG_DIR}")
        self._take_lock()
        try:
            self.manifest, self.manifest_problem = self._load_manifest()
            self.log_files = self._list_log()
        except (StoreFileError, OSError):
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and release the locks."""
        for pool in self._pools.values():
            while pool:
                pool.popitem()[1].close()
        while self._locks:
            self._locks.pop().release()

    def path(self, *parts: str) -> str:
        """Return the path of a file or folder in the store."""
        return "/".join((self.root, *parts))

    @property
    def has_abort(self) -> bool:
        """Return whether the last broker on the store did not stop in order."""
        return self.files.exists(self.path(layout.ABORT_FILE))

    @property
    def log_start(self) -> int:
        """Return the physical offset of the CommitLog's first byte."""
        return self.log_files[0].start if self.log_files else 0

    def memory(self, path: str) -> Memory:
        """Return the memory map of a file; it stays open until many other files of its folder have been opened."""
        return self._open(path).map()

    def data_end(self, path: str, start: int) -> int:
        """Return an offset in a file, at least `start`, after which there are only zeros."""
        return self._open(path).data_end(start)

    def guard(self, on_unreadable: OnUnreadable) -> None:
        """From now on, read each opened file before it is mapped; ranges that the disk can't read appear as zeros.

        Access to such a range through the map would end the process. Without this call, only requested bytes are read.

        Args:
            on_unreadable: Called once for each unreadable range, with path, start and end.
        """
        self._on_unreadable = on_unreadable

    def is_unreadable(self, path: str) -> bool:
        """Return whether the disk could not read a part of a file that was opened since `guard`."""
        return bool(self._unreadable.get(path))

    def _blank_unreadable(self, file: File) -> None:
        if self._on_unreadable is None or file.size_bytes == 0:
            return
        known = self._unreadable.get(file.path)
        if known is not None:
            for start, end in known:
                file.blank_unreadable(start, end)
            return
        self._unreadable[file.path] = file.blank_unreadable(0, file.data_end(0))
        for start, end in self._unreadable[file.path]:
            self._on_unreadable(file.path, start, end)

    def _open(self, path: str) -> File:
        pool = self._pools.setdefault(path[len(self.root) :].split("/")[1], OrderedDict())
        file = pool.get(path)
        if file is None:
            file = pool[path] = self.files.open(path, writable=False)
            self._blank_unreadable(file)
            while len(pool) > OPEN_FILES_MAX:
                pool.popitem(last=False)[1].close()
        pool.move_to_end(path)
        return file

    def scan(self, start: int | None = None) -> LogScan:
        """Return a pass over the CommitLog that begins at its first byte or at a record's offset."""
        return LogScan(self.log_files, self.memory, manifest=self.manifest, start=start)

    def record(self, physical_offset: int) -> LogRecord | None:
        """Return the record at an offset, or None if there is no valid record."""
        for file in self.log_files:
            if file.start <= physical_offset < file.end:
                memory, at = self.memory(file.path), physical_offset - file.start
                manifest = self.manifest or NO_MANIFEST
                found = examine(memory, at, end=file.size_bytes, base=file.start, manifest=manifest)
                if found.head is None or found.problem is not None:
                    return None
                return LogRecord(physical_offset, found.head, found.crc, memory, at)
        return None

    def queues(self) -> list[QueueFiles]:
        """Return all ConsumeQueues, ordered by topic and queue id."""
        root = self.path(layout.CONSUME_QUEUE_DIR)
        queues = []
        for topic in self.files.list_dir(root):
            if not self.files.is_dir(f"{root}/{topic}"):
                continue
            ids = [int(name) for name in self.files.list_dir(f"{root}/{topic}") if name.isascii() and name.isdigit()]
            queues += [self._list_queue(topic, queue_id, f"{root}/{topic}/{queue_id}") for queue_id in sorted(ids)]
        return queues

    def units(self, queue: QueueFiles) -> QueueScan:
        """Return a pass over a queue's units."""
        return QueueScan(queue, self.memory, self.data_end)

    def index_paths(self) -> list[str]:
        """Return the paths of the index files, oldest first; a crash may have left an empty one."""
        root = self.path(layout.INDEX_DIR)
        return [f"{root}/{name}" for name in self.files.list_dir(root) if layout.is_index_file_name(name)]

    def index_file(self, path: str) -> IndexReader:
        """Open an index file. Raises BrokenFileError if its size does not fit an index file."""
        size = self.files.size_bytes(path)
        return IndexReader(path, self.memory(path) if size else bytearray(), slots=self._index_slots)

    def find(self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = TIME_MAX_MS) -> list[int]:
        """Return the physical offsets that the index has for a key, ascending; hashes may collide.

        Raises:
            BrokenFileError: The size of a file does not fit an index file.
        """
        key_hash = index_key_hash(topic, key)
        found: set[int] = set()
        for path in self.index_paths():
            found.update(self.index_file(path).find(key_hash, begin_ms=begin_ms, end_ms=end_ms))
        return sorted(found)

    def checkpoint(self) -> layout.Checkpoint | None:
        """Return the checkpoint, or None if the file does not exist."""
        path = self.path(layout.CHECKPOINT_FILE)
        if not self.files.exists(path):
            return None
        return layout.decode_checkpoint(self.files.read(path))

    def failed_flush(self) -> FailedFlush | None:
        """Return why the last broker could not flush the store; None if it could, or if it left no note."""
        path = self.path(layout.FLUSH_NOTE_FILE)
        if not self.has_abort or not self.files.exists(path):
            return None
        return decode_flush_note(self.files.read(path))

    def _take_lock(self) -> None:
        path = self.path(layout.LOCK_FILE)
        try:
            # The folder's lock reveals a broker whose lock file was removed.
            self._locks.append(self.files.lock_dir(self.root))
            if self.files.exists(path):
                self._locks.append(self.files.lock(path))
        except AlreadyLockedError:
            self.close()
            raise StoreInUseError(f"{self.root}: a broker runs on this store; stop it first") from None
        except OSError:
            return  # If the lock can't be opened for writing, no Gantry broker runs here either.

    def _load_manifest(self) -> tuple[StoreManifest | None, BrokenFileError | None]:
        try:
            return trusted_manifest(StoreManifest.load(self.files, self.root), has_abort=self.has_abort), None
        except BrokenFileError as error:
            return None, error

    def _list_log(self) -> list[LogFile]:
        root = self.path(layout.COMMIT_LOG_DIR)
        found = []
        for name in self.files.list_dir(root):
            start = layout.parse_file_name(name)
            if start is None or self.files.is_dir(f"{root}/{name}"):
                continue
            size = self.files.size_bytes(f"{root}/{name}")
            if size:
                found.append(LogFile(f"{root}/{name}", start, size))
        return found

    def _list_queue(self, topic: str, queue_id: int, path: str) -> QueueFiles:
        found = []
        for name in self.files.list_dir(path):
            start = layout.parse_file_name(name)
            size = self.files.size_bytes(f"{path}/{name}") if start is not None else 0
            if start is not None and size:
                found.append(QueueFile(f"{path}/{name}", start, size))
        return QueueFiles(topic, queue_id, path, tuple(found))


def usual_size(sizes: list[int]) -> int:
    """Return the most frequent size, or the greatest of several equally frequent ones; 0 for no files."""
    counted = Counter(sizes)
    return max(counted, key=lambda size: (counted[size], size), default=0)
