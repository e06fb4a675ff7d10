"""All ConsumeQueues of a store, by topic and queue id.

There may be tens of thousands of queues. While the store runs, this module therefore iterates over all of them only for
data that is in memory. The pool knows which files are dirty. A queue finds out that its first messages have expired
when it is looked up.
"""

from collections.abc import Callable, Iterator

from gantry.model.errors import InvalidNameError
from gantry.runtime.openfiles import OpenFiles
from gantry.storeformat.layout import CONSUME_QUEUE_DIR, UNIT_SIZE_BYTES, parse_file_name
from gantry.storeformat.scan import usual_size
from services.broker.store.errors import CorruptStoreError, StoreFullError
from services.broker.store.files.pages import Pages
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.queuefile import QueueFile
from services.broker.store.settings import StoreSettings


class ConsumeQueueStore:
    """The table (topic, queue id) → ConsumeQueue, and the operations on all queues.

    Concurrency: the store's thread only.

    Attributes:
        table: The queues. Readers use `find`, because a queue taken from the table may begin with removed messages.
        log_min_offset: The first offset of the CommitLog; no queue that `find` returns begins before it.
        skipped_units: The number of skipped units of all queues.
        units: The sum of all max offsets; correct after recovery.
        files: The number of files that have or had a unit; correct after recovery.
    """

    def __init__(self, pool: OpenFiles, settings: StoreSettings, pages: Pages | None = None) -> None:
        self._pool = pool
        self._files = pool.files
        self._pages = pages or Pages()
        self._root = settings.store_path_root_dir
        self._top = f"{self._root}/{CONSUME_QUEUE_DIR}"
        self._file_size = settings.mapped_file_size_consume_queue
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self.log_min_offset = 0
        self.skipped_units = 0
        self.units = 0
        self.files = 0
        self._unsynced_folders: set[str] = set()
        self.was_repaired = False
        """Whether a file was repaired before it could be opened; then not even an orderly stop guarantees all units."""
        self._is_size_right = False

    def load(self, *, thorough: bool, on_repair: Callable[[], None] | None = None) -> None:
        """Open every queue that has a folder.

        Args:
            thorough: Whether to look after blank units for the queues' ends.
            on_repair: Called once, before the first file is repaired. A repaired file does not show that units are
                missing. The caller must therefore make sure that the next start does not treat the store as one that
                was left in order.

        Raises:
            CorruptStoreError: The files have a size other than the setting.
        """
        top = self._top

        def before_repair() -> None:
            if not self._is_size_right:
                self._check_setting()
                self._is_size_right = True
                if on_repair is not None:
                    on_repair()

        for topic in self._topics():
            for name in self._files.list_dir(f"{top}/{topic}"):
                if not (name.isascii() and name.isdigit() and self._files.is_dir(f"{top}/{topic}/{name}")):
                    continue
                try:
                    queue = self._new(topic, int(name))
                except InvalidNameError:
                    continue  # Not a topic's folder: it does not belong to the store and is left alone.
                queue.load(thorough=thorough, on_repair=before_repair)
                self.was_repaired = self.was_repaired or queue.files.was_repaired
                self.table[topic, int(name)] = queue

    def _topics(self) -> list[str]:
        """Return the names of the topics' folders; files beside them do not belong to the store."""
        return [name for name in self._files.list_dir(self._top) if self._files.is_dir(f"{self._top}/{name}")]

    def _check_setting(self) -> None:
        """Reject the setting if all files have another size: then the setting is wrong, not the files.

        Raises:
            CorruptStoreError: No file has the setting's size, and the files are not just too short.
        """
        sizes, starts = [], []
        for topic in self._topics():
            for name in self._files.list_dir(f"{self._top}/{topic}"):
                for file, size in self._files.list_files(f"{self._top}/{topic}/{name}"):
                    start = parse_file_name(file)
                    if start is not None and size > 0:
                        sizes.append(size)
                        starts.append(start)
        usual, expected = usual_size(sizes), self._file_size
        is_changed = usual > expected or any(start % expected for start in starts)
        if is_changed and expected not in sizes and usual % UNIT_SIZE_BYTES == 0:
            raise CorruptStoreError(
                self._top,
                f"its files have {usual} bytes, and mapped_file_size_consume_queue says {expected}; start with the "
                f"setting that the files were made with: mapped_file_size_consume_queue={usual}",
            )

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that begins with the first record the CommitLog still has, or None."""
        queue = self.table.get((topic, queue_id))
        if queue is not None and queue.corrected_to != self.log_min_offset:
            # Correcting all queues at once, when files of the log are removed, would block the event loop.
            queue.correct_min(self.log_min_offset)
        return queue

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; a new queue gets its folder with its first unit.

        Raises:
            InvalidNameError: The name is not valid for a topic.
        """
        queue = self.table.get((topic, queue_id))
        if queue is None:
            queue = self.table[topic, queue_id] = self._new(topic, queue_id)
        return queue

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self._pool, self._root, topic, queue_id, self._file_size, self._pages)

    def prepare(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue whose folder and first file exist, with that file's first block, so that a message can follow.

        Raises:
            InvalidNameError: The name is not valid for a topic.
            StoreFullError: The file system reported an error; a queue that did not exist still does not exist.
        """
        queue = self.table.get((topic, queue_id))
        if queue is None:
            queue = self._new(topic, queue_id)
        if len(queue.files) == 0:
            try:
                self.make_folder(queue)
            except OSError as error:
                raise StoreFullError(queue.files.folder, error) from error
            queue.prepare()
            self._note_folder(queue)
        self.table[topic, queue_id] = queue
        return queue

    def append(self, queue: ConsumeQueue, index: int, units: bytes) -> None:
        """Write units, and create the queue's folder if these are its first.

        Raises:
            StoreFullError: A file can't be created or extended.
            OSError: The disk failed.
        """
        if len(queue.files) == 0:
            self.make_folder(queue)
        skipped, (had_units, had_files) = queue.skipped, _held(queue)
        queue.append(index, units)
        has_units, has_files = _held(queue)
        self.units += has_units - had_units
        self.files += has_files - had_files
        self.skipped_units += queue.skipped - skipped
        if queue.files.folder_is_dirty:
            self._note_folder(queue)

    def _note_folder(self, queue: ConsumeQueue) -> None:
        self._unsynced_folders.add(queue.files.folder)
        queue.files.folder_is_dirty = False

    def make_folder(self, queue: ConsumeQueue) -> None:
        """Create a queue's folder; the next thorough flush syncs its name and the names of the folders above."""
        self._files.make_dirs(queue.files.folder)
        self._unsynced_folders |= {self._root, self._top, f"{self._top}/{queue.topic}"}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def max_physical_offset(self) -> int:
        """Return the greatest end of a record that any queue knows."""
        ends = (queue.newest_message() for queue in self)
        return max((unit.physical_offset + unit.size_bytes for _, unit in filter(None, ends)), default=0)

    def take_unsynced_folders(self) -> set[str]:
        """Return the folders with names that are not durable yet; from here on they count as synced."""
        folders, self._unsynced_folders = self._unsynced_folders, set()
        return folders

    def correct_min(self, log_min_offset: int) -> None:
        """Make every queue begin with the first record that the CommitLog still has, and update the sums.

        Called at the end of recovery. Queues without any file are dropped: they come only from a damaged record or a
        rejected message.
        """
        self.log_min_offset = log_min_offset
        for queue in self:
            queue.correct_min(log_min_offset)
            if queue.files.folder_is_dirty:
                self._note_folder(queue)
            if len(queue.files) == 0:
                del self.table[queue.topic, queue.queue_id]
        self.skipped_units = sum(queue.skipped for queue in self)
        held = [_held(queue) for queue in self]
        self.units, self.files = sum(units for units, _ in held), sum(files for _, files in held)

    def expire(self, queue: ConsumeQueue) -> list[QueueFile]:
        """Drop and return the files of a queue whose messages are no longer in the CommitLog."""
        _, had_files = _held(queue)
        expired = queue.expired(self.log_min_offset)
        self.files += _held(queue)[1] - had_files
        return expired

    def forget_topic(self, topic: str) -> list[ConsumeQueue]:
        """Drop and return a topic's queues, and close their files, which the caller must remove."""
        queues = [queue for queue in self if queue.topic == topic]
        for queue in queues:
            self.forget(queue)
        return queues

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop one queue and close its files, which the caller must remove."""
        del self.table[queue.topic, queue.queue_id]
        units, files = _held(queue)
        self.units -= units
        self.files -= files
        queue.files.close()
        self.skipped_units -= queue.skipped

    def holds(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue is in the table; it is not after its topic was deleted."""
        return self.table.get((queue.topic, queue.queue_id)) is queue


def _held(queue: ConsumeQueue) -> tuple[int, int]:
    """Return the number of units that a queue has or had, and the number of files with them.

    A file after the queue's end does not count: it was only prepared, or a power cut removed its units.
    """
    return queue.max_offset, queue.files.count_before(queue.max_offset * UNIT_SIZE_BYTES)
