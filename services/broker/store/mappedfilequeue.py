"""Files of equal size in one folder, each named by the offset of its first byte: one long sequence of bytes.

`FileSequence` is what the CommitLog's files (`MappedFileQueue`) and those of a ConsumeQueue (`QueueFiles`) have in
common. A file that is missing in the middle (nothing here ever removes one there) is a hole: `find` answers None for
it, and readers go over it.

Durability: `add_file` with `durable` makes the new file's size and name durable before anything can be written to
it, since an acknowledged record in a file whose name is lost would be lost too. Derived files do without: their
folders are synced before a checkpoint speaks of them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, Generic, Protocol, TypeVar

from gantry.runtime.files import File, FileSystem
from gantry.storeformat.layout import file_name, parse_file_name
from services.broker.store.errors import CorruptStoreError, MisplacedError, StoreFullError
from services.broker.store.mappedfile import ClosableFile, MappedFile, remove_file
from services.broker.store.unfinished import TEMPORARY_SUFFIX, clear_unfinished, find_unfinished

_OFFSET_MAX: Final = (1 << 63) - 1


class SequenceFile(ClosableFile, Protocol):
    """One of the files."""

    start: int
    end: int

    def write(self, at: int, data: bytes) -> None:
        """Write at a position in this file."""
        ...


F = TypeVar("F", bound=SequenceFile)


class FileSequence(Generic[F]):
    """The files of a folder in offset order.

    Attributes:
        folder: Where they lie.
        file_size: Of each of them.
        was_mended: A file had another size when it was opened, so that units may be missing.
    """

    __slots__ = ("_by_start", "_files", "_ordered", "file_size", "folder", "folder_is_dirty", "was_mended")

    def __init__(self, files: FileSystem, folder: str, file_size: int) -> None:
        self._files = files
        self.folder = folder
        self.file_size = file_size
        self.was_mended = False
        self.folder_is_dirty = False
        self._by_start: dict[int, F] = {}
        self._ordered: list[F] = []

    def _open(self, start: int) -> F:
        """Return the file that starts at an offset and is there."""
        raise NotImplementedError

    def load(self, *, is_derived: bool = False, on_mend: Callable[[], None] | None = None) -> list[int]:
        """Open what is in the folder, after putting right what a crash left unfinished (unfinished.py).

        Args:
            is_derived: The files can be built again, and are not made durable one by one: a file without a byte may
                stand before others. It keeps its name, which says that something is missing here, until `add_file`.
            on_mend: Called before files of another size are changed; may refuse that by an error.

        Returns:
            Where such files should start.

        Raises:
            CorruptStoreError: A file has another size than the settings say. It is left as it is.
            MisplacedError: Something has the name of a file and can't be one.
        """
        listed = self._files.list_files(self.folder)
        self._refuse_odd_names({name for name, _ in listed})
        unfinished = find_unfinished(listed, self.file_size, is_derived=is_derived)
        if unfinished:
            if on_mend is not None:
                on_mend()
            paths = [f"{self.folder}/{name}" for name in unfinished]
            self.was_mended = clear_unfinished(self._files, paths, self.file_size, is_derived=is_derived)
            listed = self._files.list_files(self.folder)
        sizes: dict[int, int] = {}
        for name, size in listed:
            start = parse_file_name(name)
            if start is not None:
                sizes[start] = size
        while sizes and sizes[max(sizes)] == 0:
            remove_file(self._files, self.path_of(max(sizes)))
            self.folder_is_dirty = True
            del sizes[max(sizes)]
        for start, size in sizes.items():
            is_empty = size == 0 and is_derived
            if not is_empty and (size != self.file_size or start % self.file_size):
                raise CorruptStoreError(
                    self.path_of(start),
                    f"has {size} bytes and starts at {start}; files of {self.file_size} bytes are expected "
                    "(mapped_file_size_commit_log). If that is the right size, the file was cut: put a whole copy in its "
                    f"place, or give up what is missing with `truncate -s {self.file_size}` on it",
                )
        for start in sorted(start for start, size in sizes.items() if size):
            self._add(self._open(start))
        return sorted(start for start, size in sizes.items() if size == 0)

    def _refuse_odd_names(self, listed: set[str]) -> None:
        """Refuse a folder in the place of a file, and a file that begins behind every offset there can be."""
        for name in self._files.list_dir(self.folder):
            start = parse_file_name(name)
            if start is not None and name not in listed:
                raise MisplacedError(f"{self.folder}/{name}", "is a folder and has the name of a file")
            if start is not None and start > _OFFSET_MAX:
                raise MisplacedError(f"{self.folder}/{name}", "its name is greater than any offset")

    def _add(self, file: F) -> None:
        assert file.start not in self._by_start, f"{file.path} is there already"
        insort(self._ordered, file, key=lambda other: other.start)
        self._by_start[file.start] = file

    def __iter__(self) -> Iterator[F]:
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def first(self) -> F | None:
        """Return the oldest file."""
        return self._ordered[0] if self._ordered else None

    @property
    def last(self) -> F | None:
        """Return the newest file."""
        return self._ordered[-1] if self._ordered else None

    def find(self, offset: int) -> F | None:
        """Return the file that holds a byte, or None."""
        return self._by_start.get(offset - offset % self.file_size)

    def start_of(self, offset: int) -> int:
        """Return where the file that holds, or would hold, a byte starts."""
        return offset - offset % self.file_size

    def following(self, offset: int) -> F | None:
        """Return the first file that starts at or after an offset."""
        return next((file for file in self._ordered if file.start >= offset), None)

    def count_before(self, offset: int) -> int:
        """Return how many files start before an offset."""
        last = self.last
        if last is None or last.start < offset:
            return len(self)
        return bisect_left(self._ordered, offset, key=lambda file: file.start)

    def behind_holes(self) -> list[F]:
        """Return the files in front of which one is missing between others."""
        first, last = self.first, self.last
        if first is None or last is None or last.start - first.start == (len(self) - 1) * self.file_size:
            return []
        return [after for before, after in pairwise(self) if after.start > before.end]

    def path_of(self, start: int) -> str:
        """Return the path of the file that starts at an offset."""
        return f"{self.folder}/{file_name(start)}"

    def write(self, offset: int, data: bytes) -> None:
        """Write into files that exist, across their borders.

        Raises:
            KeyError: A file is missing there.
        """
        at, end = 0, len(data)
        while at < end:
            file = self._by_start[self.start_of(offset + at)]
            position = offset + at - file.start
            count = min(end - at, self.file_size - position)
            file.write(position, data[at : at + count] if count != end else data)
            at += count

    def drop_before(self, offset: int, *, count_max: int) -> list[F]:
        """Forget the oldest files that end at or before an offset, never the last one; return them."""
        dropped: list[F] = []
        while len(self._ordered) > 1 and len(dropped) < count_max and self._ordered[0].end <= offset:
            file = self._ordered.pop(0)
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def drop_from(self, offset: int) -> list[F]:
        """Forget the files that start at or after an offset, newest first; return them in that order."""
        dropped: list[F] = []
        while self._ordered and self._ordered[-1].start >= offset:
            file = self._ordered.pop()
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def clear(self) -> None:
        """Forget all files."""
        self._ordered.clear()
        self._by_start.clear()


class MappedFileQueue(FileSequence[MappedFile]):
    """Files that are mapped as long as they are here. Those that nobody writes hold no descriptor."""

    __slots__ = ()

    def _open(self, start: int) -> MappedFile:
        if self.last is not None:
            # Only the newest file is written, and a store may have more files than its process may have descriptors.
            self.last.file.drop_descriptor()
        return MappedFile(start, self._files.open(self.path_of(start)))

    def add_file(self, start: int, *, durable: bool = False, prepared: Any = None) -> MappedFile:
        """Make the file that starts at an offset: the next one, or one that is missing.

        Args:
            start: A multiple of the file size.
            durable: Its size and name are on the disk when this returns.
            prepared: A file that `create_file` made ahead of time.

        Raises:
            StoreFullError: It could not be made; nothing has changed.
        """
        assert start % self.file_size == 0, f"a file of {self.folder} can't start at {start}"
        file = prepared or create_file(self._files, self.path_of(start), self.file_size, durable=durable)
        mapped = MappedFile(start, file)
        self._add(mapped)
        self.folder_is_dirty = self.folder_is_dirty or not durable
        return mapped

    def close(self) -> None:
        """Close all files; whoever still looks into one keeps it mapped."""
        for file in self:
            file.close()
        self.clear()


def make_file(files: FileSystem, path: str, size_bytes: int, *, sparse: bool, durable: bool = False) -> File:
    """Create a file; what an earlier try left at the path is replaced, so that the name is there all the time.

    A durable file gets its name when it is complete: a power cut leaves nothing of it, or a temporary file.

    Raises:
        OSError: The file system refused.
    """
    if not durable and not files.exists(path):
        return files.create(path, size_bytes, sparse=sparse)
    temporary = f"{path}{TEMPORARY_SUFFIX}"
    if files.exists(temporary):
        files.remove(temporary)
    file = files.create(temporary, size_bytes, sparse=sparse)
    try:
        if durable:
            file.sync()
    finally:
        file.close()
    files.replace(temporary, path)
    return files.open(path)


def create_file(files: FileSystem, path: str, size_bytes: int, *, durable: bool) -> File:
    """Make a file with all its blocks, and map it.

    Raises:
        StoreFullError: The file system refused.
    """
    file: File | None = None
    try:
        file = make_file(files, path, size_bytes, sparse=False, durable=durable)
        # Here, so that a disk which refuses the map refuses the file, and whoever takes it finds it mapped.
        file.map()
        if durable:
            files.sync_dir(path.rpartition("/")[0])
    except OSError as error:
        if file is not None:
            file.close()
        raise StoreFullError(path, error) from error
    return file
