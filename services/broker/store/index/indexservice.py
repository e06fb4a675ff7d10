"""The index: IndexFiles in order of creation, filled by dispatch and read by queries.

Each message is indexed under its UNIQ_KEY and then under every word of its KEYS. A message is new if it lies after the
last message in the newest file. A message at exactly that offset may already have some of its keys in the index,
because a crash or a full file may have separated them.
"""

from collections.abc import Callable, Iterable, Iterator
from errno import EIO

from gantry.model.javahash import index_key_hash
from gantry.runtime.clock import Clock
from gantry.runtime.openfiles import OpenFiles, PooledFile
from gantry.runtime.telemetry import logger
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.layout import (
    INDEX_DIR,
    INDEX_NAME_DIGITS,
    index_file_bytes,
    index_file_name,
    is_index_file_name,
)
from services.broker.store.errors import StoreFullError
from services.broker.store.files.mappedfile import ClosableFile, MappedFile
from services.broker.store.files.mappedfilequeue import make_file
from services.broker.store.index.indexfile import IndexFile
from services.broker.store.settings import StoreSettings

# An Entry (dispatchrequest.py) or its plain tuple: physical offset, size, queue, queue offset, tags code, topic, unique key,
# keys, store time.
Indexed = tuple[int, int, object, int, int, str, str, str, int]

log = logger("broker.store")


class IndexService:
    """All IndexFiles of a store.

    Concurrency: the store's thread only. A worker syncs the files that `take_unflushed` returns.
    """

    def __init__(self, pool: OpenFiles, settings: StoreSettings, clock: Clock) -> None:
        self._pool = pool
        self._files = pool.files
        self._clock = clock
        self._folder = f"{settings.store_path_root_dir}/{INDEX_DIR}"
        self._slots = settings.max_hash_slot_num
        self._entries = settings.max_index_num
        self._size = index_file_bytes(self._slots, self._entries)
        self._list: list[IndexFile] = []
        self._current: IndexFile | None = None
        self._folder_is_dirty = False
        self._touched: set[IndexFile] = set()
        self.broken: dict[str, str] = {}
        """Files that can't be used, by name, with the reason; their content is rebuilt (indexgap.py)."""
        self.full_end_at_ms = 0
        """The end time of the last full file: RocketMQ's checkpoint stores it for the index."""

    def load(self) -> None:
        """Open the usable files.

        Raises:
            OSError: The operating system reported an error other than unreadable bytes.
        """
        for name, size in self._files.list_files(self._folder):
            if not is_index_file_name(name):
                continue
            if size != self._size:
                self.broken[name] = f"has {size} bytes, not {self._size} (max_hash_slot_num, max_index_num)"
                continue
            pooled = PooledFile(self._pool, f"{self._folder}/{name}", self._size)
            try:
                self._list.append(self._file(name, pooled))
            except OSError as error:
                if error.errno != EIO:
                    raise
                pooled.close()
                self._mark_broken(name)
        self._current = self._list[-1] if self._list else None
        self.full_end_at_ms = max((file.end_at_ms for file in self._list if file.is_full), default=0)

    def check(self, trusted_before: int, *, is_repaired: bool) -> None:
        """Give up files that are about to be mapped and that the disk can't read in full.

        Args:
            trusted_before: As for `repair`.
            is_repaired: Whether `repair` will be called; otherwise entries are only added to the last file.
        """
        for file in list(self._list):
            is_mapped = (
                self._is_repaired(file, trusted_before) if is_repaired else file is self._current and not file.is_full
            )
            if is_mapped and not file.is_readable(is_repaired=is_repaired):
                self._list.remove(file)
                file.drop().close()
                self._mark_broken(file.name)
        self._current = self._list[-1] if self._list else None

    @staticmethod
    def _is_repaired(file: IndexFile, trusted_before: int) -> bool:
        # A header may be older than its file, so only a full file is certain to be complete.
        return file.begin_offset < trusted_before and not (file.is_full and file.end_offset < trusted_before)

    def _mark_broken(self, name: str) -> None:
        self.broken[name] = "the disk can't read a part of it"
        log.error("the disk can't read a part of an index file", path=f"{self._folder}/{name}")

    def has_broken(self, after: str, before: str | None) -> bool:
        """Return whether a broken file with content lies between two names; `before` None means the end."""
        return any(
            after < name and (before is None or name < before) and not self._is_blank(name) for name in self.broken
        )

    def _is_blank(self, name: str) -> bool:
        """Return whether a crash interrupted the creation of a file, so that the file has no content."""
        path = f"{self._folder}/{name}"
        return self._files.size_bytes(path) < self._size and is_blank_file(self._files, path)

    def _file(self, name: str, pooled: PooledFile) -> IndexFile:
        return IndexFile(name, pooled, slots=self._slots, entries=self._entries)

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._list)

    def __contains__(self, file: object) -> bool:
        return file in self._list

    def __len__(self) -> int:
        return len(self._list)

    @property
    def last_update(self) -> tuple[int, int]:
        """Return store time and physical offset of the last indexed message."""
        return (self._current.end_at_ms, self._current.end_offset) if self._current is not None else (0, 0)

    def put_all(self, entries: Iterable[Indexed]) -> None:
        """Index messages in the order of the log; messages that are already indexed are skipped.

        Raises:
            StoreFullError: A new file can't be created; putting all of them again is harmless.
        """
        simple: list[tuple[int, int, int]] = []
        file = self._current
        room, end = (file.room, file.end_offset) if file is not None else (0, 0)
        for at, _, _, _, _, topic, unique_key, keys, stored_at_ms in entries:
            if unique_key and not keys and len(simple) < room and at > end:
                # Nearly every message: one key, after all others, and room for it.
                simple.append((index_key_hash(topic, unique_key), at, stored_at_ms))
            else:
                self._put_simple(simple)
                simple.clear()
                self.put(topic, unique_key, keys, at, stored_at_ms)
                file = self._current
                room, end = (file.room, file.end_offset) if file is not None else (0, 0)
        self._put_simple(simple)

    def _put_simple(self, entries: list[tuple[int, int, int]]) -> None:
        if entries:
            file = self._current
            assert file is not None
            file.put(entries)
            self._touched.add(file)
            if file.is_full:
                self.full_end_at_ms = file.end_at_ms

    def put(self, topic: str, unique_key: str, keys: str, physical_offset: int, stored_at_ms: int) -> None:
        """Index a message under its unique key and the words of `keys`; an already indexed message is skipped.

        Raises:
            StoreFullError: A new file can't be created.
        """
        words = [unique_key] if unique_key else []
        words += [word for word in keys.split(" ") if word]
        for word in words[self._known_keys(physical_offset) :]:
            file = self._writable_file()
            file.put(((index_key_hash(topic, word), physical_offset, stored_at_ms),))
            self._touched.add(file)
            if file.is_full:
                self.full_end_at_ms = stored_at_ms

    def _known_keys(self, physical_offset: int) -> int:
        """Return how many of a message's keys are already in the files."""
        known = 0
        for file in reversed(self._list):
            if file.count == 1:
                continue  # Empty; its header repeats the end of the file before.
            if physical_offset < file.end_offset:
                return 1 << 30
            if physical_offset > file.end_offset:
                return known
            here = file.keys_of_last()
            known += here
            if here < file.count - 1:
                return known
        return known

    def _writable_file(self) -> IndexFile:
        previous = self._current
        if previous is not None and not previous.is_full:
            return previous
        name = index_file_name(self._clock.now_ms())
        if previous is not None and name <= previous.name:
            # Both were created within one millisecond, or the clock was set back. Names must sort in the order of
            # creation.
            name = f"{int(previous.name) + 1:0{INDEX_NAME_DIGITS}d}"
        if len(self._list) == 0:
            self._files.make_dirs(self._folder)
        current = self._new_file(name)
        self._folder_is_dirty = True
        self._list.append(current)
        self._current = current
        if previous is not None:
            current.start_after(previous)
        return current

    def _new_file(self, name: str) -> IndexFile:
        path = f"{self._folder}/{name}"
        try:
            made = self._pool.open_with_eviction(lambda: make_file(self._files, path, self._size, sparse=True))
        except OSError as error:
            raise StoreFullError(path, error) from error
        current = self._file(name, self._pool.adopt(made))
        try:
            current.make_writable()
        except StoreFullError:
            current.drop()
            self._files.remove(path)
            raise
        return current

    def write_headers(self) -> None:
        """Write the headers of the files that got entries; the end of a round of dispatch."""
        for file in self._touched:
            file.write_header()
        self._touched.clear()

    def repair(self, trusted_before: int, find_head: Callable[[int], object | None], *, is_synced: bool) -> int:
        """Drop the entries of records from an offset on, and everything after an invalid entry.

        Args:
            trusted_before: The physical offset from which on the entries of records are dropped.
            find_head: Returns the head of the record at a physical offset, or None.
            is_synced: Whether the entries of records before that offset were synced.

        Returns:
            The number of dropped entries; recovery or dispatch adds them again.
        """
        gone = 0
        kept: list[IndexFile] = []
        dropped: list[str] = []
        is_behind_gap = False
        for file in self._list:
            # Entries follow the log without a gap, so everything after a gap is rebuilt.
            is_behind_gap = is_behind_gap or file.begin_offset >= trusted_before
            if is_behind_gap:
                gone += file.count - 1
            elif self._is_repaired(file, trusted_before):
                file.make_writable()
                gone += file.repair(trusted_before, find_head, is_synced=is_synced)
            if is_behind_gap or file.count == 1:
                file.drop().close()
                dropped.append(file.name)
            else:
                kept.append(file)
            is_behind_gap = is_behind_gap or not file.is_full
        # The newest first: if another crash interrupts this, the rest must not have a gap that goes unnoticed.
        for name in sorted(dropped, reverse=True):
            self._files.remove(f"{self._folder}/{name}")
            self._folder_is_dirty = True
        self._list = kept
        self._touched.clear()
        self._current = kept[-1] if kept else None
        return gone

    def remove_broken(self) -> None:
        """Remove the broken files: their content was rebuilt, or exists in other files."""
        for name in self.broken:
            self._files.remove(f"{self._folder}/{name}")
            self._folder_is_dirty = True
        self.broken.clear()

    def expire(self, log_min_offset: int) -> list[ClosableFile]:
        """Drop and return the files whose messages are all gone, but never the last file."""
        dropped: list[ClosableFile] = []
        while len(self._list) > 1 and self._list[0].end_offset < log_min_offset:
            dropped.append(self._list.pop(0).drop())
        return dropped

    def take_retired(self) -> list[ClosableFile]:
        """Return the maps of full, synced files, for a worker to close; called while no sync runs."""
        return [gone for file in self._list if (gone := file.retire()) is not None]

    def take_unflushed(self) -> tuple[list[MappedFile], set[str]]:
        """Return mapped files and folders to sync; the caller hands them to a worker."""
        folders = {self._folder, self._folder.rpartition("/")[0]} if self._folder_is_dirty else set()
        self._folder_is_dirty = False
        return [file.file for file in self._list if file.file is not None and file.file.is_dirty], folders

    def close(self) -> None:
        """Close all files."""
        for file in self._list:
            file.close()
        self._list.clear()
        self._current = None
