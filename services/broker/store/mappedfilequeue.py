"""Files of equal size in one folder, each named by the offset of its first byte: one long sequence of bytes.

A file that is missing in the middle (nothing here ever removes one there) is a hole: `find` answers None for it, and
readers go over it.

Durability: `add_file` with `durable` makes the new file's size and name durable before anything can be written to
it, since an acknowledged record in a file whose name is lost would be lost too. Derived files do without: their
folders are synced before a checkpoint speaks of them.
"""

from bisect import insort
from collections.abc import Iterator
from typing import Any

from gantry.runtime.files import File, FileSystem
from gantry.storeformat.layout import file_name, parse_file_name
from services.broker.store.errors import CorruptStoreError, StoreFullError
from services.broker.store.mappedfile import MappedFile, remove_file


class MappedFileQueue:
    """The files of a folder in offset order.

    Attributes:
        folder: Where they lie.
        file_size: Of each of them.
    """

    __slots__ = ("_by_start", "_files", "_ordered", "file_size", "folder", "folder_is_dirty")

    def __init__(self, files: FileSystem, folder: str, file_size: int) -> None:
        self._files = files
        self.folder = folder
        self.file_size = file_size
        self.folder_is_dirty = False
        self._by_start: dict[int, MappedFile] = {}
        self._ordered: list[MappedFile] = []

    def load(self, *, is_derived: bool = False) -> list[int]:
        """Open what is in the folder; last files without a byte are what a crash leaves of new ones, and go.

        Args:
            is_derived: The files can be built again, and are not made durable one by one: a file without a byte may
                stand before others. It keeps its name, which says that something is missing here, until `add_file`.

        Returns:
            Where such files should start.

        Raises:
            CorruptStoreError: A file has another size than the settings say. Nothing was changed.
        """
        sizes: dict[int, int] = {}
        for name in self._files.list_dir(self.folder):
            start = parse_file_name(name)
            if start is not None and not self._files.is_dir(f"{self.folder}/{name}"):
                sizes[start] = self._files.size_bytes(f"{self.folder}/{name}")
        while sizes and sizes[max(sizes)] == 0:
            remove_file(self._files, self.path_of(max(sizes)))
            self.folder_is_dirty = True
            del sizes[max(sizes)]
        for start, size in sizes.items():
            is_empty = size == 0 and is_derived
            if not is_empty and (size != self.file_size or start % self.file_size):
                raise CorruptStoreError(
                    self.path_of(start),
                    f"has {size} bytes and starts at {start}; files of {self.file_size} bytes are expected",
                )
        for start in sorted(start for start, size in sizes.items() if size):
            self._add(MappedFile(start, self._files.open(self.path_of(start))))
        return sorted(start for start, size in sizes.items() if size == 0)

    def _add(self, file: MappedFile) -> None:
        assert file.start not in self._by_start, f"{file.path} is there already"
        insort(self._ordered, file, key=lambda other: other.start)
        self._by_start[file.start] = file

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def first(self) -> MappedFile | None:
        """Return the oldest file."""
        return self._ordered[0] if self._ordered else None

    @property
    def last(self) -> MappedFile | None:
        """Return the newest file."""
        return self._ordered[-1] if self._ordered else None

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds a byte, or None."""
        return self._by_start.get(offset - offset % self.file_size)

    def start_of(self, offset: int) -> int:
        """Return where the file that holds, or would hold, a byte starts."""
        return offset - offset % self.file_size

    def following(self, offset: int) -> MappedFile | None:
        """Return the first file that starts at or after an offset."""
        return next((file for file in self._ordered if file.start >= offset), None)

    def path_of(self, start: int) -> str:
        """Return the path of the file that starts at an offset."""
        return f"{self.folder}/{file_name(start)}"

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

    def drop_before(self, offset: int, *, count_max: int) -> list[MappedFile]:
        """Forget the oldest files that end at or before an offset, never the last one; return them."""
        dropped: list[MappedFile] = []
        while len(self._ordered) > 1 and len(dropped) < count_max and self._ordered[0].end <= offset:
            file = self._ordered.pop(0)
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def drop_from(self, offset: int) -> list[MappedFile]:
        """Forget the files that start at or after an offset, newest first; return them in that order."""
        dropped: list[MappedFile] = []
        while self._ordered and self._ordered[-1].start >= offset:
            file = self._ordered.pop()
            del self._by_start[file.start]
            dropped.append(file)
        return dropped

    def dirty_files(self) -> list[MappedFile]:
        """Return what was written since it was last synced."""
        return [file for file in self._ordered if file.is_dirty]

    def close(self) -> None:
        """Close all files; whoever still looks into one keeps it mapped."""
        for file in self._ordered:
            file.close()
        self._ordered.clear()
        self._by_start.clear()


def create_file(files: FileSystem, path: str, size_bytes: int, *, durable: bool) -> File:
    """Create a file; what an earlier try left at the path is replaced, so that the name is there all the time.

    Raises:
        StoreFullError: The file system refused.
    """
    file: File | None = None
    try:
        if files.exists(path):
            temporary = f"{path}.new"
            if files.exists(temporary):
                files.remove(temporary)
            files.create(temporary, size_bytes).close()
            files.replace(temporary, path)
            file = files.open(path)
        else:
            file = files.create(path, size_bytes)
        # Here, so that a disk which refuses the map refuses the file, and whoever takes it finds it mapped.
        file.map()
        if durable:
            file.sync()
            files.sync_dir(path.rpartition("/")[0])
    except OSError as error:
        if file is not None:
            file.close()
        raise StoreFullError(path, error) from error
    return file
