"""A file system in memory whose power can be cut: it knows what was synced and what was only written.

What a cut leaves (`crash_clone`) follows a real disk, made nastier by small pages so that small tests tear:

- Bytes: every page of a file holds what some number of its writes since the last sync left behind, from none to
  all, and may be torn between two such states at a sector's border. Pages are chosen independently of each other,
  so later ones may be there and earlier ones not.
- Sizes: a created file that was never synced may be there with no bytes at all.
- Names: of the names created, renamed or removed in a folder since it was last synced, a prefix happened. Other
  folders are independent.
- Small files (`write`) that were not durable hold the old content, the new one, or the beginning of the new one.

`on_operation` is called before everything that changes anything; tests cut the power there.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Any

from gantry.runtime.clock import Clock
from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import DiskUsage
from gantry.runtime.rng import Rng

PAGE_BYTES = 256
SECTOR_BYTES = 64
CAPACITY_BYTES = 1 << 40

OnOperation = Callable[[str, str], None]


class MemMemory(bytearray):
    """A map: as `mmap.mmap`, its slices are bytes and slice assignment may not change its length."""

    node: "_Node"
    writable: bool

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return bytes(value) if isinstance(key, slice) else value

    def __setitem__(self, key: Any, value: Any) -> None:
        start, stop, _ = key.indices(len(self))
        if not self.writable:
            raise TypeError("mmap can't modify a readonly memory map.")
        if len(value) != stop - start:
            raise IndexError("mmap slice assignment is wrong size")
        self.node.note_write(start, bytes(value))
        super().__setitem__(key, value)


class _Node:
    """A file's content, its state at the last sync and what was written since."""

    def __init__(self, files: "MemFileSystem", path: str, data: bytes, *, is_synced: bool) -> None:
        self.files = files
        self.path = path
        self.synced = data if is_synced else None
        self.writes: list[tuple[int, bytes]] = []
        self.modified_ms = files.clock.now_ms()
        self.memory = self._map(data)

    def _map(self, data: bytes) -> MemMemory:
        memory = MemMemory(data)
        memory.node = self
        memory.writable = True
        return memory

    def note_write(self, start: int, data: bytes) -> None:
        self.files.operate("map_write", self.path)
        self.modified_ms = self.files.clock.now_ms()
        self.writes.append((start, data))

    def replace_all(self, data: bytes) -> None:
        self.modified_ms = self.files.clock.now_ms()
        self.memory = self._map(data)

    def sync(self) -> None:
        self.synced = bytes(self.memory)
        self.writes.clear()

    def after_crash(self, rng: Rng) -> bytes:
        size = len(self.memory)
        if self.synced is None:
            if rng.chance(0.3):
                return b""
            self.synced = bytes(size)
        if len(self.synced) != size:
            return self._small_file_after_crash(rng)
        content = bytearray(self.synced)
        pages: dict[int, list[tuple[int, bytes]]] = {}
        for start, data in self.writes:
            for page in range(start // PAGE_BYTES, (start + max(len(data), 1) - 1) // PAGE_BYTES + 1):
                pages.setdefault(page, []).append((start, data))
        mood = rng.below(4)  # Nothing got out, everything did, or each page by itself (twice as likely).
        for page, writes in pages.items():
            first, second = (
                (0, 0) if mood == 0 else (len(writes), len(writes)) if mood == 1 else self._choose(rng, len(writes))
            )
            before = page * PAGE_BYTES
            border = before + SECTOR_BYTES * rng.below(PAGE_BYTES // SECTOR_BYTES + 1)
            _apply(content, writes[:first], before, min(border, size))
            _apply(content, writes[:second], min(border, size), min(before + PAGE_BYTES, size))
        return bytes(content)

    @staticmethod
    def _choose(rng: Rng, count: int) -> tuple[int, int]:
        first = rng.choice((0, count, rng.below(count + 1)))
        return first, first if rng.chance(0.7) else rng.below(count + 1)

    def _small_file_after_crash(self, rng: Rng) -> bytes:
        assert self.synced is not None
        new = bytes(self.memory)
        return rng.choice((self.synced, b"", new, new[: rng.below(len(new) + 1)]))


def _apply(content: bytearray, writes: list[tuple[int, bytes]], start: int, stop: int) -> None:
    for at, data in writes:
        low, high = max(at, start), min(at + len(data), stop)
        if low < high:
            content[low:high] = data[low - at : high - at]


class _Folder:
    """Names, and what happened to them since the folder was last synced: (name, node or None) groups."""

    def __init__(self) -> None:
        self.names: dict[str, _Node | _Folder] = {}
        self.synced: dict[str, _Node | _Folder] = {}
        self.changes: list[list[tuple[str, _Node | _Folder | None]]] = []

    def change(self, *changes: tuple[str, "_Node | _Folder | None"]) -> None:
        for name, node in changes:
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node
        self.changes.append(list(changes))

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.changes.clear()

    def after_crash(self, rng: Rng) -> dict[str, "_Node | _Folder"]:
        names = dict(self.synced)
        happened = rng.choice((0, len(self.changes), rng.below(len(self.changes) + 1)))
        for group in self.changes[:happened]:
            for name, node in group:
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        return names


class _MemFile:
    def __init__(self, node: _Node, path: str, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = len(node.memory)
        self._node: _Node | None = node
        self._writable = writable
        self._read_only: MemMemory | None = None

    def map(self) -> Any:
        assert self._node is not None, "closed"
        if self._writable:
            return self._node.memory
        if self._read_only is None:
            self._read_only = MemMemory(self._node.memory)
            self._read_only.writable = False
        return self._read_only

    def sync(self) -> None:
        assert self._node is not None, "closed"
        self._node.files.operate("sync", self.path)
        self._node.sync()

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        memory = self.map()
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)

    def data_end(self, start: int) -> int:
        assert self._node is not None, "closed"
        return max(start, len(bytes(self._node.memory).rstrip(b"\0")))

    def close(self) -> None:
        if self._node is None:
            return
        memory = self.map()
        memory.append(0)  # Raises BufferError while a memoryview is held, as closing an mmap does.
        memory.pop()
        self._node = None


class _MemLock:
    def __init__(self, files: "MemFileSystem", path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locked.discard(self._path)


class MemFileSystem:
    """The FileSystem of the tests. Paths are split at `/`; the root always exists."""

    def __init__(
        self, clock: Clock, *, on_operation: OnOperation | None = None, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        self.clock = clock
        self.on_operation = on_operation
        self.capacity_bytes = capacity_bytes
        self.foreign_bytes = 0
        """What others have put on the same disk."""
        self.operations = 0
        self.locked: set[str] = set()
        self._root = _Folder()

    def operate(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def crash_clone(self, rng: Rng) -> "MemFileSystem":
        """Return what a power cut at this moment leaves; nothing is locked there and nothing unsynced is left."""
        clone = MemFileSystem(self.clock, capacity_bytes=self.capacity_bytes)
        _clone_folder(self._root, clone._root, clone, rng)
        return clone

    def create(self, path: str, size_bytes: int) -> Any:
        folder, name = self._parent(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.operate("create", path)
        if self.used_bytes() + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        node = _Node(self, path, bytes(size_bytes), is_synced=False)
        folder.change((name, node))
        return _MemFile(node, path, writable=True)

    def open(self, path: str, *, writable: bool = True) -> Any:
        return _MemFile(self._file(path), path, writable=writable)

    def read(self, path: str) -> bytes:
        return bytes(self._file(path).memory)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        folder, name = self._parent(path)
        self.operate("write", path)
        node = folder.names.get(name)
        if isinstance(node, _Node):
            node.replace_all(data)
        else:
            node = _Node(self, path, data, is_synced=False)
            folder.change((name, node))
        if durable:
            self.operate("write_sync", path)
            node.sync()
            folder.sync()

    def replace(self, source: str, target: str) -> None:
        node = self._file(source)
        self.operate("replace", target)
        source_folder, source_name = self._parent(source)
        target_folder, target_name = self._parent(target)
        assert source_folder is target_folder, "renames stay in their folder"
        source_folder.change((source_name, None), (target_name, node))

    def remove(self, path: str) -> None:
        self._file(path)
        self.operate("remove", path)
        folder, name = self._parent(path)
        folder.change((name, None))

    def remove_dir(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.operate("remove_dir", path)
        folder.change((name, None))

    def make_dirs(self, path: str) -> None:
        folder = self._root
        for name in _parts(path):
            node = folder.names.get(name)
            if node is None:
                self.operate("make_dirs", path)
                node = _Folder()
                folder.change((name, node))
            if not isinstance(node, _Folder):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            folder = node

    def list_dir(self, path: str) -> list[str]:
        node = self._find(path)
        return sorted(node.names) if isinstance(node, _Folder) else []

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Folder)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size_bytes(self, path: str) -> int:
        return len(self._file(path).memory)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def sync_dir(self, path: str) -> None:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.operate("sync_dir", path)
        node.sync()

    def lock(self, path: str) -> Any:
        if not self.exists(path):
            self.write(path, b"")
        if path in self.locked:
            raise AlreadyLockedError(path)
        self.locked.add(path)
        return _MemLock(self, path)

    def disk_usage(self, path: str) -> DiskUsage:
        used = self.used_bytes()
        return DiskUsage(used=used, usable=max(0, self.capacity_bytes - used))

    def sync_everything(self) -> None:
        """Make everything durable, as if the power had never gone: what a kill -9 leaves."""
        _sync_folder(self._root)

    def used_bytes(self) -> int:
        return self.foreign_bytes + sum(len(node.memory) for node in _nodes(self._root))

    def _find(self, path: str) -> _Node | _Folder | None:
        node: _Node | _Folder | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Folder):
                return None
            node = node.names.get(name)
        return node

    def _file(self, path: str) -> _Node:
        node = self._find(path)
        if not isinstance(node, _Node):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        *parents, name = _parts(path)
        node = self._find("/".join(parents))
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node, name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _nodes(folder: _Folder) -> list[_Node]:
    found: list[_Node] = []
    for node in folder.names.values():
        found += _nodes(node) if isinstance(node, _Folder) else [node]
    return found


def _sync_folder(folder: _Folder) -> None:
    folder.sync()
    for node in folder.names.values():
        if isinstance(node, _Folder):
            _sync_folder(node)
        else:
            node.sync()


def _clone_folder(source: _Folder, target: _Folder, files: MemFileSystem, rng: Rng) -> None:
    for name, node in source.after_crash(rng).items():
        if isinstance(node, _Folder):
            folder = _Folder()
            _clone_folder(node, folder, files, rng)
            target.names[name] = folder
        else:
            copy = _Node(files, node.path, node.after_crash(rng), is_synced=True)
            copy.modified_ms = node.modified_ms
            target.names[name] = copy
    target.sync()
