"""A search of the index for a key, in steps: it reads the entries of the key's chain in each file, newest first.

A chain may have millions of entries (one key for all messages of a day). Each step therefore reads at most as many
entries as its caller says, and the whole search at most WALKED_MAX. The results of a step are kept, even if the step
ends because an entry is not in memory: the next step continues there.

The index knows only hashes, so messages with other keys of the same hash are found, too.

Concurrency: the store's thread only.
"""

from collections.abc import Collection
from typing import Any, Final

from gantry.storeformat.layout import INDEX_ENTRY, INDEX_ENTRY_BYTES, INDEX_SLOT_BYTES
from services.broker.store.errors import StoreReadError
from services.broker.store.files.pages import NotInMemoryError, Pages, Window
from services.broker.store.index.indexfile import IndexFile

ENTRIES_MAX: Final = 1_000
"""Limit for the entries of one step: about 1 ms."""
WALKED_MAX: Final = 1 << 20
"""Limit for the entries of one search: about a second of the loop's time, in steps. A longer search would be a scan of
the store, which a query must not become; RocketMQ has no limit here."""
# Chains of one busy key run backwards through the file, so the entries before a missing one are read with it.
_READ_BYTES: Final = 16 << 10
_SECOND_MS: Final = 1000


class KeySearch:
    """One search of the index for a key.

    Args:
        index: The files, oldest first; a file that is no longer in the collection is skipped.
        pages: The guard of the files' maps.
        key_hash: The hash of topic and key.
        count_max: The limit for found messages.
        begin_ms: The first store time of the range.
        end_ms: The last store time of the range.

    Attributes:
        found: The physical offsets, newest first; the values have no meaning.
        walked: The number of entries that were read.
        is_done: Whether there is nothing more to find.
        gave_up: Whether WALKED_MAX was reached, so older messages were not searched.
    """

    def __init__(
        self,
        index: Collection[IndexFile],
        pages: Pages,
        key_hash: int,
        count_max: int,
        *,
        begin_ms: int,
        end_ms: int,
    ) -> None:
        self._index = index
        self._pages = pages
        self._key_hash = key_hash
        self._count_max = count_max
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._files = [file for file in reversed(list(index)) if file.count > 1]
        self._number = 0
        self._before: int | None = None
        self.found: dict[int, None] = {}
        self.walked = 0
        self.is_done = count_max < 1
        self.gave_up = False

    def step(self, entries_max: int) -> None:
        """Read up to `entries_max` entries.

        Raises:
            NotInMemoryError: The next entry is not in memory, and the pages are guarded.
            StoreReadError: The disk can't read the next entry.
        """
        while entries_max > 0 and not self.is_done:
            if not self._files:
                self.is_done = True
                return
            file = self._files[0]
            if file not in self._index:
                self._next_file()  # The file has expired, and so have all files before it.
                continue
            if self._before is None and not self._enter(file):
                continue
            walked_before = self.walked
            self._walk(file, min(entries_max, WALKED_MAX - self.walked))
            entries_max -= max(self.walked - walked_before, 1)

    def _enter(self, file: IndexFile) -> bool:
        """Go to the newest entry of the key's slot in the next file; return False if the file's times don't match."""
        if file.begin_at_ms > self._end_ms or file.end_at_ms < self._begin_ms:
            self._leave_file(file)
            return False
        slot = self._pages.read(file.readable, file.slot_position(self._key_hash), INDEX_SLOT_BYTES)
        self._number, self._before = int.from_bytes(slot), file.count
        return True

    def _leave_file(self, file: IndexFile) -> None:
        self._next_file()
        if file.begin_at_ms < self._begin_ms:
            self._files.clear()  # All older files end before the range of times.

    def _next_file(self) -> None:
        self._files.pop(0)
        self._before = None

    def _walk(self, file: IndexFile, entries_max: int) -> None:
        low = high = origin = 0
        memory: Any = b""
        number, before = self._number, self._before
        begin_ms, key_hash, found, unpack = (
            self._begin_ms - _SECOND_MS,
            self._key_hash,
            self.found,
            INDEX_ENTRY.unpack_from,
        )
        assert before is not None
        for _ in range(entries_max):
            if not 0 < number < before:
                self._leave_file(file)
                return
            at = file.entry_position(number)
            if at < low or at + INDEX_ENTRY_BYTES > high:
                memory, origin, low, high = self._window(file, at)
            found_hash, physical_offset, seconds, previous = unpack(memory, at - origin)
            at_ms = file.entry_time_ms(number, seconds)
            self.walked += 1
            if found_hash == key_hash and seconds >= 0 and begin_ms < at_ms <= self._end_ms:
                found[physical_offset] = None
                self.is_done = len(found) >= self._count_max
            if seconds < 0 or at_ms <= begin_ms or self.is_done:
                self._leave_file(file)
                return
            before, number = number, previous
            self._number, self._before = number, before
        if self.walked >= WALKED_MAX:
            self.gave_up = self.is_done = True

    def _window(self, file: IndexFile, at: int) -> Window:
        """Return a window that covers an entry and, if they are in memory, the entries before it."""
        first = max(at - _READ_BYTES, 0)
        end = at + INDEX_ENTRY_BYTES
        try:
            return self._pages.window(file.readable, first, end - first)
        except NotInMemoryError as many:
            try:
                return self._pages.window(file.readable, at, INDEX_ENTRY_BYTES)
            except NotInMemoryError:
                raise many from None
        except StoreReadError:
            return self._pages.window(file.readable, at, INDEX_ENTRY_BYTES)
