"""The index: IndexFiles in the order they were made, filled by dispatch and read by queries.

Each message is indexed under its UNIQ_KEY and then under every word of its KEYS. A message that stands in the log
behind what the newest file knows is new; one at exactly that offset may have some of its keys there already, since a
crash, or a file that became full, may have come between them.
"""

from collections.abc import Callable, Iterable, Iterator

from gantry.model.javahash import index_key_hash
from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.storeformat.layout import (
    INDEX_DIR,
    INDEX_NAME_DIGITS,
    index_file_bytes,
    index_file_name,
    is_index_file_name,
)
from services.broker.store.indexfile import IndexFile
from services.broker.store.mappedfile import MappedFile
from services.broker.store.mappedfilequeue import create_file
from services.broker.store.settings import StoreSettings

# An Entry (entry.py) or its plain tuple: where, size, queue, queue offset, tags code, topic, unique key, keys, time.
Indexed = tuple[int, int, object, int, int, str, str, str, int]


class IndexService:
    """All IndexFiles of a store.

    Concurrency: the store's thread only. What `take_unflushed` returns is synced by a worker.
    """

    def __init__(self, files: FileSystem, settings: StoreSettings, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._folder = f"{settings.root_dir}/{INDEX_DIR}"
        self._slots = settings.max_hash_slot_num
        self._entries = settings.max_index_num
        self._size = index_file_bytes(self._slots, self._entries)
        self._list: list[IndexFile] = []
        self._current: IndexFile | None = None
        self._folder_is_dirty = False
        self._touched: set[IndexFile] = set()
        self._empty: list[str] = []
        self.full_end_at_ms = 0
        """End time of the last full file: what RocketMQ's checkpoint says of the index."""

    def load(self) -> list[str]:
        """Open the files.

        Returns:
            The names of files that have another size, and are left alone: an index made with other settings.
        """
        strangers: list[str] = []
        for name in self._files.list_dir(self._folder):
            path = f"{self._folder}/{name}"
            if not is_index_file_name(name) or self._files.is_dir(path):
                continue
            if self._files.size_bytes(path) == 0:
                self._empty.append(name)  # A crash came before its size was on the disk.
            elif self._files.size_bytes(path) != self._size:
                strangers.append(path)
            else:
                self._open(name)
        self.full_end_at_ms = max((file.end_at_ms for file in self._list if file.is_full), default=0)
        return strangers

    def _open(self, name: str) -> None:
        file = IndexFile(name, self._files.open(f"{self._folder}/{name}"), slots=self._slots, entries=self._entries)
        self._list.append(file)
        self._current = file

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    @property
    def last_update(self) -> tuple[int, int]:
        """Return store time and physical offset of the last message that was indexed."""
        return (self._current.end_at_ms, self._current.end_offset) if self._current is not None else (0, 0)

    def put_all(self, entries: Iterable[Indexed]) -> None:
        """Index messages that follow each other in the log; what is indexed already is left.

        Raises:
            StoreFullError: A new file can't be made; putting all of them again is harmless.
        """
        simple: list[tuple[int, int, int]] = []
        file = self._current
        room, end = (file.room, file.end_offset) if file is not None else (0, 0)
        for at, _, _, _, _, topic, unique_key, keys, stored_at_ms in entries:
            if unique_key and not keys and len(simple) < room and at > end:
                # Nearly every message: one key, behind all others, and room for it.
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
        """Index a message under its unique key and the words of `keys`; a message already indexed is left.

        Raises:
            StoreFullError: A new file can't be made.
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
        """Return how many of a message's keys are in the files already."""
        known = 0
        for file in reversed(self._list):
            if file.count == 1:
                continue  # Empty; what its head says is the end of the file before.
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
            # Made within one millisecond, or the clock was set back: names must sort as the files were made.
            name = f"{int(previous.name) + 1:0{INDEX_NAME_DIGITS}d}"
        if len(self._list) == 0:
            self._files.make_dirs(self._folder)
        create_file(self._files, f"{self._folder}/{name}", self._size, durable=False).close()
        self._folder_is_dirty = True
        self._open(name)
        current = self._current
        assert current is not None
        if previous is not None:
            current.start_after(previous)
        return current

    def write_headers(self) -> None:
        """Write the heads of the files that got entries; the end of a round of dispatch."""
        for file in self._touched:
            file.write_header()
        self._touched.clear()

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of messages with a key, newest first; other keys of the same hash come along."""
        found: list[int] = []
        key_hash = index_key_hash(topic, key)
        for file in reversed(self._list):
            if file.count > 1 and file.begin_at_ms <= end_ms and file.end_at_ms >= begin_ms:
                for physical_offset in file.find(key_hash, begin_ms, end_ms):
                    if physical_offset not in found:
                        found.append(physical_offset)
                    if len(found) >= count_max:
                        return found
            if file.begin_at_ms < begin_ms:
                break
        return found

    def mend(self, trusted_before: int, is_record: Callable[[int], bool]) -> int:
        """Drop the entries of records from an offset on, and everything behind an entry that makes no sense.

        Args:
            trusted_before: Entries of records before this offset were synced.
            is_record: Says whether a record lies at a physical offset.

        Returns:
            How many entries went; dispatch puts them back.
        """
        gone = 0
        kept: list[IndexFile] = []
        dropped = list(self._empty)
        is_behind_gap = False
        for file in self._list:
            # Entries follow the log without a gap, so that what comes after a gap is built again.
            is_behind_gap = is_behind_gap or any(file.name > name for name in self._empty)
            if is_behind_gap:
                gone += file.count - 1
            elif not (file.is_full and file.end_offset < trusted_before):
                # A head may be older than its file, so that only a full file can be known to be whole.
                gone += file.mend(trusted_before, is_record)
            if is_behind_gap or file.count == 1:
                file.file.close()
                dropped.append(file.name)
            else:
                kept.append(file)
            is_behind_gap = is_behind_gap or not file.is_full
        # The newest first: if another crash comes in between, what is left must not have a gap that nobody sees.
        for name in sorted(dropped, reverse=True):
            self._files.remove(f"{self._folder}/{name}")
            self._folder_is_dirty = True
        self._list = kept
        self._touched.clear()
        self._empty.clear()
        self._current = kept[-1] if kept else None
        return gone

    def expire(self, log_min_offset: int) -> list[MappedFile]:
        """Forget the files all of whose messages are gone, never the last one, and return them."""
        dropped: list[MappedFile] = []
        while len(self._list) > 1 and self._list[0].end_offset < log_min_offset:
            dropped.append(self._list.pop(0).file)
        return dropped

    def take_unflushed(self) -> tuple[list[MappedFile], list[str]]:
        """Return files and folders to sync; the caller hands them to a worker."""
        folders = [self._folder] if self._folder_is_dirty else []
        self._folder_is_dirty = False
        if folders:
            folders.append(self._folder.rpartition("/")[0])
        return [file.file for file in self._list if file.file.is_dirty], folders

    def close(self) -> None:
        """Close all files."""
        for file in self._list:
            file.file.close()
        self._list.clear()
        self._current = None
