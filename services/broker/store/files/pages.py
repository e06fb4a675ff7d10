"""Pages: tells which bytes of the store's files can be read without waiting for the disk.

The event loop's thread reads through memory maps. If a page is not in the page cache, a page fault stops the whole
loop. An unreadable page ends the process with SIGBUS. The loop therefore runs each reading operation guarded
(`attempt`): every range is checked before it is read. If bytes are missing, the operation ends with NotInMemoryError,
which names all missing ranges that the operation can know. Another thread then reads these ranges (coldreads.py). The
operation runs again with the bytes that were read (`ReadBlocks`), which take precedence over the files. An eviction in
between therefore does no harm.

A check costs about 2 µs, as much as two records. Three facts make checks rare. Bytes that were written within the last
100 ms are in memory (LogReader.window). Checked pages stay trusted until the next `tick`. One check covers a chunk. The
kernel may evict a page within those 100 ms; then one read waits for the disk.

Outside `attempt` nothing is checked, and reads wait for the disk. Recovery, dispatch and tools read this way.

Concurrency: the store's thread only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from services.broker.store.errors import StoreReadError
from services.broker.store.files.mappedfile import MappedFile, UnmappedFile

R = TypeVar("R")

CHUNK_BYTES: Final = 1 << 20
"""The range that one check covers; it takes 2 µs if its pages are mapped, 15 µs if none of them is."""
# Limit for the trusted runs of one file; above it all are forgotten. A file of 1 GiB has 1,024 chunks.
RUNS_MAX: Final = 4_096
# Limit for the blocks before a position that are checked for one that covers the range.
_OVERLAPPING_MAX: Final = 8


ReadableFile = MappedFile | UnmappedFile


class MissingRange(NamedTuple):
    """A range that is not in memory."""

    file: ReadableFile
    at: int
    """The position in the file's sequence, like all positions in this module: the first byte is at `file.start`."""
    size: int


# Bytes that may be read: a map or bytes (slices of both are bytes), the position of the first byte, the first position
# that may be read, and the position after the last one. A plain tuple, because each get makes some.
Window = tuple[Any, int, int, int]


class NotInMemoryError(Exception):
    """A guarded operation needs bytes that are not in memory; nothing was changed. This is not a store error."""

    def __init__(self, missing: list[MissingRange]) -> None:
        super().__init__(f"{sum(part.size for part in missing)} bytes in {len(missing)} ranges are not in memory")
        self.missing = missing


class ReadBlocks:
    """The bytes that were read for one operation.

    Attributes:
        size_bytes: The total size of all blocks.
    """

    __slots__ = ("_by_file", "size_bytes")

    def __init__(self) -> None:
        self._by_file: dict[ReadableFile, tuple[list[int], list[tuple[int, bytes | None]]]] = {}
        self.size_bytes = 0

    def add(self, part: MissingRange, data: bytes | None) -> None:
        """Add a range; `data` is None if the disk can't read the range."""
        starts, blocks = self._by_file.setdefault(part.file, ([], []))
        index = bisect_right(starts, part.at)
        starts.insert(index, part.at)
        blocks.insert(index, (part.at + part.size, data))
        self.size_bytes += part.size

    def find(self, file: ReadableFile, at: int, end: int) -> tuple[int, int, bytes | None] | None:
        """Return start, end and bytes of a block that covers a range, or None.

        An unreadable block covers only its own range, exactly: a part of it may be readable and is worth a new read.
        """
        starts, blocks = self._by_file.get(file, ((), ()))
        index = bisect_right(starts, at)
        for number in range(index - 1, max(index - 1 - _OVERLAPPING_MAX, -1), -1):
            block_end, data = blocks[number]
            start = starts[number]
            if end <= block_end and (data is not None or (start, block_end) == (at, end)):
                return start, block_end, data
        return None


_NO_BLOCKS: Final = ReadBlocks()


class CachedRanges:
    """Runs of pages of one file that were found in memory: disjoint, in order, merged when they touch."""

    __slots__ = ("_highs", "_lows")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._lows)

    def find(self, at: int) -> tuple[int, int]:
        """Return the run that contains a position, or an empty run."""
        index = bisect_right(self._lows, at) - 1
        return (self._lows[index], self._highs[index]) if index >= 0 and at < self._highs[index] else (0, 0)

    def add(self, low: int, high: int) -> tuple[int, int]:
        """Add a run; return the run that now contains it."""
        lows, highs = self._lows, self._highs
        first = bisect_left(highs, low)
        last = bisect_right(lows, high)
        if first < last:
            low, high = min(low, lows[first]), max(high, highs[last - 1])
        lows[first:last] = [low]
        highs[first:last] = [high]
        return low, high


class Pages:
    """The guard of one store's maps.

    Attributes:
        is_guarded: Whether an attempt is running.
        misses: The number of ranges that were found missing so far.
    """

    __slots__ = ("_blocks", "_missing", "_runs", "is_guarded", "misses")

    def __init__(self) -> None:
        self.is_guarded = False
        self.misses = 0
        self._blocks = _NO_BLOCKS
        self._missing: list[MissingRange] = []
        self._runs: dict[MappedFile, CachedRanges] = {}

    def attempt(self, operation: Callable[[], R], blocks: ReadBlocks = _NO_BLOCKS) -> R:
        """Run an operation that reads only bytes that are in memory, or in `blocks`.

        Raises:
            NotInMemoryError: Bytes were missing; the operation must not have changed anything before.
        """
        assert not self.is_guarded, "attempts do not nest"
        self.is_guarded = True
        self._blocks = blocks
        try:
            return operation()
        finally:
            self.is_guarded = False
            self._blocks = _NO_BLOCKS
            if self._missing:
                missing, self._missing = self._missing, []
                # The operation's result or error is void, because the operation could not see all bytes.
                raise NotInMemoryError(missing)

    def note(self, error: NotInMemoryError) -> None:
        """Let the operation continue without the bytes, to find other missing ones; the attempt fails at its end."""
        self._missing += error.missing

    def tick(self) -> None:
        """Stop trusting all runs of pages; called every 100 ms."""
        self._runs.clear()

    def window(self, file: ReadableFile, at: int, size: int) -> Window:
        """Return a window that covers a range, or the part of the range before the file's end.

        Raises:
            NotInMemoryError: A byte of the range is not in memory.
            StoreReadError: The disk can't read the range.
        """
        start = file.start
        if not self.is_guarded and isinstance(file, MappedFile):
            return file.memory, start, start, file.end
        end = min(at + size, file.end)
        if self._blocks is not _NO_BLOCKS:
            block = self._blocks.find(file, at, end)
            if block is not None:
                block_start, block_end, data = block
                if data is None:
                    raise StoreReadError(file.path, at - start, size)
                return data, block_start, block_start, block_end
        if not isinstance(file, MappedFile):
            return self._read_unmapped(file, at, end), at, at, end
        runs = self._runs.get(file)
        low, high = runs.find(at) if runs is not None else (0, 0)
        if end > high:
            low, high = self._find_resident(file, at, end)
        return file.memory, start, low, high

    def read(self, file: ReadableFile, at: int, size: int) -> bytes:
        """Return a copy of a range, which must lie within the file; raises as `window` does."""
        memory, origin, _, _ = self.window(file, at, size)
        return bytes(memory[at - origin : at - origin + size])

    def _read_unmapped(self, file: UnmappedFile, at: int, end: int) -> bytes:
        if not self.is_guarded:
            return file.read(at - file.start, end - at)
        try:
            data = file.file.read_now(at - file.start, end - at)
        except OSError:
            data = None  # The reader's thread meets the error, too; it can tell whether the range is unreadable.
        if data is None:
            self.misses += 1
            raise NotInMemoryError([MissingRange(file, at, end - at)])
        return data

    def _find_resident(self, file: MappedFile, at: int, end: int) -> tuple[int, int]:
        """Check a range, and return the run that covers it; the run is trusted until the next `tick`."""
        start, ask = file.start, file.file.cached_end
        if start + ask(at - start, end - start) < end:
            self.misses += 1
            raise NotInMemoryError([MissingRange(file, at, end - at)])
        # The bytes next to the range are usually needed next, by this reader or another one.
        low = max(at - at % CHUNK_BYTES, start)
        limit = min(end - end % CHUNK_BYTES + CHUNK_BYTES, file.end)
        high = start + ask(low - start, limit - start)
        if high < end:
            low, high = at, end
        runs = self._runs.setdefault(file, CachedRanges())
        if len(runs) >= RUNS_MAX:
            runs = self._runs[file] = CachedRanges()
        return runs.add(low, high)
