"""Files of equal size in one folder, each named by the offset of its first byte: one long sequence of bytes.

`FileSequence` is the common part of the CommitLog's files (`MappedFileQueue`) and a ConsumeQueue's files
(`QueueFiles`). A file that is missing in the middle is a hole. Nothing in this module removes a file there. For a hole
`find` returns None, and readers skip it.

Durability: `add_file` with `durable` makes the new file's size and name durable before the first write to the file.
Otherwise an acknowledged record would be lost if its file's name were lost. Derived files do not need this: their
folders are synced before a checkpoint covers them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, Generic, Protocol, TypeVar

from gantry.runtime.files import File, FileSystem
from gantry.storeformat.layout import file_name, parse_file_name
from services.broker.store.errors import CorruptStoreError, MisplacedError, StoreFullError
from services.broker.store.files.mappedfile import ClosableFile, MappedFile, remove_file
from services.broker.store.files.unfinished import TEMPORARY_SUFFIX, clear_unfinished, find_unfinished

_OFFSET_MAX: Final = (1 << 63) - 1


class SequenceFile(ClosableFile, Protocol):
    """One file of the sequence."""

    start: int
    end: int

    def write(self, at: int, data: bytes) -> None:
        """Write at a position in this file."""
        ...


F = TypeVar("F", bound=SequenceFile)


class FileSequence(Generic[F]):
    """The files of a folder in offset order.

    Attributes:
        folder: The path of the folder.
        file_size: The size of each file in bytes.
        was_repaired: Whether a file was repaired because of its size or unreadable bytes, so units may be missing.
    """

    __slots__ = ("_by_start", "_files", "_ordered", "file_size", "folder", "folder_is_dirty", "was_repaired")

    def __init__(self, files: FileSystem, folder: str, file_size: int) -> None:
        self._files = files
        self.folder = folder
        self.file_size = file_size
        self.was_repaired = False
        self.folder_is_dirty = False
        self._by_start: dict[int, F] = {}
        self._ordered: list[F] = []

    def _open(self, start: int) -> F:
        """Return the existing file that starts at an offset."""
        raise NotImplementedError

    def load(self, *, is_derived: bool = False, on_repair: Callable[[], None] | None = None) -> list[int]:
        """Open the files in the folder, after repairing files that a crash left unfinished (unfinished.py).

        Args:
            is_derived: Whether the files can be rebuilt, and are not made durable one by one. An empty file may then
                stand before others. It keeps its name, which says that data is missing here, until `add_file`.
            on_repair: Called before files of another size are changed; may raise to prevent it.

        Returns:
            The offsets at which such empty files start.

        Raises:
            CorruptStoreError: A file has a size other than the setting. It is not changed.
            MisplacedError: Something has the name of a file and can't be a file of the sequence.
        """
        listed = self._files.list_files(self.folder)
        self._refuse_odd_names({name for name, _ in listed})
        unfinished = find_unfinished(listed, self.file_size, is_derived=is_derived)
        if unfinished:
            if on_repair is not None:
                on_repair()
            paths = [f"{self.folder}/{name}" for name in unfinished]
            self.was_repaired = clear_unfinished(self._files, paths, self.file_size, is_derived=is_derived)
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
        """Reject a folder with the name of a file, and a file that begins after the greatest possible offset."""
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
        """Return the oldest file, or None."""
        return self._ordered[0] if self._ordered else None

    @property
    def last(self) -> F | None:
        """Return the newest file, or None."""
        return self._ordered[-1] if self._ordered else None

    def find(self, offset: int) -> F | None:
        """Return the file that contains a byte, or None."""
        return self._by_start.get(offset - offset % self.file_size)

    def start_of(self, offset: int) -> int:
        """Return the start of the file that contains, or would contain, a byte."""
        return offset - offset % self.file_size

    def following(self, offset: int) -> F | None:
        """Return the first file that starts at or after an offset, or None."""
        return next((file for file in self._ordered if file.start >= offset), None)

    def count_before(self, offset: int) -> int:
        """Return the number of files that start before an offset."""
        last = self.last
        if last is None or last.start < offset:
            return len(self)
        return bisect_left(self._ordered, offset, key=lambda file: file.start)

    def behind_holes(self) -> list[F]:
        """Return the files that directly follow a hole."""
        first, last = self.first, self.last
        if first is None or last is None or last.start - first.start == (len(self) - 1) * self.file_size:
            return []
        return [after for before, after in pairwise(self) if after.start > before.end]

    def path_of(self, start: int) -> str:
        """Return the path of the file that starts at an offset."""
        return f"{self.folder}/{file_name(start)}"

    def write(self, offset: int, data: bytes) -> None:
        """Write to existing files, across their borders.

        Raises:
            KeyError: A file is missing in the range.
        """
        at, end = 0, len(data)
        while at < end:
            file = self._by_start[self.start_of(offset + at)]
            position = offset + at - file.start
            count = min(end - at, self.file_size - position)
            file.write(position, data[at : at + count] if count != end else data)
            at += count

    def drop_before(self, offset: int, *, count_max: int) -> list[F]:
        """Drop and return the oldest files that end at or before an offset, but never the last file."""
        dropped: list[F] = []
        while len(self._ordered) > 1 and len(dropped) < count_max and self._ordered[0].end <= offset:
            file = self._ordered.pop(0)
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def drop_from(self, offset: int) -> list[F]:
        """Drop and return the files that start at or after an offset, newest first."""
        dropped: list[F] = []
        while self._ordered and self._ordered[-1].start >= offset:
            file = self._ordered.pop()
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def clear(self) -> None:
        """Drop all files."""
        self._ordered.clear()
        self._by_start.clear()


class MappedFileQueue(FileSequence[MappedFile]):
    """Files that stay mapped while they are in the sequence. Files that are not written hold no descriptor."""

    __slots__ = ()

    def _open(self, start: int) -> MappedFile:
        if self.last is not None:
            # Only the newest file is written, and a store may have more files than its process may have descriptors.
            self.last.file.drop_descriptor()
        return MappedFile(start, self._files.open(self.path_of(start)))

    def add_file(self, start: int, *, durable: bool = False, prepared: Any = None) -> MappedFile:
        """Create the file that starts at an offset: the next file, or a missing one.

        Args:
            start: The file's start, a multiple of the file size.
            durable: Whether the file's size and name are on the disk when this returns.
            prepared: A file that `create_file` created ahead of time.

        Raises:
            StoreFullError: The file could not be created; nothing has changed.
        """
        assert start % self.file_size == 0, f"a file of {self.folder} can't start at {start}"
        file = prepared or create_file(self._files, self.path_of(start), self.file_size, durable=durable)
        mapped = MappedFile(start, file)
        self._add(mapped)
        self.folder_is_dirty = self.folder_is_dirty or not durable
        return mapped

    def close(self) -> None:
        """Close all files; a file that is still in use stays mapped."""
        for file in self:
            file.close()
        self.clear()


def make_file(files: FileSystem, path: str, size_bytes: int, *, sparse: bool, durable: bool = False) -> File:
    """Create a file. It replaces a file of an earlier try, so the name exists all the time.

    A durable file gets its name when it is complete. A power cut leaves no trace of it, or a temporary file.

    Raises:
        OSError: The file system reported an error.
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
    """Create a file with all its blocks, and map it.

    Raises:
        StoreFullError: The file system reported an error.
    """
    file: File | None = None
    try:
        file = make_file(files, path, size_bytes, sparse=False, durable=durable)
        # The file is mapped here, so a disk that rejects the map rejects the file, and the file's user finds it mapped.
        file.map()
        if durable:
            files.sync_dir(path.rpartition("/")[0])
    except OSError as error:
        if file is not None:
            file.close()
        raise StoreFullError(path, error) from error
    return file
