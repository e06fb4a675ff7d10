"""All ConsumeQueues of a store, by topic and queue id."""

from collections.abc import Callable, Iterator

from gantry.model.errors import InvalidNameError
from gantry.runtime.files import FileSystem
from gantry.storeformat.layout import CONSUME_QUEUE_DIR, UNIT_SIZE_BYTES
from services.broker.store.consumequeue import ConsumeQueue
from services.broker.store.mappedfile import MappedFile
from services.broker.store.settings import StoreSettings

PAGE_BYTES = 4096


class ConsumeQueueStore:
    """The table (topic, queue id) → ConsumeQueue, and what concerns all of them.

    Concurrency: the store's thread only. What `take_unflushed` returns is synced by a worker.
    """

    def __init__(self, files: FileSystem, settings: StoreSettings) -> None:
        self._files = files
        self._root = settings.root_dir
        self._file_size = settings.mapped_file_size_consume_queue
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self._unsynced_folders: set[str] = set()

    def load(self, *, thorough: bool) -> None:
        """Open every queue that has a folder.

        Raises:
            CorruptStoreError: A file has another size than the settings say.
        """
        top = f"{self._root}/{CONSUME_QUEUE_DIR}"
        for topic in self._files.list_dir(top):
            for name in self._files.list_dir(f"{top}/{topic}"):
                if not (name.isascii() and name.isdigit() and self._files.is_dir(f"{top}/{topic}/{name}")):
                    continue
                try:
                    queue = ConsumeQueue(self._files, self._root, topic, int(name), self._file_size)
                except InvalidNameError:
                    continue  # Not a topic's folder: nothing of ours, left alone.
                queue.load(thorough=thorough)
                self.table[topic, int(name)] = queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None."""
        return self.table.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, which gets its folder with its first unit.

        Raises:
            InvalidNameError: The name can't be a topic's.
        """
        queue = self.table.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(self._files, self._root, topic, queue_id, self._file_size)
            self.table[topic, queue_id] = queue
        return queue

    def append(self, queue: ConsumeQueue, index: int, units: bytes) -> None:
        """Write units, and make the queue's folder if these are its first.

        Raises:
            StoreFullError: A file can't be made.
        """
        if len(queue.files) == 0:
            self.make_folder(queue)
        queue.append(index, units)

    def make_folder(self, queue: ConsumeQueue) -> None:
        """Make a queue's folder; the names above it are synced with the next thorough flush."""
        self._files.make_dirs(queue.files.folder)
        top = f"{self._root}/{CONSUME_QUEUE_DIR}"
        self._unsynced_folders |= {self._root, top, f"{top}/{queue.topic}"}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def max_physical_offset(self) -> int:
        """Return the greatest end of a record that any queue knows."""
        ends = (queue.newest_message() for queue in self)
        return max((unit.physical_offset + unit.size_bytes for _, unit in filter(None, ends)), default=0)

    def take_unflushed(self, *, pages_min: int) -> tuple[list[MappedFile], list[str]]:
        """Return what to sync: files with at least so many unflushed pages (0: any), and, for 0, folders.

        The caller hands them to a worker; from here on they count as flushed.
        """
        dirty: list[MappedFile] = []
        folders: list[str] = []
        for queue in self:
            written = queue.max_offset * UNIT_SIZE_BYTES // PAGE_BYTES
            if pages_min and written - queue.flushed_offset * UNIT_SIZE_BYTES // PAGE_BYTES < pages_min:
                continue
            dirty += queue.files.dirty_files()
            queue.flushed_offset = queue.max_offset
            if queue.files.folder_is_dirty and pages_min == 0:
                queue.files.folder_is_dirty = False
                folders.append(queue.files.folder)
        if pages_min == 0:
            # Deepest first, so that a name is never durable before what it names.
            folders += sorted(self._unsynced_folders, key=len, reverse=True)
            self._unsynced_folders.clear()
        return dirty, folders

    def correct_min(self, log_min_offset: int) -> None:
        """Let every queue begin with the first record that the CommitLog still has."""
        for queue in self:
            queue.correct_min(log_min_offset)

    def expire(self, log_min_offset: int) -> list[MappedFile]:
        """Forget the files whose messages are gone, in all queues, and return them."""
        dropped: list[MappedFile] = []
        for queue in self:
            dropped += queue.expired(log_min_offset)
            queue.correct_min(log_min_offset)
        return dropped

    def drop_topic(self, topic: str) -> Callable[[], None]:
        """Forget a topic's queues; return the job that removes their files and folders."""
        queues = [queue for queue in self if queue.topic == topic]
        for queue in queues:
            del self.table[topic, queue.queue_id]
        folder = f"{self._root}/{CONSUME_QUEUE_DIR}/{topic}"
        files = self._files

        def remove() -> None:
            for queue in queues:
                queue.files.close()
            for name in files.list_dir(folder):
                inner = f"{folder}/{name}"
                for file in files.list_dir(inner):
                    files.remove(f"{inner}/{file}")
                if files.is_dir(inner):
                    files.remove_dir(inner)
            if files.is_dir(folder):
                files.remove_dir(folder)
                files.sync_dir(f"{self._root}/{CONSUME_QUEUE_DIR}")

        return remove

    def close(self) -> None:
        """Close all files."""
        for queue in self:
            queue.files.close()
